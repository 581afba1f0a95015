"""Named places in the code where a test can kill, fail or hold the process. Nothing happens unless armed.

Armed by the environment, which reaches the processes that Spark starts, or by `arm` inside a process:

    HOLDFAST_FAILPOINTS="taskmanager.commit.before=kill:/tmp/once@3,jobmaster.record.sent=pause:/tmp/held"

    kill[:marker]      SIGKILL to this process; with a marker file, only by the one process that creates it
    raise[:ErrorName]  an error of `holdfast.errors` (`HoldfastError` where none is named)
    pause:file         creates the file, and goes on when somebody has removed it
    …@count            acts at that hit only, counted from 1 in each process; without it, at every hit

The environment is read at the first hit in a process. This module owns no policy: names belong to their callers.
"""

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast import errors

ENVIRONMENT_VARIABLE = "HOLDFAST_FAILPOINTS"
_ACTIONS = ("kill", "raise", "pause")


@dataclass
class _Armed:
    action: str
    argument: str
    count: int | None
    hits: int = 0


_lock = threading.Lock()
_armed: dict[str, _Armed] = {}
_environment_read_by = 0


def hit(name: str) -> None:
    """Pass the failpoint `name`; does nothing unless it is armed."""
    if _environment_read_by != os.getpid():
        _read_environment()
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


def arm(name: str, action: str) -> None:
    """Arm one failpoint in this process; `action` as in the environment variable, without the name.

    Raises
    ------
    SettingsError
        If the action is none of kill, raise and pause, or lacks what it needs.
    """
    point = _parse(name, action)
    with _lock:
        _armed[name] = point


def disarm() -> None:
    """Disarm all failpoints of this process."""
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
