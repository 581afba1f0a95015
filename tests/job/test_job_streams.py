"""Results of jobs: streams, aggregates, functions, several operators and sinks, in process."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from job_kit import new_job, newest, pairs, script, tuples

import holdfast as hf
from holdfast.errors import JobRefused, SettingsError
from holdfast.testing import Abort, Eof, ManualClock, TestSource, run

ROWS = pairs((1, 10), (2, 20), (1, 5))


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "v", pc.multiply(batch.column("v"), 2))


def split_up(batch: pa.RecordBatch):
    yield batch.slice(0, 1)
    yield batch.slice(1)


class Running(hf.ProcessFunction):
    total = hf.ValueState(pa.int64(), default=0)

    def process(self, row, ctx):
        total = self.total.value() + row.v
        self.total.update(total)
        yield {"k": row.k, "total": total}


class RunningByBatch(hf.BatchFunction):
    total = hf.ValueState(pa.int64(), default=0)

    def process(self, batch, keys, groups, ctx):
        sums = np.bincount(groups, weights=batch.column("v").to_numpy(), minlength=keys.num_rows).astype(np.int64)
        total = self.total.values().to_numpy() + sums
        self.total.update(total)
        yield pa.record_batch([keys["k"], pa.array(total)], names=["k", "total"])


def test_emit_changes_gives_one_row_per_key_touched_in_a_batch():
    job, sink = new_job(), hf.MemorySink()
    stream = job.read(script(ROWS, pairs((2, 1)))).key_by("k")
    stream.aggregate(n=hf.count(), total=hf.sum("v"), least=hf.min("v"), most=hf.max("v")).write(sink)
    run(job)
    assert tuples(sink) == [(1, 2, 15, 5, 10), (2, 1, 20, 20, 20), (2, 2, 21, 1, 20)]


def test_emit_every_gives_one_row_per_input_row_with_running_values():
    job, sink = new_job(), hf.MemorySink()
    stream = job.read(script(ROWS, pairs((2, 1)))).key_by("k")
    stream.aggregate("every", n=hf.count(), mean=hf.mean("v"), first=hf.first("v"), last=hf.last("v")).write(sink)
    run(job)
    assert tuples(sink) == [(1, 1, 10.0, 10, 10), (2, 1, 20.0, 20, 20), (1, 2, 7.5, 10, 5), (2, 2, 10.5, 20, 1)]


def test_output_columns_are_the_keys_in_key_by_order_and_then_the_aggregates_in_keyword_order():
    job, sink = new_job(), hf.MemorySink()
    job.read(script(ROWS)).key_by("v", "k").aggregate(b=hf.count(), a=hf.sum("v")).write(sink)
    run(job)
    assert sink.table().schema.names == ["v", "k", "b", "a"]


@pytest.mark.parametrize("function", [Running(), RunningByBatch()])
def test_a_function_keeps_state_per_key_over_batches(function):
    job, sink = new_job(parallelism=2), hf.MemorySink()
    job.read(script(ROWS, pairs((1, 1)))).key_by("k").process(function, "k BIGINT, total BIGINT").write(sink)
    run(job)
    assert newest(sink.rows(), "k") == {1: {"total": 16}, 2: {"total": 20}}


def test_map_batches_gives_one_record_batch_or_several():
    job, sink = new_job(), hf.MemorySink()
    job.read(script(ROWS)).map_batches(doubled, "k BIGINT, v BIGINT").map_batches(split_up, "k BIGINT, v BIGINT").write(
        sink
    )
    run(job)
    assert tuples(sink) == [(1, 20), (2, 40), (1, 10)]


def test_union_takes_the_rows_of_both_streams():
    job, sink = new_job(), hf.MemorySink()
    left, right = job.read(script(ROWS)), job.read(script(pairs((1, 100)), pairs((3, 1))))
    left.union(right.map_batches(doubled, "k BIGINT, v BIGINT")).key_by("k").aggregate(total=hf.sum("v")).write(sink)
    run(job)
    assert newest(sink.rows(), "k") == {1: {"total": 215}, 2: {"total": 20}, 3: {"total": 2}}


def test_several_keyed_operators_run_one_behind_another():
    job, sink = new_job(parallelism=3, task_managers=2), hf.MemorySink()
    per_key = job.read(script(ROWS, pairs((3, 1), (1, 1)))).key_by("k").aggregate("every", n=hf.count(), v=hf.last("v"))
    per_count = per_key.key_by("n").aggregate("every", keys=hf.count(), total=hf.sum("v"))
    per_count.key_by("keys").process(Counting(), "keys BIGINT, seen BIGINT").write(sink)
    run(job)
    # (n, keys): (1, 1) (1, 2) (2, 1) (1, 3) (3, 1)
    assert newest(sink.rows(), "keys") == {1: {"seen": 3}, 2: {"seen": 1}, 3: {"seen": 1}}


class Counting(hf.ProcessFunction):
    seen = hf.ValueState(pa.int64(), default=0)

    def process(self, row, ctx):
        self.seen.update(self.seen.value() + 1)
        yield {"keys": row.keys, "seen": self.seen.value()}


def test_one_stream_goes_to_several_sinks_and_a_source_is_read_by_two_branches():
    job, raw, first, second = new_job(), hf.MemorySink(), hf.MemorySink(), hf.MemorySink()
    source = job.read(script(ROWS))
    source.write(raw)
    counts = source.key_by("k").aggregate(n=hf.count())
    counts.write(first)
    counts.write(second)
    source.map_batches(doubled, "k BIGINT, v BIGINT").key_by("v").aggregate(n=hf.count()).write(
        third := hf.MemorySink()
    )
    query = run(job)
    assert tuples(raw) == [(1, 10), (2, 20), (1, 5)]
    assert tuples(first) == tuples(second) == [(1, 2), (2, 1)]
    assert sorted(tuples(third)) == [(10, 1), (20, 1), (40, 1)]
    assert query.lastProgress["numInputRows"] == 3, "a source read by several branches counts once"


def test_a_job_without_key_by_needs_no_task_manager():
    job, sink = new_job(), hf.MemorySink()
    job.read(script(ROWS, ROWS)).map_batches(doubled, "k BIGINT, v BIGINT").write(sink)
    query = run(job)
    assert len(sink.rows()) == 6
    assert query.taskManagers == []


def test_a_lost_task_manager_repeats_batches_since_the_checkpoint_and_no_row_counts_twice():
    job, sink = new_job(parallelism=2, task_managers=2), hf.MemorySink()
    script_ = TestSource([ROWS, ROWS, Abort(), ROWS, Abort(), ROWS, Eof(), ROWS], "k BIGINT, v BIGINT")
    job.read(script_).key_by("k").aggregate("every", n=hf.count()).write(sink)
    query = run(job)
    assert sorted(tuples(sink)) == sorted([(1, n) for n in range(1, 9)] + [(2, n) for n in range(1, 5)])
    assert len(query.restarts) == 2


def test_batch_time_is_the_same_for_all_rows_of_a_batch_and_follows_the_given_clock():
    class Times(hf.ProcessFunction):
        def process(self, row, ctx):
            yield {"k": row.k, "at": ctx.batch_time}

    job, sink = new_job(), hf.MemorySink()
    job.read(script(ROWS)).key_by("k").process(Times(), "k BIGINT, at TIMESTAMP").write(sink)
    run(job, clock=ManualClock(5.0))
    assert {row["at"].timestamp() for row in sink.rows()} == {5.0}


def test_a_callback_gets_rows_and_number_after_each_checkpoint():
    calls = []
    job = new_job()
    job.read(script(ROWS)).write(hf.CallbackSink(lambda table, number: calls.append((table.num_rows, number))))
    query = run(job)
    assert calls == [(3, query.totals.checkpoints[0].number)]


def test_a_step_is_never_called_with_an_empty_batch():
    sizes = []

    def odd(batch):
        return batch.filter(pa.array([value % 2 == 1 for value in batch.column("v").to_pylist()]))

    def seen(batch):
        sizes.append(batch.num_rows)
        return batch

    sink, job = hf.MemorySink(), new_job()
    stream = job.read(script(pairs((1, 2)), pairs((1, 3)), pairs((1, 4))))
    stream.map_batches(odd, "k BIGINT, v BIGINT").map_batches(seen, "k BIGINT, v BIGINT").write(sink)
    run(job)
    assert sizes == [1]
    assert tuples(sink) == [(1, 3)]


def test_streams_of_different_columns_unite_by_name_with_a_tag():
    sink, job = hf.MemorySink(), new_job()
    clicks = job.read(script([{"k": 1, "page": "a"}], schema="k BIGINT, page STRING"))
    orders = job.read(script([{"price": 5, "k": 1}, {"price": 7, "k": 2}], schema="price BIGINT, k BIGINT"))
    both = clicks.union_by_name(orders, tag="side")
    both.key_by("k").aggregate(n=hf.count(), orders=hf.count("price"), side=hf.last("side")).write(hf.NoopSink())
    both.write(sink)
    run(job)
    assert sorted(map(str, sink.rows())) == [
        "{'k': 1, 'page': 'a', 'price': None, 'side': 'left'}",
        "{'k': 1, 'page': None, 'price': 5, 'side': 'right'}",
        "{'k': 2, 'page': None, 'price': 7, 'side': 'right'}",
    ]
    assert "union_by_name" in repr(both)


def test_streams_that_do_not_unite_by_name_say_which_column():
    def refused(schema, **settings):
        job = new_job()
        left, right = job.read(script(schema="k BIGINT, v BIGINT")), job.read(script(schema=schema))
        left.union_by_name(right, **settings).write(hf.NoopSink())
        run(job)

    with pytest.raises(hf.JobRefused, match="column 'v' has type int64 in one stream and string in another"):
        refused("k BIGINT, v STRING")
    with pytest.raises(hf.JobRefused, match=r"union_by_name\(tag='k'\): a stream has a column of that name"):
        refused("k BIGINT", tag="k")


def test_columns_may_be_given_as_a_list():
    job, sink = new_job(), hf.MemorySink()
    job.read(script(ROWS)).select(["k", "v"]).key_by(["k"]).aggregate(v=hf.sum("v"), name="sums").write(sink)
    run(job)
    assert sorted(row["v"] for row in sink.rows()) == [15, 20]


def test_a_missing_column_is_refused_with_all_columns_of_the_source():
    rows = new_job().read(script(ROWS))
    with pytest.raises(JobRefused, match=r"there is no column 'usr' in its input \(k, v\)"):
        rows.select("usr")


@pytest.mark.parametrize("wrong", [{"checkpoint": "10s"}, {"task_manager": {"memory": "1GB"}}, {"failover": 3}])
def test_a_setting_that_is_no_object_of_settings_is_refused_with_an_example(wrong: dict[str, Any]):
    (name,) = wrong
    with pytest.raises(SettingsError, match=f"{name}=.* is not allowed: for example {name}="):
        new_job(**wrong)
