"""Files of this machine, or of a folder that is mounted on all machines.

The path of a file is its absolute name. A name that is not UTF-8 cannot be written into a checkpoint or a dead
letter; the path of this file is a URL with these bytes escaped (`file:///data/caf%E9.csv`).
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import pyarrow as pa

from holdfast.errors import StorageError
from holdfast.sources.files.patterns import any_hidden, fixed_folder, hidden, is_glob, matcher
from holdfast.sources.files.trees import FileInfo, FileTree, PathFilter, changed, vanished

URL = "file://"


class LocalTree(FileTree):
    """The files below a folder that match a pattern. Links are followed, except to a folder above themselves."""

    remote = False

    def __init__(self, pattern: str, wanted: PathFilter) -> None:
        self.pattern = pattern
        self._match = matcher(pattern)
        folder = fixed_folder(pattern) if is_glob(pattern) else pattern
        self._root = folder or "/"
        self._depth = None if "**" in pattern or not is_glob(pattern) else pattern[len(folder) :].count("/")
        self._wanted = wanted

    @property
    def root(self) -> str:
        return self._root

    def check(self) -> None:
        try:
            Path(self._root).stat()
        except OSError as error:
            raise self._unlisted(error) from error

    def list(self) -> list[FileInfo]:
        try:
            if Path(self._root).is_file():
                return list(self._info(self._root, Path(self._root).stat()))
            return list(self._walk(self._root, (os.path.realpath(self._root),)))
        except OSError as error:
            raise self._unlisted(error) from error

    def _walk(self, folder: str, way: tuple[str, ...]) -> Iterator[FileInfo]:
        """Yield the files below a folder; `way` holds the real names of the folders from the root to this folder."""
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir()
                    if hidden(entry.name, is_folder):
                        continue
                    if not is_folder:
                        yield from self._info(entry.path, entry.stat())
                    elif self._depth is None or len(way) < self._depth:
                        linked = entry.is_symlink()
                        real = os.path.realpath(entry.path) if linked else f"{way[-1].rstrip('/')}/{entry.name}"
                        if not linked or not leads_back(real, way):
                            yield from self._walk(entry.path, (*way, real))
                except FileNotFoundError:
                    continue  # The file was deleted meanwhile; it is left out, as in a listing that began later.
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
                    continue  # The link leads to itself, so there is no file behind it.

    def _info(self, name: str, stat: os.stat_result) -> Iterator[FileInfo]:
        if stat.st_size and self._match.fullmatch(name) and self._wanted(name):
            yield FileInfo(path_of(name), stat.st_size, stat.st_mtime_ns // 1000)

    def matches(self, path: str) -> bool:
        name = name_of(path)
        is_canonical = path_of(name) == path and os.path.normpath(name) == name and "\0" not in name
        found = is_canonical and self._match.fullmatch(name) is not None and self._wanted(name)
        return found and not any_hidden(name[len(self._root) :].lstrip("/"))

    def read_range(self, file: FileInfo, offset: int, length: int) -> bytes:
        self._check_unchanged(file)
        try:
            with Path(name_of(file.path)).open("rb") as opened:
                opened.seek(offset)
                data = opened.read(length)
        except OSError as error:
            raise StorageError(f"{file.path}: cannot be read: {error}") from error
        if len(data) != length:
            raise StorageError(f"{file.path}: ends early: asked for {length} bytes from {offset}, found {len(data)}")
        return data

    def open(self, file: FileInfo) -> Any:
        self._check_unchanged(file)
        try:
            return pa.OSFile(os.fsencode(name_of(file.path)))
        except OSError as error:
            raise StorageError(f"{file.path}: cannot be read: {error}") from error

    def _check_unchanged(self, file: FileInfo) -> None:
        try:
            stat = Path(name_of(file.path)).stat()
        except FileNotFoundError as error:
            raise vanished(file) from error
        found = FileInfo(file.path, stat.st_size, stat.st_mtime_ns // 1000)
        if found != file:
            raise changed(file, found)

    def _unlisted(self, error: OSError) -> StorageError:
        advice = "make the folder, or correct the path"
        if isinstance(error, PermissionError):
            advice = "let this process read the folder, or give the folder a name that starts with '_' to skip it"
        return StorageError(f"{self.pattern}: cannot be listed: {error}: {advice}")


def leads_back(target: str, way: tuple[str, ...]) -> bool:
    """Return whether a folder holds a folder on the way to it, so that a walk would not end."""
    below = target.rstrip("/") + "/"
    return any(folder == target or folder.startswith(below) for folder in way)


def path_of(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        return URL + quote(os.fsencode(name))
    return name


def name_of(path: str) -> str:
    return os.fsdecode(unquote_to_bytes(path.removeprefix(URL))) if path.startswith(URL) else path
