"""`BatchFunction`: arrays of rows, arrays of states, errors, dead letters."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import SettingsError, UserFunctionError
from holdfast.functions.operator import BatchContext, Operator, OperatorInput, OperatorResult
from holdfast.functions.process.declared import BatchFunction, Context, ProcessSpec, check_function
from holdfast.functions.process.shared.states import ReducingState, ValueState

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
CONTEXT = BatchContext(batch=4, batch_time_us=1_000_000, operator="visits", subtask=2)
Groups = np.ndarray[Any, np.dtype[np.int64]]
Rows = list[tuple[Any, Any]]


def operator_of(function: Any, bad_records: Any = "fail", schema: pa.Schema = OUTPUT) -> Operator:
    return ProcessSpec("visits", OperatorInput(INPUT, ("k",)), function, schema, bad_records).create(2, 128)


def run(operator: Operator, *chunks: Rows) -> OperatorResult:
    operator.tables["state"].begin(4)
    batches = [pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], INPUT) for rows in chunks]
    result = operator.process([(0, batch) for batch in batches], CONTEXT)
    operator.tables["state"].commit()
    return result


def rows_of(result: OperatorResult) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in result.output for row in batch.to_pylist()]


def pairs(keys: pa.RecordBatch, values: Any) -> pa.RecordBatch:
    return pa.record_batch([keys["k"], pa.array(values, pa.int64())], names=["k", "n"])


class Count(BatchFunction):
    n = ValueState(pa.int64(), default=0)

    def process(
        self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Groups, ctx: Context
    ) -> Iterator[pa.RecordBatch]:
        if batch.num_rows and 13 in batch["v"].to_pylist():
            self.n.update([99] * keys.num_rows)
            raise ValueError("unlucky")
        n = self.n.values().to_numpy() + np.bincount(groups, minlength=keys.num_rows)
        self.n.update(n)
        yield pairs(keys, n)


def test_states_are_arrays_with_one_entry_per_distinct_key() -> None:
    operator = operator_of(Count())
    result = run(operator, [("b", 1), ("a", 1), ("b", 1)], [], [("c", 1), ("a", 1)])
    assert rows_of(result) == [("b", 2), ("a", 1), ("c", 1), ("a", 2)]
    assert rows_of(run(operator, [("b", 1)])) == [("b", 3)]
    restored = operator_of(Count())
    restored.tables["state"].apply(operator.tables["state"].snapshot(), 0, 128)
    assert rows_of(run(restored, [("a", 1)])) == [("a", 3)]


def test_groups_index_the_distinct_keys_of_many_rows() -> None:
    class Echo(BatchFunction):
        def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Groups, ctx: Context) -> pa.RecordBatch:
            assert groups.dtype == np.int64
            assert keys["k"].take(pa.array(groups)) == batch["k"]
            assert len(set(keys["k"].to_pylist())) == keys.num_rows
            return pairs(keys, [ctx.key is None] * keys.num_rows) if keys.num_rows == 0 else None

    operator = operator_of(Echo())
    for seed in range(3):
        keys = np.random.default_rng(seed).integers(0, 5000, 20_000).tolist()
        assert run(operator, [(str(key), 0) for key in keys]).output == []
    assert len(operator.tables["state"]) == 0


class Kept(BatchFunction):
    """Reads the state, then puts `self.put`, or clears it where that is "clear"."""

    n = ValueState(pa.int64())

    def __init__(self, put: Any) -> None:
        self.put = put

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Groups, ctx: Context) -> pa.RecordBatch:
        before = self.n.values()
        if isinstance(self.put, str):
            self.n.clear()
        else:
            self.n.update(self.put)
        return pairs(keys, before)


def test_nulls_are_kept_and_keys_without_values_are_not() -> None:
    operator = operator_of(Kept(pa.array([5, None], pa.int64())))
    assert rows_of(run(operator, [("a", 0), ("b", 0)])) == [("a", None), ("b", None)]
    assert rows_of(run(operator, [("a", 0), ("b", 0)])) == [("a", 5), ("b", None)]
    assert len(operator.tables["state"]) == 1
    clearing = operator_of(Kept("clear"))
    clearing.tables["state"].apply(operator.tables["state"].snapshot(), 0, 128)
    assert rows_of(run(clearing, [("a", 0)])) == [("a", 5)]
    assert len(clearing.tables["state"]) == 0


@pytest.mark.parametrize(
    ("put", "stored"),
    [
        ([1, None], [1, None]),
        (np.array([1, 2], np.int32), [1, 2]),
        (np.array([1.0, 2.0]), [1, 2]),
        (pa.chunked_array([[1], [2]], pa.int8()), [1, 2]),
        (pa.nulls(2), [None, None]),
    ],
    ids=str,
)
def test_arrays_and_lists_whose_numbers_fit_can_be_put(put: Any, stored: list[Any]) -> None:
    operator = operator_of(Kept(put))
    run(operator, [("a", 0), ("b", 0)])
    assert rows_of(run(operator, [("a", 0), ("b", 0)])) == [("a", stored[0]), ("b", stored[1])]


@pytest.mark.parametrize(
    ("put", "words"),
    [
        ([1], "found 1 values, expected a value for each of the 2 distinct keys"),
        (["x", 1], "found 'x'"),
        (np.array([1.5, 2.0]), "1.5"),
        (pa.array(["1", "2"]), "found an array of string, expected int64"),
        (5, "'int' object is not iterable"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_name_operator_state_and_type(put: Any, words: str) -> None:
    with pytest.raises(UserFunctionError) as failed:
        run(operator_of(Kept(put)), [("a", 0), ("b", 0)])
    assert all(word in str(failed.value) for word in ["operator 'visits'", "state 'n' of type int64", words])


def test_changing_what_was_read_or_put_does_not_change_state() -> None:
    class Careless(BatchFunction):
        n = ValueState(pa.int64(), default=0)
        any = ValueState(default=[])

        def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Groups, ctx: Context) -> None:
            read = self.n.values().to_numpy().copy()
            put = read + 1
            self.n.update(put)
            put[:] = 77
            lists = self.any.values()
            lists[0].append(1)
            self.any.update(lists)
            lists[0].append(77)

    operator = operator_of(Careless())
    run(operator, [("a", 0)])
    run(operator, [("a", 0)])
    table = operator.tables["state"]
    [row] = table.snapshot().to_pylist()
    assert row["n"] == 2
    assert row["any"] == bytes([0x92, 1, 1])


def test_states_of_text_and_lists_fill_their_default() -> None:
    class Texts(BatchFunction):
        text = ValueState(pa.string(), default="none")
        items = ValueState(pa.list_(pa.int64()), default=[7])

        def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Groups, ctx: Context) -> pa.RecordBatch:
            out = pa.record_batch([self.text.values(), pa.array(self.items.values().flatten())], names=["k", "n"])
            self.text.update([f"{key}!" for key in keys["k"].to_pylist()])
            self.items.update([[len(key)] for key in keys["k"].to_pylist()])
            return out

    operator = operator_of(Texts())
    assert rows_of(run(operator, [("a", 0), ("bb", 0)])) == [("none", 7), ("none", 7)]
    assert rows_of(run(operator, [("bb", 0), ("c", 0)])) == [("bb!", 2), ("none", 7)]


def test_a_function_that_raises_names_operator_keys_batch_and_rows() -> None:
    operator = operator_of(Count())
    with pytest.raises(UserFunctionError) as failed:
        run(operator, [("z", 1)], [("a", 1), ("b", 13), ("a", 1)])
    words = ["operator 'visits'", "keys {'k': 'a'} and 1 more", "rows 1 to 3 of batch 4, subtask 2", "unlucky"]
    assert all(word in str(failed.value) for word in words)
    assert isinstance(failed.value.__cause__, ValueError)
    operator.tables["state"].undo()
    assert rows_of(run(operator, [("z", 1)])) == [("z", 1)]


def test_only_the_rows_that_raise_are_set_aside() -> None:
    operator = operator_of(Count(), "dead_letter")
    result = run(operator, [("a", 1), ("b", 13), ("a", 1), ("c", 13), ("a", 1)], [("b", 1)])
    assert dict(rows_of(result)) == {"a": 3, "b": 1}
    assert [bad.position for bad in result.bad] == ["row 1 of batch 4, subtask 2", "row 3 of batch 4, subtask 2"]
    assert "key {'k': 'b'}" in result.bad[0].reason
    assert result.bad[0].payload == '{"k":"b","v":13}'
    assert {row["k"]: row["n"] for row in operator.tables["state"].snapshot().to_pylist()} == {"a": 3, "b": 1}


class Give(BatchFunction):
    def __init__(self, produced: Any) -> None:
        self.produced = produced

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Groups, ctx: Context) -> Any:
        return self.produced


GOOD = pa.record_batch([pa.array(["a"]), pa.array([1])], names=["k", "n"])


@pytest.mark.parametrize(
    ("produced", "words"),
    [
        (
            pa.record_batch([pa.array(["a"]), pa.array([1.5])], names=["k", "n"]),
            "column 'n': found double, expected int64",
        ),
        (pa.record_batch([pa.array([1])], names=["n"]), r"found \['n'\], expected \['k', 'n'\]"),
        (pa.record_batch([pa.array(["a"]), pa.array([None], pa.int64())], names=["k", "n"]), "'n': found 1 nulls"),
        ({"k": ["a"]}, "found dict, expected record batches"),
        ([{"k": "a"}], "found dict, expected a pyarrow.RecordBatch"),
        (5, "found int, expected record batches"),
    ],
    ids=["type", "columns", "nulls", "dict", "list", "int"],
)
def test_output_that_does_not_match_names_column_found_and_expected(produced: Any, words: str) -> None:
    schema = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(UserFunctionError, match=words):
        run(operator_of(Give(produced), schema=schema), [("a", 1)])


@pytest.mark.parametrize("produced", [GOOD, [GOOD], pa.Table.from_batches([GOOD]), [GOOD.slice(1), GOOD]], ids=type)
def test_output_may_be_one_batch_a_table_or_several_batches(produced: Any) -> None:
    result = run(operator_of(Give(produced)), [("a", 1)])
    assert rows_of(result) == [("a", 1)]
    assert [batch.schema for batch in result.output] == [OUTPUT]


def test_a_batch_function_has_value_states_only() -> None:
    class Reducing(Count):
        most = ReducingState(max, pa.int64())

    with pytest.raises(SettingsError, match="state 'most' of Reducing is a ReducingState"):
        check_function(Reducing())


def test_a_batch_function_must_define_process_with_its_arguments() -> None:
    class Nothing(BatchFunction):
        pass

    class Wrong(BatchFunction):
        def process(self, batch: Any, ctx: Any) -> None:  # type: ignore[override]
            return None

    with pytest.raises(SettingsError, match="Nothing does not define process"):
        check_function(Nothing())
    with pytest.raises(SettingsError, match=r"process\(batch, keys, groups, ctx\)"):
        check_function(Wrong())
