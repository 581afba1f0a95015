"""A writer and its uploader with a store whose puts can be held up and failed."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from obstore.store import MemoryStore

from changelog_world import LOG
from holdfast.changelog.writer import ChangelogWriter
from holdfast.changelog_config import RetryPolicy
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import read_piece
from holdfast.state.table import merge_changes
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.store import ObjectStore
from holdfast.testing.stores import Fault, FaultyStore
from holdfast.uploads.uploader import Uploader

RETRIES = RetryPolicy.fixed(3, timeout=None, next_attempt_delay=0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        threading.Event().wait(0.001)


class Gate:
    """A `FaultyStore`'s decision: counts puts, holds them up while closed, and fails those that it is told to."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.faults: list[Fault | None] = []
        self.puts: list[str] = []

    def __call__(self, operation: str, name: str) -> Fault | None:
        if operation != "put":
            return None
        self.puts.append(name)
        self.opened.wait(30)
        return self.faults.pop(0) if self.faults else None


class Harness:
    def __init__(self) -> None:
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.gate = Gate()
        self.store = FaultyStore(self.inner, self.gate)
        self.uploader = Uploader(self.store, 1, 1, retries=RETRIES)
        self.writer = ChangelogWriter(LOG, self.uploader, merge_changes)

    def names(self) -> list[str]:
        return [info.name for info in self.inner.list("")]

    def acknowledge(self, pieces: list[LogPiece]) -> None:
        self.uploader.acknowledge(piece.object for piece in pieces)

    def keys(self, pieces: list[LogPiece]) -> list[list[str]]:
        return [keys_of(self.inner, piece) for piece in pieces]


def keys_of(store: ObjectStore, piece: LogPiece) -> list[str]:
    data = memoryview(store.get_range(piece.object, piece.offset, piece.length))
    return [key for rows in read_piece(data, piece, "op", "state", 0, 4) for key in rows["k"].to_pylist()]


@pytest.fixture(name="harness")
def make_harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.gate.opened.set()
    harness.uploader.close()
