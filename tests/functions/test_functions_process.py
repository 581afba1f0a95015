"""`ProcessFunction`: rows, states, output, errors, dead letters."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError, JobRefused, SettingsError, UserFunctionError
from holdfast.functions.operator import BatchContext, Operator, OperatorInput, OperatorResult
from holdfast.functions.process.by_row import row_operator
from holdfast.functions.process.declared import Context, ProcessFunction, ProcessSpec, check_function
from holdfast.functions.process.shared.states import AggregatingState, ReducingState, ValueState

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
CONTEXT = BatchContext(batch=4, batch_time_us=1_000_000, operator="visits", subtask=2)
Rows = list[tuple[Any, Any]]


def spec_of(function: Any, schema: pa.Schema = OUTPUT, bad_records: Any = "fail") -> ProcessSpec:
    return ProcessSpec("visits", OperatorInput(INPUT, ("k",)), function, schema, bad_records)


def operator_of(function: Any, schema: pa.Schema = OUTPUT, bad_records: Any = "fail") -> Operator:
    return spec_of(function, schema, bad_records).create(2, 128)


def run(operator: Operator, *chunks: Rows) -> OperatorResult:
    operator.tables["state"].begin(4)
    batches = [pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], INPUT) for rows in chunks]
    result = operator.process([(0, batch) for batch in batches], CONTEXT)
    operator.tables["state"].commit()
    return result


def rows_of(result: OperatorResult) -> list[dict[str, Any]]:
    return [row for batch in result.output for row in batch.to_pylist()]


class Count(ProcessFunction):
    n = ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[dict[str, Any]]:
        n = self.n.value() + 1
        self.n.update(n)
        yield {"n": n, "k": row.k}


def test_rows_are_processed_in_order_with_the_state_of_their_key() -> None:
    operator = operator_of(Count())
    assert rows_of(run(operator, [("a", 1), ("b", 1)], [], [("a", 1)])) == [
        {"k": "a", "n": 1},
        {"k": "b", "n": 1},
        {"k": "a", "n": 2},
    ]
    assert rows_of(run(operator, [("b", 1)])) == [{"k": "b", "n": 2}]
    assert len(operator.tables["state"]) == 2


def test_many_rows_keep_their_order_and_state_across_slices() -> None:
    operator = operator_of(Count())
    result = run(operator, [(str(index % 7), 0) for index in range(20_000)])
    assert [row["n"] for row in rows_of(result)] == [index // 7 + 1 for index in range(20_000)]


def test_state_is_stored_and_restored() -> None:
    operator, restored = operator_of(Count()), operator_of(Count())
    run(operator, [("a", 1), ("a", 1)])
    restored.tables["state"].apply(operator.tables["state"].snapshot(), 0, 128)
    assert rows_of(run(restored, [("a", 1)])) == [{"k": "a", "n": 3}]


def test_an_undone_batch_leaves_the_state_as_it_was() -> None:
    operator = operator_of(Count())
    run(operator, [("a", 1)])
    table = operator.tables["state"]
    table.begin(5)
    operator.process([(0, pa.RecordBatch.from_pylist([{"k": "a", "v": 1}, {"k": "z", "v": 1}], INPUT))], CONTEXT)
    table.undo()
    assert rows_of(run(operator, [("a", 1), ("z", 1)])) == [{"k": "a", "n": 2}, {"k": "z", "n": 1}]


class Remember(ProcessFunction):
    """`v` is the operation: 1 remembers, 0 clears, None puts null."""

    n = ValueState(pa.int64(), default=-1)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        if row.v == 0:
            self.n.clear()
        else:
            self.n.update(row.v)
        yield row.k, self.n.value()


def test_a_cleared_key_reads_the_default_and_takes_no_room() -> None:
    operator = operator_of(Remember())
    result = run(operator, [("a", 1), ("b", 1), ("a", 0), ("c", 0)])
    assert [row["n"] for row in rows_of(result)] == [1, 1, -1, -1]
    assert len(operator.tables["state"]) == 1
    assert rows_of(run(operator, [("b", None)])) == [{"k": "b", "n": -1}]
    assert len(operator.tables["state"]) == 0


class Sums(ProcessFunction):
    most = ReducingState(max, pa.int64())
    mean = AggregatingState(
        lambda kept, v: [kept[0] + v, kept[1] + 1], [0, 0], lambda kept: kept[0] / kept[1], pa.list_(pa.int64())
    )

    def process(self, row: Any, ctx: Context) -> Iterator[dict[str, Any]]:
        if row.v is None:
            self.most.clear()
            self.mean.clear()
        else:
            self.most.add(row.v)
            self.mean.add(row.v)
        yield {"most": self.most.get(), "mean": self.mean.get()}


def test_reducing_and_aggregating_states_take_one_value_after_the_other() -> None:
    operator = operator_of(Sums(), pa.schema([("most", pa.int64()), ("mean", pa.float64())]))
    result = run(operator, [("a", 3), ("a", 5), ("a", 1), ("a", None)])
    assert [tuple(row.values()) for row in rows_of(result)] == [(3, 3.0), (5, 4.0), (5, 3.0), (None, None)]
    assert rows_of(run(operator, [("a", 4)])) == [{"most": 4, "mean": 4.0}]


@pytest.mark.parametrize("kind", [None, pa.list_(pa.int64())], ids=str)
def test_changing_an_object_in_place_does_not_change_state(kind: pa.DataType | None) -> None:
    class Append(ProcessFunction):
        kept = ValueState(kind, default=[])

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            items = self.kept.value()
            items.append(row.v)
            if row.v > 1:
                self.kept.update(items)
                items.append(99)
            yield row.k, len(self.kept.value())

    operator = operator_of(Append())
    assert [row["n"] for row in rows_of(run(operator, [("a", 1), ("a", 2), ("a", 1), ("b", 1)]))] == [0, 1, 1, 0]
    assert [row["n"] for row in rows_of(run(operator, [("a", 1), ("a", 2)]))] == [1, 2]


@dataclass
class Unpackable:
    x: int


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), 1.5, "int64"),
        (pa.int64(), True, "int64"),
        (pa.int64(), 2**63, "int64"),
        (pa.int8(), 128, "int8"),
        (pa.float64(), "1.5", "double"),
        (pa.bool_(), 1, "bool"),
        (pa.string(), 7, "string"),
        (pa.binary(), "text", "binary"),
        (pa.date32(), 5, "date32"),
        (pa.timestamp("us"), 5, "timestamp"),
        (pa.decimal128(4, 2), Decimal("1.555"), "decimal128(4, 2)"),
        (pa.list_(pa.int64()), [1, 1.5], "int64"),
        (pa.list_(pa.int64()), "ab", "list"),
        (pa.struct([("x", pa.int64())]), {"z": 1}, "struct"),
        (pa.map_(pa.string(), pa.int64()), [1], "map"),
        (None, {1, 2}, "msgpack"),
        (None, Unpackable(1), "msgpack"),
        (None, {(1, 2): 3}, "dict key"),
        (None, 2**70, "msgpack"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_names_operator_state_value_and_type(
    kind: pa.DataType | None, value: Any, expected: str
) -> None:
    class Put(ProcessFunction):
        total = ValueState(kind)

        def process(self, row: Any, ctx: Context) -> None:
            self.total.update(value)

    with pytest.raises(UserFunctionError) as failed:
        run(operator_of(Put()), [("a", 1)])
    message = str(failed.value)
    assert all(word in message for word in ["operator 'visits'", "state 'total'", expected, "found"])


class Explain(ProcessFunction):
    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        yield ctx.key, ctx.batch_time, f"{ctx.operator}/{ctx.subtask}"


def test_the_context_tells_key_and_batch_time() -> None:
    schema = pa.schema([("key", pa.string()), ("time", pa.timestamp("us", tz="UTC")), ("where", pa.string())])
    assert rows_of(run(operator_of(Explain(), schema), [("a", 1)])) == [
        {"key": "a", "time": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "where": "visits/2"}
    ]


def test_the_key_of_several_columns_is_a_named_tuple() -> None:
    class KeyNames(ProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            yield f"{ctx.key.v}/{ctx.key.k}", row.v

    spec = ProcessSpec("visits", OperatorInput(INPUT, ("v", "k")), KeyNames(), OUTPUT)
    assert rows_of(run(spec.create(0, 128), [("a", 5)])) == [{"k": "5/a", "n": 5}]


def test_columns_whose_names_python_does_not_allow_are_reached_by_position() -> None:
    class Odd(ProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            yield row.k, row._1 + row[1]

    schema = pa.schema([("k", pa.string()), ("a-b", pa.int64())])
    operator = ProcessSpec("visits", OperatorInput(schema, ("k",)), Odd(), OUTPUT).create(0, 128)
    operator.tables["state"].begin(0)
    result = operator.process([(0, pa.RecordBatch.from_pylist([{"k": "a", "a-b": 2}], schema))], CONTEXT)
    assert rows_of(result) == [{"k": "a", "n": 4}]


class Give(ProcessFunction):
    def __init__(self, *items: Any, single: bool = False) -> None:
        self.items = list(items)
        self.single = single

    def process(self, row: Any, ctx: Context) -> Any:
        return self.items[0] if self.single else self.items


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (Give({"k": "a", "n": "x"}), "output column 'n': found 'x' (str), expected int64"),
        (Give(("a", 1.5)), "output column 'n': found 1.5 (float), expected int64"),
        (Give(("a", 2**63)), "output column 'n': found 9223372036854775808"),
        (Give({"k": "a"}), "output column 'n': found no such key among ['k']"),
        (Give({"k": "a", "n": 1, "z": 2}), "output column 'z': found in the row"),
        (Give(("a", 1, 2)), "found 3 values, expected 2 (k, n)"),
        (Give("text"), "found 'text' (str), expected a dict or a tuple"),
        (Give({"k": "a", "n": 1}, single=True), "returned dict, expected a generator"),
        (Give(5, single=True), "returned int, expected a generator"),
    ],
)
@pytest.mark.parametrize("bad_records", ["fail", "dead_letter"])
def test_output_that_does_not_match_names_column_found_and_expected(
    function: ProcessFunction, words: str, bad_records: str
) -> None:
    operator = operator_of(function, bad_records=bad_records)
    if bad_records == "dead_letter":
        [bad] = run(operator, [("a", 1)]).bad
        assert words in bad.reason
        return
    with pytest.raises(UserFunctionError) as failed:
        run(operator, [("a", 1)])
    assert words in str(failed.value)
    assert "operator 'visits', key {'k': 'a'}, row 0 of batch 4" in str(failed.value)


def test_an_output_that_does_not_match_is_blamed_on_its_row() -> None:
    class Late(ProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            for _ in range(row.v):
                yield row.k, 1
            if row.k == "bad":
                yield row.k, "no number"

    with pytest.raises(UserFunctionError, match=r"key \{'k': 'bad'\}, row 2 of batch 4"):
        run(operator_of(Late()), [("a", 3), ("b", 0), ("bad", 2), ("c", 1)])


def test_null_in_a_column_that_allows_none_is_an_error() -> None:
    schema = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(UserFunctionError, match=r"'n': found None .* expected int64 \(not null\)"):
        run(operator_of(Give(("a", None)), schema), [("a", 1)])
    assert rows_of(run(operator_of(Give((None, 1)), schema), [("a", 1)])) == [{"k": None, "n": 1}]


class Fragile(ProcessFunction):
    """Counts, and raises at v = 13 after it changed state and gave a row."""

    n = ValueState(pa.int64(), default=0)
    log = ValueState(default=[])

    def process(self, row: Any, ctx: Context) -> Iterator[dict[str, Any]]:
        self.n.update(self.n.value() + 1)
        self.log.update([*self.log.value(), row.v])
        yield {"k": row.k, "n": self.n.value()}
        if row.v == 13:
            raise ValueError("unlucky")


def test_a_function_that_raises_names_operator_key_batch_and_row() -> None:
    operator = operator_of(Fragile())
    with pytest.raises(UserFunctionError) as failed:
        run(operator, [("a", 1)], [("b", 1), ("a", 13)])
    words = [
        "operator 'visits'",
        "key {'k': 'a'}",
        "row 2 of batch 4, subtask 2",
        "ValueError: unlucky (test_functions_process.py, line",
    ]
    assert all(word in str(failed.value) for word in words)
    assert isinstance(failed.value.__cause__, ValueError)
    operator.tables["state"].undo()
    assert rows_of(run(operator, [("a", 1)])) == [{"k": "a", "n": 1}]


def test_a_row_set_aside_leaves_no_trace_in_state_or_output() -> None:
    operator = operator_of(Fragile(), bad_records="dead_letter")
    result = run(operator, [("a", 1), ("a", 13), ("b", 13)], [("a", 2)])
    assert rows_of(result) == [{"k": "a", "n": 1}, {"k": "a", "n": 2}]
    assert [bad.position for bad in result.bad] == ["row 1 of batch 4, subtask 2", "row 2 of batch 4, subtask 2"]
    assert "ValueError: unlucky" in result.bad[0].reason
    assert json.loads(result.bad[1].payload) == {"k": "b", "v": 13}
    assert result.bad[0].operator == "visits"
    [row] = operator.tables["state"].snapshot().to_pylist()
    assert (row["k"], row["n"]) == ("a", 2)


def test_a_bad_row_in_a_later_slice_changes_nothing_of_the_rows_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_operator, "SLICE_ROWS", 2)

    class Counted(ProcessFunction):
        n = ValueState(pa.int64(), default=0)

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[int]]:
            self.n.update(self.n.value() + 1)
            if row.v == -1:
                raise ValueError("bad")
            yield (self.n.value(),)

    operator = operator_of(Counted(), pa.schema([("n", pa.int64())]), bad_records="dead_letter")
    for first, values in ((1, [1, 1, 1, -1, 1, 1]), (6, [1, 1]), (8, [-1]), (8, [1])):
        result = run(operator, [("a", value) for value in values])
        good = len([value for value in values if value != -1])
        assert rows_of(result) == [{"n": first + number} for number in range(good)]
        assert len(result.bad) == len(values) - good


def test_each_subtask_has_a_copy_of_the_instance() -> None:
    class Own(ProcessFunction):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def open(self, ctx: Context) -> None:
            self.seen.append(("open", ctx.subtask, ctx.key, ctx.batch_time))

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            self.seen.append(row.v)
            yield str(self.seen[0]), len(self.seen)

    function = Own()
    spec = spec_of(function)
    first, second = spec.create(0, 128), spec.create(1, 128)
    assert rows_of(run(first, [("a", 1), ("a", 1)])) == [{"k": "('open', 0, None, None)", "n": n} for n in (2, 3)]
    assert rows_of(run(second, [("a", 1)])) == [{"k": "('open', 1, None, None)", "n": 2}]
    assert function.seen == []


def test_open_that_raises_names_operator_and_subtask() -> None:
    class Broken(Count):
        def open(self, ctx: Context) -> None:
            self.n.value()

    with pytest.raises(UserFunctionError, match=r"operator 'visits', subtask 2: Broken.open\(\) raised .*ValueState"):
        operator_of(Broken())


def test_close_reaches_the_function() -> None:
    class Closing(Count):
        def close(self) -> None:
            raise RuntimeError("closed")

    with pytest.raises(RuntimeError, match="closed"):
        operator_of(Closing()).close()


def test_states_are_used_only_while_rows_are_processed_and_never_assigned() -> None:
    function = Count()
    for call in (function.n.value, function.n.clear, function.n.values, lambda: function.n.update(1)):
        with pytest.raises(HoldfastError, match=r"used outside of process\(\)"):
            call()
    with pytest.raises(AttributeError, match=r"self\.n\.update"):
        function.n = 5  # type: ignore[assignment]


def test_states_of_base_classes_come_first() -> None:
    class More(Count):
        also = ValueState(pa.string())

    assert spec_of(More()).table_schemas()["state"] == (
        pa.schema([("k", pa.string())]),
        pa.schema([("n", pa.int64()), ("also", pa.string())]),
    )


class NoProcess(ProcessFunction):
    pass


class WrongArguments(ProcessFunction):
    def process(self, row: Any) -> None:  # type: ignore[override]
        return None


class Asynchronous(ProcessFunction):
    async def process(self, row: Any, ctx: Context) -> None:  # type: ignore[override]
        return None


class Timers(Count):
    def on_timer(self, timestamp: datetime) -> None:
        return None


class Locked(Count):
    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (NoProcess(), "NoProcess does not define process"),
        (WrongArguments(), r"WrongArguments.process is called as process\(row, ctx\)"),
        (Asynchronous(), "Asynchronous.process is async"),
        (Timers(), r"Timers.on_timer is called as on_timer\(timestamp, ctx\)"),
        (Locked(), r"Locked cannot be sent to the tasks: .*lock.* in open\(\)"),
        (Count, "give an instance, not the class"),
        (len, "expected an instance"),
    ],
)
def test_a_function_that_cannot_run_is_refused_when_declared(function: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        check_function(function)


def test_states_that_cannot_be_are_refused_when_declared() -> None:
    with pytest.raises(SettingsError, match="ValueState type is 'int'"):
        ValueState("int")
    with pytest.raises(SettingsError, match="dictionary"):
        ValueState(pa.dictionary(pa.int8(), pa.string()))
    with pytest.raises(SettingsError, match="ValueState default: found 'x'"):
        ValueState(pa.int64(), default="x")
    with pytest.raises(SettingsError, match="ReducingState fn is 5"):
        ReducingState(5, pa.int64())  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="AggregatingState result is 5"):
        AggregatingState(max, 0, 5, pa.int64())  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="AggregatingState initial: found 'x'"):
        AggregatingState(max, "x", None, pa.int64())


def test_specs_that_do_not_fit_their_input_are_refused() -> None:
    with pytest.raises(JobRefused, match="key column 'z'"):
        ProcessSpec("visits", OperatorInput(INPUT, ("z",)), Count(), OUTPUT)
    with pytest.raises(JobRefused, match="state 'n' has the name of a key column"):
        ProcessSpec("visits", OperatorInput(OUTPUT, ("n",)), Count(), OUTPUT)
    with pytest.raises(SettingsError, match=r"output column 'd'.*dictionary"):
        spec_of(Count(), pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))]))
    with pytest.raises(SettingsError, match="bad_records is 'ignore'"):
        spec_of(Count(), bad_records="ignore")


def test_a_spec_travels_to_a_task_with_its_function() -> None:
    operator = cloudpickle.loads(cloudpickle.dumps(spec_of(Count()))).create(0, 128)
    assert rows_of(run(operator, [("a", 1)])) == [{"k": "a", "n": 1}]
