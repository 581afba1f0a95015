"""A new job begins from rows that a user gives, and restarts keep them."""

import itertools
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import JobRefused, SettingsError
from holdfast.testing import TestSource, start
from holdfast.testing.local import LocalCluster
from waiting import until

_numbers = itertools.count()


class Totals(hf.ProcessFunction):
    total = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + row.v)
        yield (row.k, self.total.value())


def job_of(initial: Any, *batches: Any, storage: str | None = None, **settings: Any) -> tuple[hf.Job, hf.MemorySink]:
    storage = storage or f"memory://initial-{next(_numbers)}"
    job = hf.Job(None, name="initial", storage=storage, parallelism=2, initial_state=initial, **settings)
    sink = hf.MemorySink(name="out")
    rows = job.read(TestSource(list(batches), "k STRING, v BIGINT", name="rows")).key_by("k")
    rows.process(Totals(), "k STRING, total BIGINT", name="totals").write(sink)
    rows.aggregate(n=hf.count(), worst=hf.max("v"), name="counts").write(hf.NoopSink(name="none"))
    return job, sink


def rows(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v} for k, v in pairs]


KEYS = [f"user-{number}" for number in range(500)]
INITIAL = pa.table({"k": KEYS, "total": pa.array(range(500), pa.int32())})


@pytest.mark.parametrize("state", [None, hf.RocksDBState(cache_max_entries=10)], ids=["memory", "rocksdb"])
@pytest.mark.parametrize("changelog", [True, False])
def test_a_new_job_goes_on_from_the_rows_given(state: Any, changelog: bool) -> None:
    settings = hf.CheckpointConfig(changelog=changelog)
    job, sink = job_of({"totals": INITIAL}, rows(("user-7", 1), ("new", 5)), state=state, checkpoint=settings)
    query = start(job, hf.available_now())
    query.awaitTermination()
    assert sorted((row["k"], row["total"]) for row in sink.rows()) == [("new", 5), ("user-7", 8)]
    kept = {row["k"]: row["total"] for row in hf.read_state(job.storage, "totals").to_pylist()}
    assert kept == {key: number for number, key in enumerate(KEYS)} | {"user-7": 8, "new": 5}


def test_rows_given_outlive_a_death_before_the_first_checkpoint() -> None:
    job, sink = job_of({"totals": INITIAL}, rows(("user-7", 1)), checkpoint=hf.CheckpointConfig(trigger=hf.manual()))
    clusters: list[LocalCluster] = []
    query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
    until(lambda: query.totals.batches > 0)
    clusters[0].kill(0)
    until(lambda: bool(query.restarts))
    query.processAllAvailable()
    query.stop()
    assert [row["total"] for row in sink.rows()] == [8]


def test_a_job_that_has_a_checkpoint_goes_on_from_that() -> None:
    job, _ = job_of({"totals": INITIAL}, rows(("user-7", 1)))
    start(job, hf.available_now()).awaitTermination()
    again, sink = job_of({"totals": INITIAL}, rows(("user-7", 1)), rows(("user-7", 1)), storage=job.storage)
    start(again, hf.available_now()).awaitTermination()
    assert [row["total"] for row in sink.rows()] == [9]


def test_the_state_of_one_job_is_the_beginning_of_another() -> None:
    first, _ = job_of(None, rows(("a", 1), ("b", 2), ("a", 3)))
    start(first, hf.available_now()).awaitTermination()
    read = {name: hf.read_state(first.storage, name).drop_columns("key_group") for name in ("totals", "counts")}
    second, sink = job_of(read, rows(("a", 10)))
    start(second, hf.available_now()).awaitTermination()
    assert [row["total"] for row in sink.rows()] == [14]
    counts = {
        row["k"]: (row["n.count"], row["worst.max"]) for row in hf.read_state(second.storage, "counts").to_pylist()
    }
    assert counts == {"a": (3, 10), "b": (1, 2)}


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ({"nobody": INITIAL}, "names operator 'nobody', which this job does not have; it has 'totals', 'counts'"),
        (
            {"totals": INITIAL.drop_columns("k")},
            "key column 'k' is missing; it has the key columns k and the state columns",
        ),
        ({"totals": INITIAL.append_column("more", INITIAL["total"])}, "column 'more' is none of its own"),
        ({"totals": pa.table({"k": ["a"], "total": ["x"]})}, "column 'total' is string, expected int64"),
        ({"totals": pa.table({"k": ["a", None], "total": [1, 2]})}, "key column 'k' has nulls"),
        ({"totals": pa.table({"k": ["a", "a"], "total": [1, 2]})}, "the key {'k': 'a'} comes more than once"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name_at_the_start(initial: Any, message: str) -> None:
    job, _ = job_of(initial, rows(("a", 1)))
    with pytest.raises(JobRefused) as refused:
        start(job, hf.available_now())
    assert message in str(refused.value)


def test_values_that_are_no_table_are_refused() -> None:
    with pytest.raises(SettingsError, match="initial_state of operator 'totals' is a list"):
        job_of({"totals": [1, 2]})


def test_operators_with_maps_are_refused_by_name() -> None:
    class Maps(hf.ProcessFunction):
        seen = hf.MapState(pa.string(), pa.int64())

        def process(self, row: Any, ctx: Any) -> Any:
            self.seen.put(row.k, row.v)
            yield (row.k,)

    job = hf.Job(None, name="maps", storage="memory://maps", initial_state={"maps": INITIAL})
    source = job.read(TestSource([rows(("a", 1))], "k STRING, v BIGINT"))
    source.key_by("k").process(Maps(), "k STRING", name="maps").write(hf.NoopSink())
    with pytest.raises(JobRefused, match=r"'maps': this operator also keeps seen\.entries, seen\.order"):
        start(job, hf.available_now())
