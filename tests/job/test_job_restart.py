"""Starting a job again on its storage: where it goes on, which parts of its shape may change, and refusals."""

from typing import ClassVar

import pyarrow as pa
import pytest
from job_kit import Feed, new_job, new_storage, newest, pairs, script, store_of, tuples

import holdfast as hf
from holdfast.sinks.base import Sink
from holdfast.sources.sequence import SequenceEnumerator
from holdfast.state.table import StateTable
from holdfast.storage.store import ObjectStore
from holdfast.testing import run, start
from waiting import until

ROWS = pairs((1, 10), (2, 20), (1, 5))
MORE = pairs((1, 1), (3, 3))


class Sum(hf.ProcessFunction):
    total = hf.ValueState(pa.int64(), default=0)

    def process(self, row, ctx):
        self.total.update(self.total.value() + row.v)
        yield {"k": row.k, "total": self.total.value()}


def test_a_query_whose_commits_fail_names_the_operator_and_the_reason(monkeypatch) -> None:
    def fail(table: StateTable) -> None:
        if len(table):
            raise ValueError("a value that fits nowhere")
        commit(table)

    commit = StateTable.commit
    monkeypatch.setattr(StateTable, "commit", fail)
    lost = hf.FailoverConfig(losses_max=1, backoff_first="1ms", backoff_max="1ms")
    with pytest.raises(hf.QueryFailed, match=r"'op', subtask 0: commit of batch \d+ failed: a value that fits nowhere"):
        run(counted(new_storage(), pairs((1, 1)), name="op", failover=lost))


def counted(storage: str, *batches, name: str | None = None, key: str = "k", sink: Sink | None = None, **settings):
    """A job that counts per key; restarted with more batches it has seen the first ones."""
    job = new_job(storage, **settings)
    stream = job.read(script(*batches, name="script")).key_by(key).aggregate(n=hf.count(), name=name)
    stream.write(sink or hf.MemorySink(name="out"))
    return job


def contents(store: ObjectStore) -> dict[str, bytes]:
    return {info.name: store.get(info.name) for info in store.list("")}


def refused(storage: str, job: hf.Job, match: str) -> None:
    """The job is refused with this reason, and its storage is as it was."""
    before = contents(store_of(job))
    with pytest.raises(hf.JobRefused, match=match):
        run(job)
    assert contents(store_of(job)) == before


def test_a_job_goes_on_from_its_last_checkpoint():
    storage, sink = new_storage(), hf.MemorySink(name="out")
    first = run(counted(storage, ROWS, sink=sink))
    second = run(counted(storage, ROWS, MORE, sink=sink))
    assert tuples(sink) == [(1, 2), (2, 1), (1, 3), (3, 1)]
    assert first.id == second.id and first.runId != second.runId


def test_a_job_with_nothing_new_publishes_nothing_again():
    storage, sink = new_storage(), hf.MemorySink(name="out")
    run(counted(storage, ROWS, sink=sink))
    query = run(counted(storage, ROWS, sink=sink))
    assert tuples(sink) == [(1, 2), (2, 1)]
    assert query.lastProgress is None


@pytest.mark.parametrize(
    "shape", [pytest.param((1, 1), marks=pytest.mark.long), pytest.param((4, 1), marks=pytest.mark.long), (3, 2)]
)
def test_the_same_job_runs_on_with_another_parallelism_and_other_task_managers(shape):
    storage, sink = new_storage(), hf.MemorySink(name="out")
    keys = [{"k": key, "v": key} for key in range(50)]
    for parallelism, task_managers in [(1, 1), (4, 1), (3, 2), shape]:
        seen = counted(
            storage, *[keys] * 5, sink=sink, parallelism=parallelism, task_managers=task_managers, max_parallelism=16
        )
        seen.declared.sources["script"].length = len(tuples(sink)) // 50 + 1
        run(seen)
    assert sorted(tuples(sink)) == sorted((key, n) for key in range(50) for n in range(1, 5))


