"""Named points in the code at which a test can kill, fail or pause the process. Nothing happens unless one is armed.

A test arms a failpoint by the environment, which reaches the processes that Spark starts, or by `arm` in a process:

    HOLDFAST_FAILPOINTS="taskmanager.commit.before=kill:/tmp/once@3,jobmaster.record.sent=pause:/tmp/held"

    kill[:marker]      SIGKILL to this process; with a marker file, once: only in the process that creates it
    raise[:ErrorName]  an error of `holdfast.errors` (`HoldfastError` if none is named)
    pause:file         creates the file, and continues once the file has been removed
    …@count            acts only at that hit, counted from 1 in each process; without a count, at every hit

The environment is read at the first hit in a process. `KNOWN` lists all failpoints; a test compares it with the code.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast import errors

ENVIRONMENT_VARIABLE = "HOLDFAST_FAILPOINTS"
_ACTIONS = ("kill", "raise", "pause")

KNOWN: Mapping[str, str] = {
    # In tasks, which run in Spark's processes.
    "task.sent": "all rows of a unit have arrived; its result has not been returned",
    "task.staged": "a unit's output is staged; its committables have not been returned",
    "sink.staged": "a file of a unit is staged",
    # In the driver, while it stores an epoch of a streaming DataFrame.
    "stream.epoch.parts": "the rows of an epoch are stored; nothing names them",
    "stream.epoch.stored": "the epoch counts; Spark has not committed it",
    # In long-running senders.
    "sender.register.before": "it serves, and nobody knows it",
    "sender.unit.before": "a unit is about to be worked off",
    "sender.unit.after": "a unit is worked off; its result has not been returned",
    # In TaskManagers, in the order of their life.
    "taskmanager.register.before": "it serves, and nobody knows it",
    "taskmanager.deploy.before": "the old deployment is gone, nothing is restored",
    "taskmanager.deploy.table": "a table is restored",
    "taskmanager.rewind.between": "some tables went back in memory, others did not",
    "taskmanager.move.before": "gained subtasks are built; those that leave are still hosted",
    "taskmanager.deploy.after": "all is restored; not answered",
    "taskmanager.receive": "a stream begins",
    "taskmanager.process.before": "a batch was begun",
    "taskmanager.process.subtask": "a subtask begins with a batch",
    "taskmanager.process.after": "all subtasks have processed; not answered",
    "taskmanager.output": "a pull begins",
    "taskmanager.commit.before": "nothing is committed",
    "taskmanager.commit.between": "some tables have committed, others not",
    "taskmanager.commit.after": "all is committed; not answered",
    "taskmanager.release": "input and output are about to go",
    "taskmanager.abort": "a batch is about to be undone",
    "taskmanager.cut.before": "nothing is persisted",
    "changelog.upload.before": "an object of changes is about to be stored",
    "changelog.upload.after": "it is stored; nothing refers to it",
    "materialize.upload.before": "a part of a table is about to be stored",
    "taskmanager.cut.uploaded": "all of a checkpoint is stored but its manifest",
    "taskmanager.cut.manifest": "the manifest is stored",
    "taskmanager.acknowledge.before": "nothing is acknowledged",
    "taskmanager.acknowledge.after": "the acknowledgement was answered",
    "taskmanager.complete": "a checkpoint was recorded; nothing is truncated",
    "process.copy": "objects are about to be copied for a savepoint; TaskManagers and senders do so",
    # In the JobMaster: takeover, deployment, failover.
    "journal.takeover.listed": "the journal is listed and the base read; nothing is written",
    "journal.takeover.put": "the takeover record is written; it does not count yet",
    "jobmaster.cleanup.before": "the clean-up of older epochs' objects is about to begin",
    "jobmaster.deploy.before": "TaskManagers serve; nothing is deployed",
    "jobmaster.deploy.after": "everything is deployed; no batch was begun",
    "jobmaster.failover": "a failover begins",
    "jobmaster.follow": "those who are to gain subtasks are about to be asked to follow them",
    "jobmaster.hand.over": "all is recorded, and those who gain subtasks have them; the layout is that of before",
    "jobmaster.moved": "the new layout is deployed; no record holds it",
    # In the JobMaster: a batch.
    "jobmaster.level.before": "the tasks of a level are about to start",
    "jobmaster.level.after": "they have ended, and sent or staged everything",
    "jobmaster.process.before": "TaskManagers are about to be told which attempts count",
    "jobmaster.process.after": "they have processed",
    "jobmaster.commit.before": "everything is staged, nothing is committed",
    "jobmaster.commit.after": "TaskManagers have committed; input and output are still there",
    "jobmaster.committed": "the batch is over; the coordinator does not know",
    "jobmaster.savepoint.before": "a savepoint's objects are copied; nothing says that it is complete",
    # In the JobMaster: a checkpoint.
    "jobmaster.cut.before": "TaskManagers are about to be told to cut",
    "jobmaster.acknowledged": "an acknowledgement has come; it is not noted",
    "jobmaster.gather.before": "committables that take too much memory are about to be stored",
    "jobmaster.gather.after": "they are stored; the coordinator does not know",
    "jobmaster.record.stored": "parts of TaskManagers and committables are stored",
    "jobmaster.record.before": "all are stored; there is no record",
    "jobmaster.record.after": "the record is written; nobody knows",
    "jobmaster.completed": "TaskManagers are about to be told that it completed",
    "jobmaster.expire.before": "subsumed records are about to be deleted",
    "jobmaster.expire.after": "the records are deleted; the objects that only these records named still exist",
    "jobmaster.delete.before": "objects that nobody needs are about to be deleted",
    # In the JobMaster: publication.
    "jobmaster.publish.before": "a recorded group is about to be published",
    "sink.callback.before": "its rows are read; the function was not called",
    "sink.callback.after": "the function has returned",
    "sink.delta.loaded": "the table was looked at; nothing is committed",
    "sink.delta.committed": "the table shows the group",
    "sink.kafka.begun": "a transaction has begun; nothing is sent",
    "sink.kafka.sent": "the broker has the rows of a transaction, which is open",
    "sink.kafka.numbered": "the group's number is part of the open transaction",
    "sink.kafka.committed": "a transaction is committed; others of the group may follow",
    "sink.parquet.copied": "a file of the group is visible",
    "jobmaster.publish.after": "the group is published; the coordinator does not know",
    "jobmaster.discard.before": "its staged files are about to be deleted",
}
"""Every failpoint, with the state of the program at that point."""

Strike = Callable[[], None]


@dataclass
class _Armed:
    action: str | Strike
    argument: str
    count: int | None
    hits: int = 0


_lock = threading.Lock()
_armed: dict[str, _Armed] = {}
_environment_read_by = 0
_listener: Callable[[str], None] | None = None


def hit(name: str) -> None:
    """Pass the failpoint `name`; does nothing unless it is armed."""
    if _environment_read_by != os.getpid():
        _read_environment()
    listener = _listener
    if listener is not None:
        listener(name)
    if not _armed:
        return
    with _lock:
        point = _armed.get(name)
        if point is None:
            return
        point.hits += 1
        if point.count is not None and point.hits != point.count:
            return
    _act(name, point)


def arm(name: str, action: str | Strike) -> None:
    """Arm a failpoint in this process. `action` is a function, or the text of the environment variable without `name=`.

    Raises
    ------
    SettingsError
        The action is none of kill, raise and pause, or lacks its argument.
    """
    point = _parse(name, action) if isinstance(action, str) else _Armed(action, "", None)
    with _lock:
        _armed[name] = point


def listen(listener: Callable[[str], None] | None) -> None:
    """Call `listener` with the failpoint's name at every hit in this process, in the thread that hits it. None:
    stop."""
    global _listener
    _listener = listener


def disarm() -> None:
    """Disarm all failpoints of this process, and remove the listener."""
    listen(None)
    with _lock:
        _armed.clear()


def _read_environment() -> None:
    global _environment_read_by
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        arm(name, action)
    _environment_read_by = os.getpid()


def _parse(name: str, text: str) -> _Armed:
    body, _, count = text.partition("@")
    action, _, argument = body.partition(":")
    if action not in _ACTIONS or (count and not count.isdigit()) or (action == "pause" and not argument):
        raise errors.SettingsError(
            f"failpoint {name!r}: {text!r} is no action; allowed: kill[:marker], raise[:ErrorName], pause:file, "
            "each with @count"
        )
    return _Armed(action, argument, int(count) if count else None)


def _act(name: str, point: _Armed) -> None:
    if callable(point.action):
        point.action()
        return
    if point.action == "raise":
        error = getattr(errors, point.argument or "HoldfastError")
        raise error(f"failpoint {name} raised, as a test asked for")
    if point.action == "kill":
        if not point.argument or _created(Path(point.argument)):
            os.kill(os.getpid(), signal.SIGKILL)
        return
    held = Path(point.argument)
    held.touch()
    while held.exists():
        time.sleep(0.005)


def _created(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
