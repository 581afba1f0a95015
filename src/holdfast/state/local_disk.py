"""Errors of the local disk, raised as errors of storage: work then waits for room on the disk, as it waits for a
store."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import ROCKSDB_SAYS, CorruptObject, HoldfastError, StorageError

_OF_FILES = re.compile(rf"{ROCKSDB_SAYS}: .*(No such file|larger than file length)", re.IGNORECASE | re.DOTALL)
"""RocksDB's disk errors about a file that is missing or too short."""


@contextmanager
def stored_files(what: str, folder: Path) -> Iterator[None]:
    """Raise `CorruptObject`, which names the object `what`, if RocksDB cannot use the files in `folder`, and
    `StorageError` if the disk fails."""
    try:
        with on_disk(folder):
            yield
    except (HoldfastError, MemoryError) as error:
        if not _OF_FILES.match(str(error.__cause__)):
            raise
        raise CorruptObject(f"{what}: its base store lacks files or parts of them: {error.__cause__}") from error
    except Exception as error:  # nothing but the files can be wrong
        raise CorruptObject(
            f"{what}: its files cannot be used as a base store: {error}; restore the objects from a copy"
        ) from error


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Raise `StorageError`, which names the folder, if the disk below it fails."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not str(error).startswith(ROCKSDB_SAYS):
            raise
        raise StorageError(f"{folder}: {error}. See that the disk below local_dir has room and takes writes") from error
