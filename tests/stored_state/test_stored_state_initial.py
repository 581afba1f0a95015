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
        ({"totals": pa.table({"k": ["a"], "total": ["5"]})}, "column 'total' is string, expected int64"),
        ({"totals": pa.table({"k": ["a"], "total": [True]})}, "column 'total' is bool, expected int64"),
        ({"totals": pa.table({"k": ["a"], "total": [1.5]})}, "column 'total' is double, expected int64"),
        (
            {"totals": pa.table({"k": ["a", "b"], "total": pa.array([1, 2**63], pa.uint64())})},
            "column 'total' is uint64, expected int64, which cannot hold 9223372036854775808",
        ),
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


class Baskets(hf.ProcessFunction):
    """Counts rows, keeps the last value by name, and all values in order."""

    n = hf.ValueState(pa.int64(), default=0)
    last = hf.MapState(pa.string(), pa.int64())
    seen = hf.ListState(pa.int64())

    def process(self, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        self.last.put(row.name, row.v)
        self.seen.add(row.v)
        if row.v < 0:
            self.last.remove("x")
        yield {
            "k": row.k,
            "n": self.n.value(),
            "last": str(dict(self.last.items())),
            "seen": str(list(self.seen.get())),
        }


BASKET_ROWS = [
    [{"k": k, "name": name, "v": v} for k, name, v in batch]
    for batch in (
        [("a", "x", 1), ("b", "y", 2), ("a", "y", 3), ("c", "x", 4), ("a", "x", 5)],
        [("b", "x", 6), ("a", "z", -1), ("d", "x", 7), ("c", "y", 8)],
    )
]


def baskets(*batches: Any, **settings: Any) -> tuple[hf.Job, list[dict[str, Any]]]:
    """Run the batches; the job, and the last output of each key."""
    storage = f"memory://baskets-{next(_numbers)}"
    job, sink = hf.Job(None, name="baskets", storage=storage, parallelism=2, **settings), hf.MemorySink()
    source = TestSource(list(batches), "k STRING, name STRING, v BIGINT")
    out = "k STRING, n BIGINT, last STRING, seen STRING"
    job.read(source).key_by("k").process(Baskets(), out, name="baskets").write(sink)
    start(job, hf.available_now()).awaitTermination()
    return job, sorted({row["k"]: row for row in sink.rows()}.values(), key=lambda row: str(row["k"]))


@pytest.mark.parametrize("state", [None, hf.RocksDBState(cache_max_entries=2)], ids=["memory", "rocksdb"])
def test_maps_and_lists_go_on_from_the_rows_given(state: Any) -> None:
    _, whole = baskets(*BASKET_ROWS)
    first, _ = baskets(BASKET_ROWS[0])
    given = {
        name: hf.read_state(first.storage, "baskets", name).drop_columns("key_group")
        for name in ("values", "last", "seen")
    }
    _, rest = baskets(BASKET_ROWS[1], initial_state={"baskets": given}, state=state)
    assert rest == whole


def test_a_map_alone_may_be_given_and_its_keys_have_their_other_states_empty() -> None:
    entries = pa.table({"k": ["a", "e", "a"], "map_key": ["x", "x", "w"], "value": [10, 20, 30]})
    job, found = baskets(BASKET_ROWS[1], initial_state={"baskets": {"last": entries}})
    assert found[0] == {"k": "a", "n": 1, "last": "{'w': 30, 'z': -1}", "seen": "[-1]"}
    kept = hf.read_state(job.storage, "baskets", "last", key={"k": "e"}).to_pylist()
    assert [(row["map_key"], row["value"]) for row in kept] == [("x", 20)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nothing": INITIAL}, "names state 'nothing'; it has 'last', 'seen', 'values'"),
        ({"last": INITIAL}, "state 'last': its columns are k, total; expected k, map_key, value"),
        (
            {"seen": pa.table({"k": ["a", "a"], "position": [0, 2], "value": [1, 2]})},
            "the positions of each key's elements must be 0, 1, 2, … without a gap",
        ),
        (
            {"last": pa.table({"k": ["a", "a"], "map_key": ["x", "x"], "value": [1, 2]})},
            "the key {'k': 'a', '__map_key': 'x'} comes more than once",
        ),
        ({"last": pa.table({"k": ["a"], "map_key": pa.array([None], pa.string()), "value": [1]})}, "has nulls"),
    ],
)
def test_rows_of_maps_and_lists_that_do_not_fit_are_refused_by_name(given: Any, message: str) -> None:
    with pytest.raises(JobRefused) as refused:
        baskets(BASKET_ROWS[0], initial_state={"baskets": given})
    assert message in str(refused.value)


def test_operators_with_timers_are_refused_by_name() -> None:
    class Timed(Totals):
        def on_timer(self, timestamp: Any, ctx: Any) -> Any:
            return ()

    job = hf.Job(None, name="timed", storage="memory://timed", initial_state={"timed": INITIAL})
    source = job.read(TestSource([rows(("a", 1))], "k STRING, v BIGINT"))
    source.key_by("k").process(Timed(), "k STRING, total BIGINT", name="timed").write(hf.NoopSink())
    with pytest.raises(JobRefused, match="'timed': this operator also keeps timers"):
        start(job, hf.available_now())
