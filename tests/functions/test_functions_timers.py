"""Timers of a `ProcessFunction`: when they fire, in which order, once."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from functions_kit import end

from holdfast.errors import SettingsError, UserFunctionError
from holdfast.functions.operator import BatchContext, EventTime, Operator, OperatorInput, OperatorResult, Timers
from holdfast.functions.process.declared import BatchFunction, Context, ProcessFunction, ProcessSpec, check_function
from holdfast.functions.process.shared.states import ValueState

INPUT = pa.schema([("k", pa.string()), ("op", pa.string()), ("t", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
OUTPUT = pa.schema([("k", pa.string()), ("t", pa.int64()), ("n", pa.int64())])
Row = tuple[str, str, int]


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


class Script(ProcessFunction):
    """`op` registers or deletes a timer for second `t`; a timer gives key, second, and how many fired for the key."""

    fired = ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Context) -> None:
        if row.op == "fail":
            ctx.timers.register_event_time(at(row.t))
            raise ValueError("unlucky")
        getattr(ctx.timers, row.op)(at(row.t))

    def on_timer(self, timestamp: datetime, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.fired.update(self.fired.value() + 1)
        second = round(timestamp.timestamp())
        assert ctx.timestamp == timestamp
        if second == 15:
            ctx.timers.register_event_time(at(18))
            ctx.timers.delete_event_time(at(19))
        if second == 13:
            ctx.timers.register_event_time(at(14))
            raise ValueError("unlucky")
        yield ctx.key, second, self.fired.value()


def operator_of(function: Any = None, bad_records: Any = "fail", has_time: bool = False) -> Operator:
    spec = ProcessSpec(
        "bells",
        OperatorInput(INPUT, ("k",), EventTime(("at",), "at" if has_time else None)),
        function or Script(),
        OUTPUT,
        bad_records,
    )
    return spec.create(0, 128)


def begin(operator: Operator, rows: list[Row], now: int = 0, watermark: int | None = None) -> OperatorResult:
    for table in operator.tables.values():
        table.begin(1)
    named = [{"k": k, "op": op, "t": t, "at": at(t)} for k, op, t in rows]
    watermark_us = None if watermark is None else watermark * 1_000_000
    context = BatchContext(1, now * 1_000_000, "bells", 0, watermark_us)
    return operator.process([(0, pa.RecordBatch.from_pylist(named, INPUT))], context)


def run(operator: Operator, rows: list[Row], now: int = 0, watermark: int | None = None) -> list[tuple[Any, ...]]:
    result = begin(operator, rows, now, watermark)
    end(operator)
    return rows_of(result)


def rows_of(result: OperatorResult) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in result.output for row in batch.to_pylist()]


EVENT, PROCESSING = "register_event_time", "register_processing_time"


def test_event_time_timers_fire_in_order_of_time_once_the_watermark_has_reached_them() -> None:
    operator = operator_of()
    assert run(operator, [("a", EVENT, 20), ("b", EVENT, 10), ("a", EVENT, 10), ("a", EVENT, 10)], watermark=9) == []
    assert run(operator, [], watermark=10) == [("a", 10, 1), ("b", 10, 1)]
    assert run(operator, [("b", EVENT, 5), ("b", EVENT, 30)], watermark=25) == [("b", 5, 2), ("a", 20, 2)]
    assert run(operator, [], watermark=25) == []
    assert len(operator.tables["timers"]) == 1


def test_processing_time_timers_fire_by_the_time_of_the_plan() -> None:
    operator = operator_of()
    assert run(operator, [("a", PROCESSING, 20), ("a", EVENT, 5)], now=19) == []
    assert run(operator, [], now=20) == [("a", 20, 1)]


def test_what_is_left_of_the_timers_is_reported() -> None:
    operator = operator_of()
    assert begin(operator, [("a", EVENT, 20), ("b", EVENT, 30), ("b", PROCESSING, 40)]).timers == Timers(
        20_000_000, 40_000_000, 0
    )
    end(operator)
    assert begin(operator, [], watermark=20).timers == Timers(30_000_000, 40_000_000, 1)
    end(operator)


def test_a_deleted_timer_does_not_fire() -> None:
    operator = operator_of()
    run(operator, [("a", EVENT, 10), ("b", EVENT, 10), ("a", EVENT, 11), ("a", PROCESSING, 10)])
    rows = [("a", "delete_event_time", 10), ("b", "delete_event_time", 12), ("a", "delete_processing_time", 10)]
    assert run(operator, rows, now=50, watermark=50) == [("b", 10, 1), ("a", 11, 1)]


def test_a_timer_can_register_and_delete_timers_that_are_due() -> None:
    operator = operator_of()
    rows = [("a", EVENT, 20), ("a", EVENT, 19), ("a", EVENT, 15), ("b", EVENT, 19)]
    expected = [("a", 15, 1), ("a", 18, 2), ("b", 19, 1), ("a", 20, 3)]
    assert run(operator, rows, watermark=50) == expected
    run(operator, rows)
    assert [row[:2] for row in run(operator, [], watermark=50)] == [row[:2] for row in expected]


def test_timers_come_back_with_undo_and_with_restored_state() -> None:
    operator = operator_of()
    run(operator, [("a", EVENT, 10), ("b", EVENT, 20)])
    assert rows_of(begin(operator, [("c", EVENT, 1)], watermark=15)) == [("c", 1, 1), ("a", 10, 1)]
    end(operator, undo=True)
    restored = operator_of()
    for name, table in operator.tables.items():
        restored.tables[name].apply(table.snapshot(), 0, 128)
    for each in (operator, restored):
        assert run(each, [], watermark=15) == [("a", 10, 1)]
        assert run(each, [], watermark=20) == [("b", 20, 1)]


def test_a_timer_that_raises_is_a_bad_record_and_leaves_no_trace() -> None:
    operator = operator_of(bad_records="dead_letter")
    result = begin(operator, [("a", EVENT, 12), ("a", EVENT, 13), ("b", EVENT, 14), ("c", "fail", 5)], watermark=50)
    end(operator)
    assert rows_of(result) == [("a", 12, 1), ("b", 14, 1)]
    assert [bad.payload for bad in result.bad] == [
        '{"k":"c","op":"fail","t":5,"at":"1970-01-01T00:00:05Z"}',
        '{"k":"a","timestamp":"1970-01-01T00:00:13Z"}',
    ]
    assert len(operator.tables["timers"]) == 0
    with pytest.raises(UserFunctionError, match=r"'bells', key {'k': 'a'}, timer .*13\+00:00 in batch 1.*on_timer\(\)"):
        begin(operator_of(), [("a", EVENT, 13)], watermark=50)


def test_the_context_knows_watermark_and_event_time() -> None:
    class See(ProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            assert ctx.timestamp is not None
            assert (ctx.timestamp.timestamp(), ctx.watermark) == (row.t, None if row.k == "none" else at(7))
            yield row.k, row.t, 0

    operator = operator_of(See(), has_time=True)
    assert run(operator, [("none", "", 4)]) == [("none", 4, 0)]
    assert run(operator, [("a", "", 5)], watermark=7) == [("a", 5, 0)]


def test_timers_without_on_timer_and_odd_timestamps_are_refused() -> None:
    class Without(ProcessFunction):
        def process(self, row: Any, ctx: Context) -> None:
            ctx.timers.register_event_time(at(1))

    class Odd(Script):
        def process(self, row: Any, ctx: Context) -> None:
            ctx.timers.register_event_time(1.5)  # type: ignore[arg-type]

    class Batches(BatchFunction):
        def process(self, batch: Any, keys: Any, groups: Any, ctx: Context) -> None:
            return None

        def on_timer(self, timestamp: datetime, ctx: Context) -> None:
            return None

    with pytest.raises(UserFunctionError, match="defines on_timer"):
        run(operator_of(Without()), [("a", "", 1)])
    with pytest.raises(UserFunctionError, match=r"timestamp is 1\.5; expected a datetime"):
        run(operator_of(Odd()), [("a", "", 1)])
    with pytest.raises(SettingsError, match="a BatchFunction has on_timers"):
        check_function(Batches())
