"""The queries that run in this program, by their storages. They read state as it is now, between checkpoints.

A TaskManager answers only callers that know the secret of the job's start, which never leaves the processes of the job.
Other programs therefore read checkpoints, or ask the program in which the query runs.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError

LiveReader = Callable[[str, str | None, Mapping[str, Any]], pa.Table]

_readers: dict[str, tuple[LiveReader, Callable[[], bool]]] = {}
_lock = threading.Lock()


def running(url: str, read: LiveReader, has_ended: Callable[[], bool]) -> None:
    """Register a query that runs on the storage `url`, and forget those that have ended."""
    with _lock:
        for each in [each for each, (_, ended) in _readers.items() if ended()]:
            del _readers[each]
        _readers[url] = read, has_ended


def reader_of(storage: str) -> LiveReader:
    """Return the function that reads the query on a storage. Raises `HoldfastError` if none runs in this program."""
    with _lock:
        found = _readers.get(storage)
    if found is None or found[1]():
        raise HoldfastError(
            f"no query runs on the storage {storage!r} in this program, and only the processes of a job may read its "
            "state as it is now: ask in the program of the query, or read a checkpoint (without live=True)"
        )
    return found[0]
