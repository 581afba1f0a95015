"""Small jobs of the usual kinds over generated rows. Running them compiles the kernels that usual jobs call."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.testing import Abort, Eof, TestSource, run

SCHEMA = "k BIGINT, s STRING, x BIGINT, y DOUBLE, d DATE, t TIMESTAMP"
KEYS = 3
Shape = Callable[[hf.Job, hf.Stream], None]


def run_usual_jobs() -> Iterator[None]:
    """Run the jobs, each with both state backends."""
    for shape in _SHAPES:
        for state in (hf.HashMapState(), hf.RocksDBState()):
            _run(shape, state)
            yield


def _run(shape: Shape, state: hf.HashMapState | hf.RocksDBState) -> None:
    """Run a job over generated rows. It loses its TaskManagers once, so that it also restores its tables."""
    job = hf.Job(None, name="kernels", storage=f"memory://kernels-{uuid.uuid4()}", state=state)
    script = [_rows(0), _rows(0), Abort(), _rows(60), Eof(drain=True)]
    shape(job, job.read(TestSource(script, SCHEMA)).with_watermark("t", "0s"))
    run(job)


def _rows(second: int) -> pa.RecordBatch:
    numbers = [*range(KEYS), 0]
    texts = [f"{number} {'long' * 9 * number}" for number in numbers]
    times = pa.array([(second + number) * 1_000_000 for number in numbers], pa.timestamp("us", "UTC"))
    reals = [float(number) if number else None for number in numbers]
    columns = [
        pa.array(numbers),
        pa.array(texts),
        pa.array(numbers),
        pa.array(reals),
        pa.array(numbers, pa.date32()),
        times,
    ]
    return pa.record_batch(columns, names=["k", "s", "x", "y", "d", "t"])


def _aggregates() -> dict[str, Any]:
    number = {f"{fn.__name__}_{column}": fn(column) for fn in (hf.sum, hf.mean, hf.stddev) for column in "xy"}
    any_type = {
        f"{fn.__name__}_{column}": fn(column) for fn in (hf.min, hf.max, hf.first, hf.last) for column in "xysdt"
    }
    return {"n": hf.count(), "m": hf.count("y"), **number, **any_type}


def _groups(job: hf.Job, rows: hf.Stream) -> None:
    for number, keys in enumerate((["k"], ["s"], ["k", "s"], ["d"])):
        rows.key_by(*keys).aggregate(name=f"all-{number}", **_aggregates()).write(hf.NoopSink())
    rows.key_by("k").aggregate(name="changes", emit="changes", n=hf.count(), t=hf.sum("x")).write(hf.NoopSink())


def _sets(job: hf.Job, rows: hf.Stream) -> None:
    keyed = rows.key_by("s")
    sets: dict[str, Any] = {f"set_{column}": hf.collect_set(column) for column in "xs"}
    counts: dict[str, Any] = {f"n_{column}": hf.count_distinct(column) for column in "xs"}
    near: dict[str, Any] = {f"near_{column}": hf.approx_count_distinct(column) for column in "xs"}
    others: dict[str, Any] = {"list": hf.collect_list("x"), "by": hf.max_by("x", "y"), "least": hf.min_by("s", "t")}
    keyed.aggregate(name="sets", **sets, **counts, **near, **others).write(hf.NoopSink())


def _windows(job: hf.Job, rows: hf.Stream) -> None:
    windows: tuple[Any, ...] = (hf.window("t", "10s"), hf.window("t", "10s", "5s"), hf.session_window("t", "5s"))
    for number, window in enumerate(windows):
        keyed = rows.key_by("s", window)
        keyed.aggregate(name=f"windows-{number}", n=hf.count(), t=hf.sum("x"), m=hf.max("y")).write(hf.NoopSink())


def _selections(job: hf.Job, rows: hf.Stream) -> None:
    rows.drop_duplicates("s", name="once").write(hf.NoopSink())
    rows.drop_duplicates("k", within="10s", name="once-for-a-time").write(hf.NoopSink())
    rows.key_by("k").last(by="t", name="newest").write(hf.NoopSink())
    rows.key_by("k").top(2, by="x", name="largest").write(hf.NoopSink())


def _joins(job: hf.Job, rows: hf.Stream) -> None:
    left, right = rows.key_by("k"), rows.key_by("k")
    hows: tuple[Any, ...] = ("inner", "left")
    for number, how in enumerate(hows):
        left.join(right, within=("-5s", "5s"), how=how, suffix="_right", name=f"join-{number}").write(hf.NoopSink())


class _Counting(hf.ProcessFunction):
    n = hf.ValueState(default=0)
    values = hf.ListState(pa.int64())
    by_text: Any = hf.MapState(pa.string(), pa.int64())

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, object]]:
        self.n.update(self.n.value() + 1)
        self.values.add(row.x)
        self.by_text.put(str(row.s), self.n.value())
        yield {"n": self.n.value()}


def _functions(job: hf.Job, rows: hf.Stream) -> None:
    for number, key in enumerate("ks"):
        rows.key_by(key).process(_Counting(), "n BIGINT", name=f"counting-{number}").write(hf.NoopSink())


_SHAPES: tuple[Shape, ...] = (_groups, _sets, _windows, _selections, _joins, _functions)
