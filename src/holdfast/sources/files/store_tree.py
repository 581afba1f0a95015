"""Files in an object store. A change of a listed file is found by the next listing."""

import io
from collections.abc import Mapping
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from holdfast.errors import ObjectNotFound
from holdfast.sources.files.patterns import any_hidden, fixed_folder, is_glob, matcher
from holdfast.sources.files.trees import FileInfo, FileTree, PathFilter, vanished
from holdfast.storage.counted import counted
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store


class StoreTree(FileTree):
    """The objects of a store whose names match a pattern."""

    remote = True

    def __init__(self, root_url: str, key_pattern: str, storage_options: Mapping[str, str], wanted: PathFilter) -> None:
        self._url = root_url
        self._wanted = wanted
        self._pattern = key_pattern
        self.pattern = f"{root_url}/{key_pattern}"
        self._match = matcher("/" + key_pattern)
        self._options = dict(storage_options)
        self._opened: ObjectStore | None = None

    @cached_property
    def _plain(self) -> ObjectStore:
        return RetryingStore(open_store(self._url, self._options, whose="FileSource path"))

    @property
    def _store(self) -> ObjectStore:
        return self._opened or self._plain

    def count_with(self, store: ObjectStore) -> None:
        self._opened = counted(self._plain, store)

    def check(self) -> None:
        """Do nothing: an object store has no folders, only names."""
        return

    @property
    def root(self) -> str:
        return f"{self._url}/{self._prefix}"

    @property
    def _prefix(self) -> str:
        is_folder = not is_glob(self._pattern) and not PurePosixPath(self._pattern).suffix
        folder = self._pattern.rstrip("/") if is_folder else fixed_folder("/" + self._pattern)[1:]
        return folder + "/" if folder else ""

    def list(self) -> list[FileInfo]:
        return [
            FileInfo(f"{self._url}/{info.name}", info.size, int(info.modified_s * 1_000_000))
            for info in self._store.list(self._prefix)
            if info.size and self._is_wanted(info.name)
        ]

    def matches(self, path: str) -> bool:
        key = path.removeprefix(f"{self._url}/")
        return key != path and not {".", ".."} & set(key.split("/")) and self._is_wanted(key)

    def _is_wanted(self, key: str) -> bool:
        found = self._match.fullmatch("/" + key) is not None and self._wanted(key)
        return found and not any_hidden(key[len(self._prefix) :])

    def read_range(self, file: FileInfo, offset: int, length: int) -> bytes:
        try:
            return self._store.get_range(file.path[len(self._url) + 1 :], offset, length)
        except ObjectNotFound as error:
            raise vanished(file) from error

    def open(self, file: FileInfo) -> Any:
        return pa.PythonFile(RangeFile(self, file), mode="r")


class RangeFile(io.RawIOBase):
    """A file object over range requests, without a buffer: PyArrow asks for the ranges that it needs."""

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
