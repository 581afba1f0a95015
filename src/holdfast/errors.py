"""Every error that Holdfast raises. There is one class for each reaction that a caller can have.

    HoldfastError
    ├── SettingsError        change the setting (also a ValueError)
    ├── JobRefused           change the job, the cluster or the target: nothing has run
    ├── BadRecord            change the data, or use bad_records="dead_letter"
    ├── UserFunctionError    change the function: operator, key, batch and row are named
    ├── StateTooLarge        give the table more memory or another backend
    ├── PositionLost         a source no longer has the rows that come next: start elsewhere, or from the earliest
    ├── StorageError         look at the storage; retried if the retry policy says so
    │   ├── ObjectNotFound
    │   └── ObjectExists     put-if-absent found an object
    ├── CorruptObject        a stored object cannot be read; it is named; nothing of it was used
    ├── Fenced               another JobMaster has taken over: stop, delete nothing
    ├── StaleCall            a call from an older run or incarnation: the caller gives up
    ├── RowsNeeded           combined rows do not tell enough: run the batch again without combining
    ├── SenderLost           senders ended while they worked on a unit: the batch is run again
    │   └── SenderHung       a sender was ended, since it took too long for a unit
    ├── TaskManagerLost      a TaskManager ended: failover
    │   └── StateBroken      a commit or an undo failed there, so that it is ended
    ├── SessionStopped       the Spark session under a query was stopped: make a new session and start again
    ├── RestartsExhausted    restarts did not help: look at the cause, which is named with its count
    ├── CheckpointFailed     a checkpoint that somebody waits for did not complete
    ├── PublishFailed        a sink cannot take staged output, and trying again will not help
    └── QueryFailed          the query has ended; the cause is chained

A message names the thing, what was found, what was expected and the remedy. Wherever a person reads a message, the name
of its class comes first, so that the documentation can be searched for it: Python puts it there in tracebacks, and
`described` does so everywhere else.
"""

import errno
import sysconfig
import traceback
from pathlib import Path

from holdfast.hidden import hide
from holdfast.printable import printable

USER_ERRORS = (BaseException,)
"""Errors that users' code may raise, including `sys.exit()` and `asyncio.CancelledError`. Each counts as a failure of
that code, and ends nothing else. Ctrl-C interrupts only the main thread, which runs no users' code."""

_OWN_FOLDER = str(Path(__file__).parent)
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})


class HoldfastError(Exception):
    """The base class of all errors of this package. Its text is safe to print, whatever it quotes, and has no
    secrets."""

    def __init__(self, *told: object) -> None:
        super().__init__(*(hide(each) if isinstance(each, str) else each for each in told))

    def __str__(self) -> str:
        return printable(super().__str__())


class SettingsError(HoldfastError, ValueError):
    """A setting has a value that is not allowed; names the field, the value and the allowed values."""


class JobRefused(HoldfastError):
    """The job cannot start as it is. Nothing has run, and nothing was changed."""


class BadRecord(HoldfastError):
    """An input row cannot be processed; names source, split, position and reason."""


class UserFunctionError(HoldfastError):
    """A user's function raised; names operator, key, batch and row. State was undone."""


class StateTooLarge(HoldfastError):
    """A state table outgrew its share of the TaskManager's memory, or the range of its row numbers."""


class PositionLost(HoldfastError):
    """The rows that follow a source's position are gone; names split, wanted and available position."""


class StorageError(HoldfastError):
    """The object store could not carry out a request: an I/O error, possibly temporary."""


class ServiceAway(StorageError):
    """A service counts as unreachable, since many calls of a `map_async` failed in a row. The batch waits for it."""


class ObjectNotFound(StorageError):
    """The store has no object of that name."""


class ObjectExists(StorageError):
    """Put-if-absent found an object of that name (possibly from an earlier put by the same caller)."""


class CorruptObject(HoldfastError):
    """A stored object is truncated, altered or of an unknown format; names the object."""


