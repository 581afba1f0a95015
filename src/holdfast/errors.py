"""Every error that Holdfast raises, a class for each reaction that a caller can have.

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
    ├── SessionStopped       the Spark session under a query was stopped: make a new session and start again
    ├── RestartsExhausted    restarts did not help: look at the cause, which is named with its count
    ├── CheckpointFailed     a checkpoint that somebody waits for did not complete
    ├── PublishFailed        a sink cannot take staged output, and trying again will not help
    └── QueryFailed          the query has ended; the cause is chained

A message names the thing, the finding, the expectation and the remedy. Wherever a person reads it, the class stands
before it, by which the documentation is searched: Python does that in tracebacks, and `described` everywhere else.
"""

import errno
import sysconfig
import traceback
from pathlib import Path

from holdfast.hidden import hide
from holdfast.printable import printable

USER_ERRORS = (BaseException,)
"""Errors that code of users may raise, `sys.exit()` and `asyncio.CancelledError` included: each is a failure of that
code, and ends nothing else.
Ctrl-C reaches the main thread alone, which runs no code of users."""

_OWN_FOLDER = str(Path(__file__).parent)
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})


class HoldfastError(Exception):
    """The root of all errors of this package. Its text is safe to print whatever it quotes, and holds no secrets."""

    def __init__(self, *told: object) -> None:
        super().__init__(*(hide(each) if isinstance(each, str) else each for each in told))

    def __str__(self) -> str:
        return printable(super().__str__())


class SettingsError(HoldfastError, ValueError):
    """A setting has a value that is not allowed; names the field, the value and the allowed values."""


class JobRefused(HoldfastError):
    """The job cannot start as it is; nothing has run and nothing was changed."""


class BadRecord(HoldfastError):
    """An input row cannot be processed; names source, split, position and reason."""


class UserFunctionError(HoldfastError):
    """A user's function raised; names operator, key, batch and row. State was undone."""


class StateTooLarge(HoldfastError):
    """A state table outgrew its share of the TaskManager's memory, or the numbers that its rows can have."""


class PositionLost(HoldfastError):
    """The rows that follow a source's position are gone; names split, wanted and available position."""


class StorageError(HoldfastError):
    """The object store could not carry out a request: an I/O error, possibly temporary."""


class ServiceAway(StorageError):
    """A service counts as away, since very many calls of a `map_async` have failed in a row. The batch waits for it."""


class ObjectNotFound(StorageError):
    """The store has no object of that name."""


class ObjectExists(StorageError):
    """Put-if-absent found an object of that name (possibly from an earlier put by the same caller)."""


class CorruptObject(HoldfastError):
    """A stored object is truncated, altered or of an unknown format; names the object."""


class Fenced(HoldfastError):
    """Another JobMaster has taken over the storage; the one that gets this error may complete nothing any more."""


class StaleCall(HoldfastError):
    """A call carries an older run or incarnation than the last call did."""


class RowsNeeded(HoldfastError):
    """An operator cannot compute its result from combined rows; the batch runs again with uncombined rows."""


class SenderLost(HoldfastError):
    """A sender that stays has ended or can no longer be reached."""


class SenderHung(SenderLost):
    """A sender took longer for a unit than `RegionConfig.unit_timeout` allows, and was ended."""


class TaskManagerLost(HoldfastError):
    """A TaskManager has ended or can no longer be reached."""


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
    """A running job did not get another number of TaskManagers; it goes on with those of before."""


class PublishFailed(HoldfastError):
    """A sink permanently refuses output that was staged for it."""


class QueryFailed(HoldfastError):
    """A query ended with an error; the cause is chained."""


FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Numbers of the operating system's errors of a disk that has no room left, for anybody or for this user."""
ROCKSDB_SAYS = "IO error"
"""The beginning of RocksDB's errors of the disk, which have no class of their own."""


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
    """The name of the class in this module as which another process raises the error; empty if there is none.

    An outage that a library told in its own way is a `StorageError` there, since a text alone would not say so.
    """
    if isinstance(error, HoldfastError):
        return type(error).__name__
    return StorageError.__name__ if is_outage(error) else ""


def in_user_code(error: BaseException) -> str:
    """Name an error that a user's function raised, with its line: `ValueError: no such carrier (job.py, line 12)`.

    The line is the innermost that is neither Holdfast's nor a library's. If there is none, it is a library's first,
    since the function may be installed like one. An error that crosses processes carries no other trace.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    outside = [(file, line) for file, line in frames if not file.startswith(_OWN_FOLDER)]
    own = [(file, line) for file, line in outside if not _is_of_library(file)]
    found = own[-1:] or outside[:1]
    place = f" ({Path(found[0][0]).name}, line {found[0][1]})" if found else ""
    return f"{described(error)}{place}"


def described(error: BaseException) -> str:
    """Name an error of any library with its text, without secrets. `HoldfastError` itself would say nothing."""
    text = hide(str(error))
    return text if type(error) is HoldfastError else f"{type(error).__name__}: {text}"


def _is_of_library(file: str) -> bool:
    """True for code of Python's own and installed libraries, and for compiled code, whose files nobody has."""
    installed = "/site-packages/" in file or "/dist-packages/" in file
    return installed or file.startswith((*_LIBRARIES, "<frozen")) or file.endswith((".pxi", ".pyx"))
