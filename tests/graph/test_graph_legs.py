"""A program's graph is a graph: nodes are resolved and rows read once, however many ways lead through it."""

import sys
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import JobRefused
from holdfast.graph import resolving
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.program import Program, Transform
from holdfast.graph.regions import explained
from holdfast.testing import TestSource, run

KEYS = pa.RecordBatch.from_pydict({"k": list(range(100))})
field = pc.field("k")


def new_job(name: str = "legs") -> hf.Job:
    return hf.Job(None, name=name, storage=f"memory://{name}", checkpoint=hf.CheckpointConfig(trigger=hf.manual()))


def numbers(job: hf.Job, name: str = "numbers") -> hf.Stream:
    return job.read(hf.SequenceSource(rows=100, splits=4, name=name))


def built(job: hf.Job) -> Program:
    return build_program(job.declared, lambda fn, schema: fn(schema), None)


def divided(stream: hf.Stream, stages: int, by_name: bool = False) -> hf.Stream:
    """Divide a stream and unite it again, several times."""
    for stage in range(stages):
        below, above = stream.where(field < stage), stream.where(field >= stage)
        stream = below.union_by_name(above) if by_name else below.union(above)
    return stream


@pytest.mark.parametrize("by_name", [False, True])
def test_a_stream_that_is_divided_and_united_at_each_of_many_stages_is_a_single_leg(by_name: bool) -> None:
    job = new_job()
    divided(job.read(TestSource([KEYS], "k BIGINT")), 60, by_name).write(hf.NoopSink())
    [leg] = built(job).legs
    assert len(leg.nodes) <= 1 + 60 * (5 if by_name else 3)
    others = numbers(new_job()).select(k=pc.field("value"))
    assert "further ways" in explained(built(job)) and "further ways" in repr(divided(others, 60))


@pytest.mark.parametrize("by_name", [False, True])
def test_rows_come_once_through_all_stages_and_a_batch_stays_a_batch(by_name: bool) -> None:
    job, sink = new_job(f"stages-{by_name}"), hf.MemorySink()
    sizes: list[int] = []

    def noted(rows: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(rows.num_rows)
        return rows

    divided(job.read(TestSource([KEYS], "k BIGINT")), 30, by_name).map_batches(noted, "k BIGINT").write(sink)
    run(job)
    assert sorted(row["k"] for row in sink.rows()) == list(range(100))
    assert sizes == [100]


@pytest.mark.parametrize("tagged", [False, True])
def test_declarations_of_united_sources_cost_in_proportion_to_their_number(tagged: bool) -> None:
    def calls(count: int) -> int:
        job = new_job()
        stream = numbers(job)
        for number in range(1, count):
            tag = f"tag{number}" if tagged else None
            stream = stream.union_by_name(numbers(job, f"n{number}"), tag=tag)
        stream.write(hf.NoopSink())
        found = 0

        def counted(frame: Any, event: str, argument: Any) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(counted)
        try:
            program = built(job)
        finally:
            sys.setprofile(None)
        assert len(program.legs) == count
        assert all(len(leg.nodes) == 2 for leg in program.legs), "conversions that follow each other are one"
        return found

    few, many = calls(10), calls(40)
    assert many / few < (4.6 if not tagged else 16)


def test_each_node_is_resolved_once() -> None:
    job = new_job()
    divided(job.read(TestSource([KEYS], "k BIGINT")), 20).write(hf.NoopSink())
    with mock.patch.object(resolving.Resolved, "then", autospec=True, side_effect=resolving.Resolved.then) as then:
        built(job)
    assert then.call_count == 40


def test_targets_of_an_origin_share_its_rows_and_each_gets_its_own() -> None:
    job, kept = new_job("shared"), hf.MemorySink()
    rows = job.read(TestSource([KEYS, KEYS], "k BIGINT"))
    counts = []
    for remainder in range(3):
        counts.append(hf.MemorySink())
        part = rows.map_batches(
            lambda batch, r=remainder: batch.filter(pc.equal(pc.bit_wise_and(batch["k"], 3), r)), "k BIGINT"
        )
        part.key_by("k").aggregate(n=hf.count(), name=f"counts{remainder}").write(counts[-1])
    rows.where(field > 97).write(kept)
    with mock.patch.object(TestSource, "read_output", autospec=True, side_effect=TestSource.read_output) as read:
        query = run(job)
    assert read.call_count == 2
    assert query.lastProgress["numInputRows"] == 100
    assert [row["k"] for row in kept.rows()] == [98, 99] * 2
    for remainder, sink in enumerate(counts):
        assert {row["k"] % 4 for row in sink.rows()} == {remainder}
        assert max(row["n"] for row in sink.rows()) == 2


def test_a_source_united_with_itself_gives_its_rows_twice() -> None:
    job, sink = new_job("twice"), hf.MemorySink()
    rows = job.read(TestSource([KEYS], "k BIGINT"))
    rows.union(rows).where(field == 5).write(sink)
    run(job)
    assert sink.rows() == [{"k": 5}] * 2


def test_streams_of_different_schemas_may_be_united_if_later_steps_make_them_equal() -> None:
    job, sink = new_job("mixed"), hf.MemorySink()
    others = job.read(TestSource([[{"k": 1, "x": 2.5}]], "k BIGINT, x DOUBLE"))
    job.read(TestSource([[{"k": 7}]], "k BIGINT")).union(others).select("k").write(sink)
    run(job)
    assert sorted(row["k"] for row in sink.rows()) == [1, 7]
    job.read(TestSource([KEYS], "k BIGINT", name="more")).union(others).write(hf.NoopSink(name="both"))
    with pytest.raises(JobRefused, match="'both' unites streams of different schemas"):
        build_program(job.declared, without_spark, None)


def test_ways_through_spark_are_legs_of_their_own_up_to_a_bound() -> None:
    job = new_job()
    rows = numbers(job)
    rows.write(hf.NoopSink(name="all"))
    rows.union(rows.transform(lambda schema: schema)).write(hf.NoopSink(name="some"))
    program = built(job)
    assert [[type(step) for step in leg.steps] for leg in program.legs] == [[], [Transform], []]
    divided(rows.transform(lambda schema: schema).select(k=pc.field("value")), 11).write(hf.NoopSink(name="many"))
    with pytest.raises(JobRefused, match="more than 1,024 ways"):
        built(job)
