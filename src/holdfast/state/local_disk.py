"""Errors of the local disk, told as the store's: work on the disk may wait for room, as for a store that is away."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import StorageError

ROCKSDB_SAYS = "IO error"
"""The beginning of RocksDB's errors of the disk, which have no class of their own."""


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Raise `StorageError`, which names the folder, where the disk below it fails."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not str(error).startswith(ROCKSDB_SAYS):
            raise
        raise StorageError(f"{folder}: {error}. See that the disk below local_dir has room and takes writes") from error
