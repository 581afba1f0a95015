"""The folders in which compiled kernels are stored, and a check whether other users can write to them.

The files are code: a user who can write to them can run code in every process. A folder to which other users can write
is not used, and a warning says so once. If no folder is writable, kernels stay in memory.
"""

import grp
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from holdfast.printable import logger

VARIABLE = "NUMBA_CACHE_DIR"
BESIDE_PACKAGE = Path(__file__).parent / "compiled"
OF_MACHINE = Path("/var/cache/holdfast/kernels")

_log = logger(__name__)


def folders() -> Iterator[Path]:
    """Yield the folders of kernels, in the order in which they are searched, also for the first that is writable."""
    named = os.environ.get(VARIABLE)
    if named:
        yield Path(named).absolute() / "holdfast"
    yield BESIDE_PACKAGE
    cached = _user_cache()
    if cached is not None:
        yield cached / "holdfast" / "kernels"
    yield OF_MACHINE
    yield Path(tempfile.gettempdir()).absolute() / f"holdfast-kernels-{os.geteuid()}"


def _user_cache() -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given).absolute()
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  Path.home() raises if no home is known
    return home / ".cache" if home.is_absolute() and home.is_dir() else None


@cache
def is_own_cache(folder: str) -> bool:
    """Return True if nobody but this user and root can write to the folder, or replace it."""
    where = _open_to_others(Path(folder))
    if where is not None:
        _log.warning(
            "compiled kernels in %s are not used, since %s can be written by other users. Take their right to write "
            "(chmod -R go-w %s), or set %s to your own folder",
            folder, where, where, VARIABLE,
        )  # fmt: skip
    return where is None


def can_be_written(folder: Path) -> bool:
    """Return True if the folder exists or can be created, and files can be written to it."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def others_write(found: os.stat_result) -> bool:
    """Return True if users other than this user and root can write to a file."""
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def _open_to_others(folder: Path) -> Path | None:
    """Return the first folder on the path to which other users can write; None if there is none."""
    for each in (folder, *folder.parents):
        try:
            found = each.stat()
        except FileNotFoundError:
            continue  # it will be created
        except OSError:
            return each
        if others_write(found) and (each == folder or not found.st_mode & stat.S_ISVTX):
            return each
    return None


@cache
def _is_own_group(gid: int) -> bool:
    """Return True for root's group, and for a group of the user's own name without other members, which is common."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == 0 or (group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name})
