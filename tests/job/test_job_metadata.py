"""A quiet job that takes ten checkpoints a second for ten minutes keeps its metadata small."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from job_kit import Feed, new_job, store_of

import holdfast as hf
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.testing import ManualClock, start
from waiting import until

MINUTES, PER_SECOND = 10, 10
CHECKPOINTS = MINUTES * 60 * PER_SECOND
SUBTASKS = 2
METADATA_BYTES_MAX = 64_000
LOOK_EVERY = 25


class Remembers(hf.ProcessFunction):
    """A value, a list and a map: three tables a subtask."""

    count = hf.ValueState(pa.int64(), default=0)
    last = hf.ListState(pa.int64())
    seen = hf.MapState(pa.int64(), pa.int64())

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        self.count.update(self.count.value() + 1)
        self.last.update([self.count.value(), row.k])
        self.seen.put(self.count.value() % 3, row.k)
        yield {"k": row.k, "n": self.count.value()}


@dataclass
class Most:
    """The most of each that was seen."""

    objects: int = 0
    stored_bytes: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)

    def look(self, store: ObjectStore) -> None:
        listing = store.list("")
        self.objects = max(self.objects, len(listing))
        self.stored_bytes = max(self.stored_bytes, sum(info.size for info in listing))
        for info in listing:
            kind = type(names.parse(info.name)).__name__
            self.by_kind[kind] = max(self.by_kind.get(kind, 0), info.size)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_checkpoints_a_second_for_ten_minutes_leave_small_records_and_a_short_listing() -> None:
    clock = ManualClock()
    config = hf.CheckpointConfig(trigger=hf.every(1 / PER_SECOND))
    job = new_job(parallelism=SUBTASKS, checkpoint=config)
    feed = Feed("k BIGINT", name="feed")
    job.read(feed).key_by("k").process(Remembers(), "k BIGINT, n BIGINT", name="remembers").write(
        hf.CallbackSink(lambda table, number: None)
    )
    store = store_of(job)
    early, late = Most(), Most()
    begun_s = time.process_time()
    query = start(job, hf.processing_time(0), clock=clock)
    try:
        for number in range(1, CHECKPOINTS + 1):
            feed.put([{"k": number * 7919 % 1000}])
            until(lambda number=number: shown(query, "numInputRows") == number)
            clock.advance(1 / PER_SECOND)
            until(lambda number=number: shown(query, "numberOfCompletedCheckpoints") == number)
            if number % LOOK_EVERY == 0:
                (early if number <= CHECKPOINTS // 2 else late).look(store)
        assert len(query.totals.checkpoints) == CHECKPOINTS
    finally:
        query.stop()
    print(f"{CHECKPOINTS} checkpoints, {time.process_time() - begun_s:.0f} s of CPU; {early}; {late}")
    for kind in ("JournalName", "ManifestName", "CommittablesName"):
        assert max(early.by_kind[kind], late.by_kind[kind]) < METADATA_BYTES_MAX, kind
    # Of each subtask, the log since its last materialization, and the one before while no checkpoint has used that.
    objects_max = SUBTASKS * 2 * config.changelog_settings.log_handles_max + 60
    assert max(early.objects, late.objects) <= objects_max < CHECKPOINTS / 10
    assert late.stored_bytes <= 2 * early.stored_bytes


def shown(query: hf.Query, metric: str) -> float:
    """Show the figures of now; cheaper than `totals`, which copies a list of all checkpoints."""
    return query._master.progress.picture().values[metric]