def test_state_of_functions_is_rescaled_with_everything_else():
    storage, sink = new_storage(), hf.MemorySink(name="out")
    batches = [[{"k": key, "v": key} for key in range(20)]] * 3
    for done, parallelism in enumerate([1, 4, 3], 1):
        job = new_job(storage, parallelism=parallelism, task_managers=min(parallelism, 2))
        stream = job.read(script(*batches[:done], name="script")).key_by("k").process(Sum(), "k BIGINT, total BIGINT")
        stream.write(sink)
        run(job)
    assert newest(sink.rows(), "k") == {key: {"total": 3 * key} for key in range(20)}


def test_a_new_aggregate_on_existing_keys_starts_null_and_a_new_count_at_zero():
    storage, sink = new_storage(), hf.MemorySink(name="out")
    run(counted(storage, ROWS))
    job = new_job(storage)
    stream = job.read(script(ROWS, pairs((2, None)), name="script")).key_by("k")
    stream.aggregate(n=hf.count(), values=hf.count("v"), total=hf.sum("v")).write(sink)
    run(job)
    assert tuples(sink)[-1] == (2, 2, 0, None)


def test_a_renamed_operator_is_refused_with_both_names():
    storage = new_storage()
    run(counted(storage, ROWS, name="per-key"))
    refused(
        storage,
        counted(storage, ROWS, MORE, name="by-key"),
        r"state of operator 'per-key', but the job has no operator of that name \(it has: by-key\).*name='per-key'.*"
        r"drop_state=\['per-key'\]",
    )


def test_an_operator_whose_state_is_given_up_starts_anew():
    storage, sink = new_storage(), hf.MemorySink(name="out")
    run(counted(storage, ROWS, name="per-key"))
    run(counted(storage, ROWS, MORE, name="by-key", drop_state=["per-key"], sink=sink))
    assert tuples(sink)[-2:] == [(1, 1), (3, 1)]
    run(counted(storage, ROWS, MORE, MORE, name="by-key", sink=sink))
    assert newest(sink.rows(), "k") == {1: {"n": 2}, 3: {"n": 2}}


def test_a_changed_key_column_is_refused_with_both():
    storage = new_storage()
    run(counted(storage, ROWS, name="per-key"))
    refused(
        storage,
        counted(storage, ROWS, MORE, name="per-key", key="v"),
        r"operator 'per-key': its stored state is keyed by \(k\), the job declares key_by\(v\).*drop_state",
    )


def test_a_changed_type_of_a_key_is_refused_with_both():
    storage = new_storage()
    run(counted(storage, ROWS, name="per-key"))
    job = new_job(storage)
    text = job.read(script(schema="k STRING, v BIGINT", name="script"))
    text.key_by("k").aggregate(n=hf.count(), name="per-key").write(hf.NoopSink(name="out"))
    refused(storage, job, r"operator 'per-key'.*stored with the key columns \(k int64\), declared with \(k string\)")


def test_a_changed_type_of_an_aggregate_is_refused_with_both():
    storage = new_storage()
    for schema in ("k BIGINT, v BIGINT", "k BIGINT, v DOUBLE"):
        job = new_job(storage)
        stream = job.read(script(schema=schema, name="script")).key_by("k")
        stream.aggregate(most=hf.max("v"), name="per-key").write(hf.MemorySink(name="out"))
        if schema.endswith("BIGINT"):
            job.declared.sources["script"] = script(ROWS, schema=schema, name="script")
            run(job)
    refused(storage, job, r"operator 'per-key', state 'most.max': stored as int64, declared as double")


def test_a_changed_type_of_a_state_is_refused_with_both():
    class OfText(Sum):
        total = hf.ValueState(pa.string())

    storage = new_storage()
    for function in (Sum(), OfText()):
        job = new_job(storage)
        stream = job.read(script(ROWS, name="script")).key_by("k").process(function, "k BIGINT, total BIGINT")
        stream.write(hf.MemorySink(name="out"))
        if not isinstance(function, OfText):
            run(job)
    refused(storage, job, r"state 'total': stored as int64, declared as string.*drop_state=\['process-1'\]")


