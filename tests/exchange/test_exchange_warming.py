"""A sender warms the expressions, combiners and divisions of its legs, and calls no function of a user."""

import logging
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.exchange import partition, warming
from holdfast.functions.rows.expressions import evaluated
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.program import Program
from holdfast.testing import TestSource

SCHEMA = "k BIGINT, name STRING, price DECIMAL(10, 2), at TIMESTAMP"


def program_of(build: Any) -> Program:
    job = hf.Job(None, name="warm", storage="memory://warming")
    build(job.read(TestSource([], SCHEMA)).with_watermark("at", "1s")).write(hf.NoopSink())
    return build_program(job.declared, without_spark, None)


DIVIDED = {
    "aggregate": lambda rows: rows.key_by("k", "name").aggregate(n=hf.count(), total=hf.sum("price")),
    "windows": lambda rows: rows.key_by("k", hf.window("at", "10s", "2s")).aggregate(n=hf.count()),
    "sessions": lambda rows: rows.key_by("k", hf.session_window("at", "10s")).aggregate(n=hf.count()),
    "top": lambda rows: rows.key_by(hf.window("at", "10s")).top(1, by="price"),
    "last": lambda rows: rows.key_by("name").last(by="at"),
    "join": lambda rows: rows.key_by("k").join(rows.key_by("k"), (0, 0), suffix="_other"),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_rows_are_combined_and_divided_as_those_of_a_unit_are(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    divided: list[int] = []
    original = partition.arrange

    def noted(rows: pa.RecordBatch, *others: Any) -> partition.Division:
        divided.append(rows.num_rows)
        return original(rows, *others)

    monkeypatch.setattr(partition, "arrange", noted)
    warming.warm(program_of(DIVIDED[name]))
    assert "stays cold" not in caplog.text
    assert divided
    if name in ("aggregate", "windows", "top", "last"):
        assert max(divided) < 100, "equal rows are combined"


def test_an_expression_is_evaluated_where_there_are_some_and_no_function_of_a_user_is_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    called: list[Any] = []
    monkeypatch.setattr(warming, "evaluated", lambda *arguments: called.append(evaluated(*arguments)))

    def of_a_user(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise AssertionError("a function of a user is not called")

    warming.warm(program_of(lambda rows: rows.map_batches(of_a_user, "k BIGINT")))
    assert not called
    warming.warm(program_of(lambda rows: rows.map_batches(of_a_user, "k BIGINT").where(pc.field("k") > 3)))
    assert [array.to_pylist() for [array] in called] == [[1, 1]]
    assert "stays cold" not in caplog.text


def test_a_leg_that_cannot_be_warmed_costs_time_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    program = program_of(DIVIDED["aggregate"])
    program.operators.clear()
    warming.warm(program)
    assert "leg 0 stays cold" in caplog.text
