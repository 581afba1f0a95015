"""Files below a folder, reached without following any symbolic link below it.

Otherwise a user who may write to a store could make clean-up delete files in other folders. Each folder is opened
relative to its parent (`openat` with `O_NOFOLLOW`), so even a link that replaces a folder meanwhile is not followed.
The store's own folder may be a link, since the job's user named it.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from holdfast.errors import StorageError
from holdfast.storage.store import ObjectInfo

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNFINISHED = re.compile(r"#\d+$")
"""Ending of the temporary names under which obstore writes files before it renames them."""


class _IsLink(Exception):
    """A folder on the way is a symbolic link, or no folder."""


DEPTH_MAX = 100
"""Levels of folders that are listed below a folder. Holdfast makes no deeper ones. A higher value opens more at
once."""


def files_below(root: str, prefix: str) -> Iterator[ObjectInfo]:
    """Yield the files below `root` whose names begin with the folder `prefix`, in no particular order. Raises
    `StorageError` as `remove_file` does."""
    try:
        with _opened(root, _segments(prefix)[:-1]) as folders:
            yield from _walk(folders[-1], prefix, DEPTH_MAX)
    except (FileNotFoundError, _IsLink):
        return


def remove_file(root: str, name: str) -> None:
    """Remove a file, and the folders that become empty. A missing file is no error; a file behind a link counts as
    missing.

    Raises `StorageError` for a name that leads out of the folder: names may come from stored objects.
    """
    *folders, file = _segments(name)
    try:
        with _opened(root, folders) as opened:
            os.unlink(file, dir_fd=opened[-1])
            for folder, parent in zip(reversed(folders), reversed(opened[:-1]), strict=True):
                os.rmdir(folder, dir_fd=parent)
    except (FileNotFoundError, _IsLink):
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def refuse_links(root: str, name: str) -> None:
    """Raise `StorageError` if a folder of a file to be written is a symbolic link, or leads out of the store's
    folder."""
    path = root
    for folder in _segments(name)[:-1]:
        path = f"{path}/{folder}"
        try:
            if stat.S_ISLNK(os.lstat(path).st_mode):
                raise StorageError(
                    f"{path} is a symbolic link: Holdfast follows no links below the folder of a store, since they "
                    f"could lead out of it; put a folder in its place to write {name!r}"
                )
        except (FileNotFoundError, NotADirectoryError):
            return


def _segments(name: str) -> list[str]:
    """Divide a name at its slashes. Raises `StorageError` for `.` and `..`."""
    found = name.split("/")
    if "." in found or ".." in found:
        raise StorageError(f"{name!r} leads out of the folder of its store: it is neither read nor changed")
    return found


@contextmanager
def _opened(root: str, folders: list[str]) -> Iterator[list[int]]:
    """Open the root and the folders below it, each in the folder before it."""
    with ExitStack() as closing:
        opened = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        closing.callback(os.close, opened[0])
        for folder in folders:
            opened.append(_open_folder(folder, opened[-1]))
            closing.callback(os.close, opened[-1])
        yield opened


def _open_folder(name: str, parent: int) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _IsLink from None
        raise


def _walk(folder: int, prefix: str, depth: int) -> Iterator[ObjectInfo]:
    below: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            elif entry.is_file(follow_symlinks=False) and not _UNFINISHED.search(entry.name):
                try:
                    found = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                yield ObjectInfo(prefix + _shown(entry.name), found.st_size, found.st_mtime)
    for name in below if depth else ():
        try:
            opened = _open_folder(name, folder)
        except (FileNotFoundError, _IsLink):
            continue
        try:
            yield from _walk(opened, f"{prefix}{_shown(name)}/", depth - 1)
        finally:
            os.close(opened)


def _shown(name: str) -> str:
    """Return the name as text. Bytes that are not UTF-8 become escapes, so that no object can be requested by the
    name."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
