"""Where a file source's files are: a local folder or an object store, seen through one small interface.

A path is canonical and absolute (`/data/a.csv`, `s3://bucket/a.csv`): it identifies the file for ever,
whatever pattern found it. Owns no state; does not know what is in the files.
"""

import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from holdfast.errors import ObjectNotFound, StorageError
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

GLOB = re.compile(r"[*?\[{]")


class FileInfo(NamedTuple):
    """One file as it was listed. Two different values for one path are two different files."""

    path: str
    size: int
    modified_us: int


class FileTree(ABC):
    """The files that match a pattern, and their bytes."""

    remote: bool

    @abstractmethod
    def list(self) -> list[FileInfo]:
        """The files that match now, but hidden and empty ones; in no order."""

    @abstractmethod
    def read_range(self, file: FileInfo, offset: int, length: int) -> bytes:
        """Exactly these bytes."""

    @abstractmethod
    def open(self, file: FileInfo) -> Any:
        """A seekable PyArrow file. Raises `StorageError` where the file is gone or not the one that was listed."""


def open_tree(pattern: str, storage_options: Mapping[str, str], wanted: Callable[[str], bool]) -> FileTree:
    """The tree for a path, a folder, a glob, or a URL of one; `wanted` filters paths. Does no I/O."""
    parts = urlsplit(pattern)
    if "://" not in pattern or parts.scheme == "file":
        path = unquote(parts.path) if parts.scheme == "file" else pattern
        return LocalTree(os.path.abspath(os.path.expanduser(path)), wanted)  # noqa: PTH100, PTH111 (links stay)
    key_pattern = pattern.partition("://")[2].partition("/")[2]
    return StoreTree(f"{parts.scheme}://{parts.netloc}", key_pattern, storage_options, wanted)


