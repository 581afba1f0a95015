"""Sending bytes to the tasks of a Spark Connect session: inside a function, or as a file of the session."""

from functools import lru_cache
from pathlib import Path

import msgspec
from pyspark import SparkFiles

FILES_HELD_MAX = 2
"""Files whose bytes a worker keeps, so that it does not read them for each task."""


class Inline:
    """Implements `host.Shipped` for few bytes, which become part of each function."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def unpersist(self) -> None:
        """Do nothing: each function ends with its job."""


class SessionFile:
    """Implements `host.Shipped` by an artifact, which Spark copies to an executor once and deletes with the session."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def value(self) -> bytes:
        return _read(SparkFiles.get(self._name))

    def unpersist(self) -> None:
        """Do nothing: the file is deleted with the session."""


@lru_cache(maxsize=FILES_HELD_MAX)
def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def nth(encoded: bytes, number: int) -> bytes:
    """Return the part of one task from the encoded parts of all tasks."""
    return msgspec.msgpack.decode(encoded, type=list[bytes])[number]