def test_a_source_that_is_gone_is_refused_and_can_be_given_up():
    storage = new_storage()
    run(counted(storage, ROWS))
    job = new_job(storage)
    job.read(Feed(name="feed")).key_by("k").aggregate(n=hf.count()).write(hf.MemorySink(name="out"))
    refused(storage, job, r"positions of source 'script', but the job has no source of that name \(it has: feed\)")
    run(job, drop_state=["script"])


def left_unpublished(storage: str) -> int:
    """Run a job whose sink cannot be reached, to its first checkpoint; the record's number."""
    job = new_job(storage)
    job.read(script(ROWS, name="script")).write(hf.CallbackSink(unreachable, name="callback"))
    query = start(job, hf.processing_time())
    until(lambda: query.lastProgress is not None)
    number = query.trigger_checkpoint(30)
    query.stop()
    return number


def unreachable(table, number):
    raise ConnectionRefusedError("nobody listens")


def test_a_sink_that_is_gone_is_refused_while_output_of_it_is_unpublished():
    storage = new_storage()
    left_unpublished(storage)
    job = new_job(storage)
    job.read(script(ROWS, name="script")).write(hf.MemorySink(name="memory"))
    refused(storage, job, r"unpublished output of sink 'callback', but the job has no sink of that name")
    run(job, drop_state=["callback"])


def test_output_that_a_stopped_query_left_unpublished_is_published_first_and_under_its_number():
    storage, calls = new_storage(), []
    number = left_unpublished(storage)
    job = new_job(storage)
    sink = hf.CallbackSink(lambda table, number: calls.append((number, table["v"].to_pylist())), name="callback")
    job.read(script(ROWS, MORE, name="script")).write(sink)
    run(job)
    assert calls[0] == (number, [10, 20, 5])
    assert [values for _, values in calls[1:]] == [[1, 3]]


def test_a_higher_parallelism_than_the_storage_has_key_groups_is_refused():
    storage = new_storage()
    run(counted(storage, ROWS, max_parallelism=2, parallelism=2))
    refused(storage, counted(storage, ROWS, parallelism=3), r"parallelism=3 is above the 2 key groups.*new storage")


def test_another_max_parallelism_than_the_stored_one_is_refused():
    storage = new_storage()
    run(counted(storage, ROWS, max_parallelism=2))
    refused(storage, counted(storage, ROWS, max_parallelism=4), r"max_parallelism is 2 for the life of this storage")


def test_a_sequence_with_another_number_of_splits_is_refused_with_both():
    storage = new_storage()
    for splits in (2, 3):
        job = new_job(storage)
        job.read(hf.SequenceSource(rows=10, splits=splits, name="numbers")).write(hf.MemorySink(name="out"))
        if splits == 2:
            run(job)
    with pytest.raises(hf.JobRefused, match=r"'numbers'.*the splits \['0', '1'\], the source has \['0', '1', '2'\]"):
        run(job)


def summed(storage: str, function, sink: Sink, *batches):
    job = new_job(storage)
    stream = job.read(script(*batches, name="script")).key_by("k").process(function, "k BIGINT, total BIGINT", name="f")
    stream.write(sink)
    return job


class Narrow(hf.ProcessFunction):
    total = hf.ValueState(pa.int16(), default=0)

    def process(self, row, ctx):
        self.total.update(self.total.value() + row.v)
        yield {"k": row.k, "total": self.total.value()}


class Wide(Narrow):
    total = hf.ValueState(pa.int64(), default=0)
    last = hf.MapState(pa.int64(), pa.int64())

    def process(self, row, ctx):
        self.last.put(row.v, (self.last.get(row.v) or 0) + 1)
        yield from super().process(row, ctx)