class Fenced(HoldfastError):
    """Another JobMaster has taken over the storage. The one that gets this error must not complete anything any
    more."""


class StaleCall(HoldfastError):
    """A call carries an older run or incarnation than the last call did."""


class RowsNeeded(HoldfastError):
    """An operator cannot compute its result from combined rows; the batch runs again with uncombined rows."""


class SenderLost(HoldfastError):
    """A long-running sender has ended or can no longer be reached."""


class SenderHung(SenderLost):
    """A sender took longer for a unit than `RegionConfig.unit_timeout` allows, and was ended."""


class TaskManagerLost(HoldfastError):
    """A TaskManager has ended or can no longer be reached."""


class StateBroken(TaskManagerLost):
    """A TaskManager cannot use its state any more, because a commit or an undo failed."""


class SessionStopped(HoldfastError):
    """The Spark session that a query runs on was stopped, or its JVM has ended; nothing can run there any more."""


class RestartsExhausted(HoldfastError):
    """The job was restarted, or a process was lost, more often than `FailoverConfig` allows; names the last cause."""


class CheckpointFailed(HoldfastError):
    """A checkpoint did not complete; names its id and the reason. `soft`: declined, and may be asked for again."""

    def __init__(self, message: str, *, soft: bool = False) -> None:
        super().__init__(message)
        self.soft = soft


class RescaleFailed(HoldfastError):
    """A running job did not get another number of TaskManagers. It continues with the previous ones."""


class PublishFailed(HoldfastError):
    """A sink permanently refuses output that was staged for it."""


class QueryFailed(HoldfastError):
    """A query ended with an error; the cause is chained."""


FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The operating system's error numbers for a disk that is full, for all users or for this one."""
ROCKSDB_SAYS = "IO error"
"""The beginning of RocksDB's messages for disk errors, which have no class of their own."""


def is_outage(error: BaseException) -> bool:
    """True if work failed for lack of store, disk or service, so that a later attempt may succeed.

    A missing object is no outage.
    """
    if isinstance(error, StorageError):
        return not isinstance(error, ObjectNotFound | ObjectExists)
    if isinstance(error, OSError):
        return error.errno in FULL_DISK
    return type(error) is Exception and str(error).startswith(ROCKSDB_SAYS)


def class_abroad(error: BaseException) -> str:
    """Return the name of the class in this module that another process should raise for the error; empty if none fits.

    An outage that a library reported with an error of its own becomes a `StorageError` there, since its text alone
    would not be recognised as an outage.
    """
    if isinstance(error, HoldfastError):
        return type(error).__name__
    return StorageError.__name__ if is_outage(error) else ""


def in_user_code(error: BaseException) -> str:
    """Name an error that a user's function raised, with its line: `ValueError: no such carrier (job.py, line 12)`.

    The line is the innermost one that belongs neither to Holdfast nor to a library. If there is none, it is the
    outermost line of a library, since the function may itself be installed as a library. An error that crosses
    processes carries no other trace.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    outside = [(file, line) for file, line in frames if not file.startswith(_OWN_FOLDER)]
    own = [(file, line) for file, line in outside if not _is_of_library(file)]
    found = own[-1:] or outside[:1]
    place = f" ({Path(found[0][0]).name}, line {found[0][1]})" if found else ""
    return f"{described(error)}{place}"


def described(error: BaseException) -> str:
    """Return an error's class and text without secrets. The class `HoldfastError` itself is left out: it says
    nothing."""
    text = hide(str(error))
    return text if type(error) is HoldfastError else f"{type(error).__name__}: {text}"


def _is_of_library(file: str) -> bool:
    """True for Python's own and installed libraries, and for compiled code, whose source files are not there."""
    installed = "/site-packages/" in file or "/dist-packages/" in file
    return installed or file.startswith((*_LIBRARIES, "<frozen")) or file.endswith((".pxi", ".pyx"))
