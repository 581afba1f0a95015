"""Helpers that the journal's tests share: records, a store steered request by request, patience without pauses."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from holdfast.ids import JournalNumber
from holdfast.journal.fence import TakenOver, take_over
from holdfast.journal.journal import Journal
from holdfast.journal.records import CheckpointRecord
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo, ObjectStore, open_store
from holdfast.testing.stores import Fault, FaultyStore


def fresh_store() -> ObjectStore:
    return open_store(f"memory://{uuid4().hex}")


def no_wait(attempts: int) -> None:
    return None


def checkpoint(epoch: int, checkpoint_id: int = 1, **fields: Any) -> CheckpointRecord:
    given: dict[str, Any] = {
        "batch": 1,
        "run": 1,
        "batch_time_us": 1,
        "offsets": {},
        "source_objects": {},
        "manifests": [],
        "groups": {},
        "operators": {},
        "parallelism": 1,
        "max_parallelism": 128,
    }
    return CheckpointRecord(epoch=epoch, checkpoint_id=checkpoint_id, **{**given, **fields})


def start(store: ObjectStore) -> tuple[TakenOver, Journal]:
    """A JobMaster that has taken over."""
    taken = take_over(store, wait=no_wait)
    return taken, Journal(store, taken.epoch, taken.base_number, wait=no_wait)


def advance(journal: Journal, epoch: int, times: int, keep: int = 1) -> JournalNumber:
    """Append `times` checkpoints, and expire all but the newest `keep`."""
    written = [journal.append(checkpoint(epoch, turn)) for turn in range(times)]
    journal.expire(written[: len(written) - keep])
    return written[-1]


def numbers(store: ObjectStore) -> list[int]:
    parsed = [names.parse(info.name) for info in store.list(names.JOURNAL)]
    return [name.number for name in parsed if isinstance(name, names.JournalName)]


class Steered:
    """A store around `inner`: the k-th request of an operation suffers a fault, or lets something happen before it."""

    def __init__(self, inner: ObjectStore, plan: Mapping[tuple[str, int], Fault | Callable[[], object]]) -> None:
        self.counts: dict[str, int] = {}
        self._plan = plan
        self.store = FaultyStore(inner, self._decide)

    def _decide(self, operation: str, name: str) -> Fault | None:
        self.counts[operation] = self.counts.get(operation, 0) + 1
        planned = self._plan.get((operation, self.counts[operation]))
        if planned is None or isinstance(planned, Fault):
            return planned
        planned()
        return None


class LaggingStore(FaultyStore):
    """A store whose listings show objects only once `pass_time` was called `lag` times since they were put."""

    def __init__(self, inner: ObjectStore, lag: int) -> None:
        super().__init__(inner, lambda operation, name: None)
        self._lag = lag
        self._now = 0
        self._put_at: dict[str, int] = {}

    def pass_time(self, attempts: int = 0) -> None:
        self._now += 1

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        self._put_at[name] = self._now

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        found = super().list(prefix, after=after)
        return [info for info in found if self._put_at.get(info.name, 0) + self._lag <= self._now]