class LocalTree(FileTree):
    """Files of this machine, or of a folder mounted on all of them."""

    remote = False

    def __init__(self, pattern: str, wanted: Callable[[str], bool]) -> None:
        self._pattern = pattern
        self._match = matcher(pattern)
        self._root = fixed_folder(pattern) if is_glob(pattern) else pattern
        self._depth = None if "**" in pattern or not is_glob(pattern) else pattern.count("/") - self._root.count("/")
        self._wanted = wanted

    def list(self) -> list[FileInfo]:
        try:
            if Path(self._root).is_file():
                return list(self._info(self._root, Path(self._root).stat()))
            return list(self._walk(self._root or "/", 1))
        except OSError as error:
            raise StorageError(
                f"{self._pattern}: cannot be listed: {error}: make the folder, or correct the path"
            ) from error

    def _walk(self, folder: str, depth: int) -> Iterator[FileInfo]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if hidden(entry.name):
                    continue
                try:
                    if not entry.is_dir():
                        yield from self._info(entry.path, entry.stat())
                    elif self._depth is None or depth < self._depth:
                        yield from self._walk(entry.path, depth + 1)
                except FileNotFoundError:
                    continue  # Deleted while the folder was listed: as if the listing had come later.

    def _info(self, path: str, stat: os.stat_result) -> Iterator[FileInfo]:
        if stat.st_size and self._match.fullmatch(path) and self._wanted(path):
            yield FileInfo(path, stat.st_size, stat.st_mtime_ns // 1000)

    def read_range(self, file: FileInfo, offset: int, length: int) -> bytes:
        self._check(file)
        try:
            with Path(file.path).open("rb") as opened:
                opened.seek(offset)
                data = opened.read(length)
        except OSError as error:
            raise StorageError(f"{file.path}: cannot be read: {error}") from error
        if len(data) != length:
            raise StorageError(f"{file.path}: ends early: asked for {length} bytes from {offset}, found {len(data)}")
        return data

    def open(self, file: FileInfo) -> Any:
        self._check(file)
        try:
            return pa.OSFile(file.path)
        except OSError as error:
            raise StorageError(f"{file.path}: cannot be read: {error}") from error

    def _check(self, file: FileInfo) -> None:
        try:
            stat = Path(file.path).stat()
        except FileNotFoundError as error:
            raise vanished(file) from error
        found = FileInfo(file.path, stat.st_size, stat.st_mtime_ns // 1000)
        if found != file:
            raise changed(file, found)


class StoreTree(FileTree):
    """Files in an object store. A change of a listed file is found by the next listing."""

    remote = True

    def __init__(
        self, root_url: str, key_pattern: str, storage_options: Mapping[str, str], wanted: Callable[[str], bool]
    ) -> None:
        self._url = root_url
        self._wanted = wanted
        self._pattern = key_pattern
        self._match = matcher("/" + key_pattern)
        self._options = dict(storage_options)
        self._opened: ObjectStore | None = None

    @property
    def _store(self) -> ObjectStore:
        if self._opened is None:
            self._opened = RetryingStore(open_store(self._url, self._options))
        return self._opened

    def list(self) -> list[FileInfo]:
        is_folder = not is_glob(self._pattern) and not PurePosixPath(self._pattern).suffix
        folder = self._pattern.rstrip("/") if is_folder else fixed_folder("/" + self._pattern)[1:]
        prefix = folder + "/" if folder else ""
        return [
            FileInfo(f"{self._url}/{info.name}", info.size, int(info.modified_s * 1_000_000))
            for info in self._store.list(prefix)
            if info.size
            and self._match.fullmatch("/" + info.name)
            and self._wanted(info.name)
            and not any(hidden(part) for part in info.name[len(prefix) :].split("/"))
        ]

    def read_range(self, file: FileInfo, offset: int, length: int) -> bytes:
        try:
            return self._store.get_range(file.path[len(self._url) + 1 :], offset, length)
        except ObjectNotFound as error:
            raise vanished(file) from error

    def open(self, file: FileInfo) -> Any:
        return pa.PythonFile(RangeFile(self, file), mode="r")


class RangeFile(io.RawIOBase):
    """A file object over range requests, without a buffer: PyArrow asks for what it needs."""

    def __init__(self, tree: FileTree, file: FileInfo) -> None:
        super().__init__()
        self._tree = tree
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._position)
        length = left if size < 0 else min(size, left)
        data = self._tree.read_range(self._file, self._position, length) if length else b""
        self._position += length
        return data


def vanished(file: FileInfo) -> StorageError:
    return StorageError(
        f"{file.path}: was discovered with {file.size} bytes and is gone before it was read: put it back; "
        "a file may go only once a checkpoint covers all of it"
    )


def changed(file: FileInfo, found: FileInfo) -> StorageError:
    return StorageError(
        f"{file.path}: was discovered with {file.size} bytes, modified at {file.modified_us} us, and now has "
        f"{found.size} bytes, modified at {found.modified_us} us: a discovered file must not change; "
        "write new rows to a new file, elsewhere first, and move it into the folder"
    )


def is_glob(pattern: str) -> bool:
    return GLOB.search(pattern) is not None


def hidden(name: str) -> bool:
    """Names that writers use for what is not finished yet, and for markers."""
    return name.startswith(("_", "."))


def fixed_folder(pattern: str) -> str:
    """The deepest folder that holds everything a pattern can match."""
    found = GLOB.search(pattern)
    return pattern[: found.start() if found else len(pattern)].rpartition("/")[0]


def matcher(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression over whole paths; a path without wildcards is itself, or a folder with all below.

    `*` and `?` stay within a path segment, `**` does not, `[…]` and `{a,b}` are as in a shell.
    """
    if not GLOB.search(pattern):
        return re.compile(re.escape(pattern.rstrip("/")) + r"(/.*)?", re.DOTALL)
    return re.compile("".join(_translate(pattern)), re.DOTALL)


def _translate(pattern: str) -> Iterator[str]:
    tokens = re.compile(r"\*\*/|\*\*|\*|\?|\[(?P<set>!?\]?[^\]]*)\]|\{(?P<either>[^{}]*)\}|.", re.DOTALL)
    for token in tokens.finditer(pattern):
        text = token.group()
        if token["set"] is not None:
            inside = token["set"].replace("\\", "\\\\")
            yield f"[{'^' + inside[1:] if inside.startswith('!') else inside}]"
        elif token["either"] is not None:
            yield "(" + "|".join("".join(_translate(part)) for part in token["either"].split(",")) + ")"
        else:
            yield {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(text, re.escape(text))