def test_a_type_with_more_room_and_states_of_their_own_tables_come_and_go():
    storage, sink = new_storage(), hf.MemorySink(name="out")
    run(summed(storage, Narrow(), sink, ROWS))
    run(summed(storage, Wide(), sink, ROWS, pairs((1, 2**40))))
    assert tuples(sink) == [(1, 10), (2, 20), (1, 15), (1, 15 + 2**40)]
    refused(storage, summed(storage, Narrow(), sink, ROWS), r"'f', state 'total': stored as int64, declared as int16")
    without = type("Without", (Wide,), {"last": None, "process": Narrow.process})
    run(summed(storage, without(), sink, ROWS, pairs((1, 2**40)), pairs((2, 1))))
    assert tuples(sink)[-1] == (2, 21)


def test_a_state_that_becomes_a_map_is_refused():
    class Mapped(Narrow):
        total = hf.MapState(pa.int64(), pa.int64())

    storage, sink = new_storage(), hf.MemorySink(name="out")
    run(summed(storage, Narrow(), sink, ROWS))
    refused(storage, summed(storage, Mapped(), sink, ROWS), "'f', state 'total': stored as a value, declared as a map")


class Heard(SequenceEnumerator):
    """Notes the checkpoints that it is told of, in order, and the questions in between."""

    notes: ClassVar[list[object]] = []

    def completed(self, offsets):
        self.notes.append(offsets)

    def plan(self, start, until, rows_max, bytes_max):
        if self.notes[-1:] != ["planned"]:
            self.notes.append("planned")
        return super().plan(start, until, rows_max, bytes_max)


class HeardSource(hf.SequenceSource):
    def enumerator(self, context):
        return Heard(self, context.source, context.clock)


def test_a_source_hears_of_the_checkpoint_that_a_start_begins_from_and_of_its_last_one():
    storage = new_storage()

    def job(rows):
        made = new_job(storage)
        made.read(HeardSource(rows, name="numbers")).write(hf.NoopSink(name="out"))
        return made

    Heard.notes.clear()
    run(job(20))
    assert Heard.notes[:2] == ["planned", {"0": 20}]
    Heard.notes.clear()
    run(job(50))
    assert Heard.notes[:3] == [{"0": 20}, "planned", {"0": 50}]
    Heard.notes.clear()
    query = start(job(90), hf.processing_time())
    query.processAllAvailable()
    query.stop()
    assert [note for note in Heard.notes if note != "planned"] == [{"0": 50}, {"0": 90}]


@pytest.mark.parametrize("again", ["processing_time", "available_now"])
def test_where_a_source_begins_is_recorded_before_its_first_row(tmp_path, again):
    """Asked again after a death, "latest" would pass over rows since the first start."""
    storage, sink = new_storage(), hf.MemorySink(name="out")

    def file(number):
        hidden = tmp_path / f"_{number}"
        hidden.write_text(f"k\n{number}\n")
        hidden.rename(tmp_path / f"{number}.csv")

    def job():
        made = new_job(storage)
        made.read(hf.FileSource(f"{tmp_path}/*.csv", schema="k BIGINT", name="files", starting="latest")).write(sink)
        return made

    file(0)
    query = start(job(), hf.processing_time())
    until(lambda: query.totals.checkpoints)
    assert query.totals.rows == 0
    file(1)
    until(lambda: query.totals.rows == 1)
    query.stop()
    assert not sink.rows(), "no checkpoint holds the row"
    file(2)
    query = start(job(), getattr(hf, again)())
    query.processAllAvailable() if again == "processing_time" else query.awaitTermination()
    query.stop()
    assert sorted(tuples(sink)) == [(1,), (2,)]


def test_a_job_that_begins_at_the_latest_rows_and_ends_with_what_is_there_has_recorded_its_beginning(tmp_path):
    (tmp_path / "0.csv").write_text("k\n0\n")
    storage, sink = new_storage(), hf.MemorySink(name="out")
    for _ in range(2):
        job = new_job(storage)
        source = hf.FileSource(f"{tmp_path}/*.csv", schema="k BIGINT", name="files", starting="latest")
        job.read(source).key_by("k").aggregate(n=hf.count()).write(sink)
        run(job)
        (tmp_path / "1.csv").write_text("k\n1\n")
    assert tuples(sink) == [(1, 1)]
