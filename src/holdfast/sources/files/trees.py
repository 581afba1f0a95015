"""Access to the files of a source: the files that match a pattern, and their bytes.

A path is canonical and absolute (`/data/a.csv`, `s3://bucket/a.csv`). It identifies the file permanently, whatever
pattern found it. Trees hold no state, and do not know the contents of files.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.errors import StorageError
from holdfast.storage.store import ObjectStore

PathFilter = Callable[[str], bool]


class FileInfo(NamedTuple):
    """A file as it was listed. Two different values with the same path are two different files."""

    path: str
    size: int
    modified_us: int


class FileTree(ABC):
    """The files that match a pattern."""

    remote: bool
    """Each access is a request to a store, so that several at once are faster."""

    pattern: str
    """The path, folder, glob or URL that files match, for messages."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The beginning of all paths that can match: the deepest folder that is fixed."""

    @abstractmethod
    def check(self) -> None:
        """Raise `StorageError` if the folder is known to be missing."""

    def count_with(self, store: ObjectStore) -> None:
        """Count requests from now on with those of the job's storage. A tree without requests does nothing."""
        return

    @abstractmethod
    def list(self) -> list[FileInfo]:
        """Return the files that match now, without hidden and empty ones, in no order."""

    @abstractmethod
    def matches(self, path: str) -> bool:
        """Return whether a listing could name this path. Does no I/O."""

    @abstractmethod
    def read_range(self, file: FileInfo, offset: int, length: int) -> bytes:
        """Return exactly these bytes. Raises `StorageError` like `open`."""

    @abstractmethod
    def open(self, file: FileInfo) -> Any:
        """Return a seekable PyArrow file. Raises `StorageError` if the file is gone or differs from the listing."""


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
