"""A cache of compiled kernels, and the question if it is this user's own.

The files of a cache are code: who writes to them runs code in every process. A cache that other users can write to is
not used, and a warning says so once. Each process then compiles its kernels.
"""

import grp
import os
import pwd
import stat
from functools import cache
from pathlib import Path

from holdfast.printable import logger

KERNEL_SUFFIXES = (".nbi", ".nbc")

_log = logger(__name__)


@cache
def is_own_cache(folder: str) -> bool:
    """True if nobody but this user and root can write to the folder, its files, or put another in its place."""
    where = _open_to_others(Path(folder))
    if where is not None:
        _log.warning(
            "compiled kernels in %s are not used, since %s can be written by other users: each process compiles its "
            "kernels anew. Take their right to write (chmod -R go-w %s), or set NUMBA_CACHE_DIR to your own folder",
            folder, where, where,
        )  # fmt: skip
    return where is None


def _open_to_others(folder: Path) -> Path | None:
    """The folder on the way, or the file of kernels, that others can write to; None if there is none."""
    for each in (folder, *folder.parents):
        try:
            found = each.stat()
        except FileNotFoundError:
            continue  # it will be made
        except OSError:
            return each
        if _others_write(found) and (each == folder or not found.st_mode & stat.S_ISVTX):
            return each
    if not folder.is_dir():
        return None
    with os.scandir(folder) as files:
        kernels = [file for file in files if file.name.endswith(KERNEL_SUFFIXES)]
        return next((Path(file.path) for file in kernels if _others_write(file.stat(follow_symlinks=False))), None)


def _others_write(found: os.stat_result) -> bool:
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


@cache
def _is_own_group(gid: int) -> bool:
    """True for root's group, and for a group of the user's own name without further members, as many systems make."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == 0 or (group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name})
