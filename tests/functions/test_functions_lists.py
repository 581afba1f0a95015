"""Lists of subtasks: a function's view and changes, undo, shares after a rescale, refusals."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from functions_kit import end

import holdfast as hf
from holdfast.errors import HoldfastError, JobRefused, SettingsError, UserFunctionError
from holdfast.functions.operator import BatchContext, Opening, Operator, OperatorInput, OperatorResult
from holdfast.functions.process.declared import ProcessSpec
from holdfast.functions.process.of_subtask.list_states import SubtaskListState
from holdfast.functions.process.of_subtask.subtask_list import SubtaskList
from holdfast.graph.keygroups import key_group_range
from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.seats import key_group_of, seats_of

INPUT = pa.schema([("k", pa.string())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
TABLE = "seen.list"


class Seen(hf.ProcessFunction):
    """Lists each row's key; an empty key clears the list, `!` changes it and raises."""

    seen = hf.UnionListState(pa.string())
    n = hf.ValueState(pa.int64(), default=0)
    opened: list[Any] = []

    def open(self, ctx: Any) -> None:
        type(self).opened.append((self.seen.union(), self.seen.get()))

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        if row.k == "":
            self.seen.clear()
        else:
            self.seen.add(row.k)
        if row.k == "!":
            raise ValueError("no")
        self.n.update(self.n.value() + 1)
        yield row.k, len(self.seen.get())


class SeenInBatches(hf.BatchFunction):
    seen = hf.SplitListState(pa.string())

    def process(self, batch: Any, keys: Any, groups: Any, ctx: Any) -> None:
        for key in batch.column("k").to_pylist():
            self.seen.add(key)
            if key == "!":
                raise ValueError("no")


EVENTS: list[str] = []


class Counting(hf.ProcessFunction):
    """Numbers its copy's rows."""

    seen = hf.SplitListState(pa.string())

    def open(self, ctx: Any) -> None:
        self.calls = 0
        EVENTS.append("open")

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.calls += 1
        yield row.k, self.calls

    def close(self) -> None:
        EVENTS.append("close")


def opened(function: Any, bad_records: Any = "fail", opening: Opening | None = None) -> Operator:
    spec = ProcessSpec("visits", OperatorInput(INPUT, ("k",)), function, OUTPUT, bad_records)
    operator = spec.create(1, 128)
    operator.open(opening or Opening(range(32, 64)))
    return operator


def run(operator: Operator, keys: str | list[str], *, batch: int = 1, undo: bool = False) -> OperatorResult:
    for table in operator.tables.values():
        table.begin(batch)
    rows = pa.RecordBatch.from_arrays([pa.array(list(keys))], schema=INPUT)
    result = operator.process([(0, rows)], BatchContext(batch, 0, "visits", 1))
    end(operator, undo=undo)
    return result


def stored(operator: Operator) -> list[str]:
    rows = operator.tables[TABLE].snapshot().to_pylist()
    return [row["__value"] for row in sorted(rows, key=lambda row: row["__position"])]


def test_entries_of_all_keys_are_in_one_list_in_their_order() -> None:
    operator = opened(Seen())
    assert [row["n"] for row in run(operator, "aba").output[0].to_pylist()] == [1, 2, 3]
    run(operator, "c", batch=2)
    assert stored(operator) == ["a", "b", "a", "c"]
    run(operator, ["", "d"], batch=3)
    assert stored(operator) == ["d"]


def test_an_undone_batch_leaves_no_entry() -> None:
    operator = opened(Seen())
    run(operator, "ab")
    run(operator, ["", "x"], batch=2, undo=True)
    assert run(operator, "c", batch=2).output[0].to_pylist() == [{"k": "c", "n": 3}]
    assert stored(operator) == ["a", "b", "c"]


def test_a_batch_that_raises_leaves_no_entry() -> None:
    operator = opened(Seen())
    run(operator, "a")
    for table in operator.tables.values():
        table.begin(2)
    with pytest.raises(UserFunctionError, match="no"):
        operator.process([(0, pa.record_batch([["b", "!"]], names=["k"]))], BatchContext(2, 0, "visits", 1))
    end(operator, undo=True)
    run(operator, "c", batch=2)
    assert stored(operator) == ["a", "c"]


@pytest.mark.parametrize("function", [Seen(), SeenInBatches()])
def test_a_dead_letter_leaves_no_entry(function: Any) -> None:
    operator = opened(function, "dead_letter")
    result = run(operator, "ab!c!d")
    assert len(result.bad) == 2
    assert stored(operator) == ["a", "b", "c", "d"]


def test_only_entries_that_change_are_in_the_change_set() -> None:
    class Rewritten(hf.ProcessFunction):
        seen = hf.SplitListState(pa.string())

        def process(self, row: Any, ctx: Any) -> None:
            self.seen.update(list(row.k))

    operator = opened(Rewritten())
    changed = []
    for batch, text in enumerate(["abcd", "abcd", "abXd", "ab", "abef"], 1):
        for table in operator.tables.values():
            table.begin(batch)
        operator.process([(0, pa.record_batch([[text]], names=["k"]))], BatchContext(batch, 0, "visits", 1))
        changes = operator.tables[TABLE].changes()
        changed.append(0 if changes is None else changes.num_rows)
        end(operator)
        assert "".join(stored(operator)) == text
    assert changed == [4, 0, 1, 2, 2]


def test_open_sees_the_union_and_later_calls_the_own_entries_only() -> None:
    operator, Seen.opened = opened(Seen()), []
    run(operator, "ab")
    other = opened(Seen(), opening=Opening(range(64, 96)))
    run(other, "c")
    whole = pa.concat_batches([each.tables[TABLE].snapshot() for each in (operator, other)])
    Seen.opened = []
    operator.open(Opening(range(32, 64), {TABLE: whole}))
    assert Seen.opened == [(["c", "a", "b"], ["a", "b"])]
    assert run(operator, "d", batch=2).output[0].to_pylist() == [{"k": "d", "n": 3}]


def test_the_union_and_changes_are_refused_where_they_mean_nothing() -> None:
    class AsksLate(Seen):
        def process(self, row: Any, ctx: Any) -> None:
            self.seen.union()

    with pytest.raises(UserFunctionError, match=r"union\(\) was called outside of open"):
        run(opened(AsksLate()), "a")

    class ChangesEarly(Seen):
        def open(self, ctx: Any) -> None:
            self.seen.add("a")

    with pytest.raises(UserFunctionError, match=r"'seen': it was changed outside of process\(\)"):
        opened(ChangesEarly())

    class Misfits(Seen):
        def process(self, row: Any, ctx: Any) -> None:
            self.seen.add(7)  # type: ignore[arg-type, unused-ignore]

    with pytest.raises(UserFunctionError, match="state 'seen', an entry: found 7"):
        run(opened(Misfits()), "a")
    with pytest.raises(HoldfastError, match="outside of its function's calls"):
        Seen().seen.get()


def test_each_time_of_opening_has_a_copy_of_its_own_and_the_earlier_one_is_closed() -> None:
    EVENTS.clear()
    operator = opened(Counting())
    run(operator, "ab")
    operator.open(Opening(range(32, 64)))
    assert run(operator, "a", batch=2).output[0].to_pylist() == [{"k": "a", "n": 1}]
    operator.close()
    assert EVENTS == ["open", "close", "open", "close"]


def test_an_operator_that_was_never_opened_closes_nothing() -> None:
    class Closes(Seen):
        def close(self) -> None:
            raise AssertionError("it was never opened")

    ProcessSpec("visits", OperatorInput(INPUT, ("k",)), Closes(), OUTPUT).create(0, 128).close()


# --- where entries belong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_parallelism", [1, 2, 128, 1000, 32768])
def test_a_seat_lies_in_its_key_group(max_parallelism: int) -> None:
    seats = pa.record_batch([pa.array(seats_of(max_parallelism), pa.int64())], names=["seat"])
    assert key_groups(encode_keys(seats, ["seat"]), max_parallelism).tolist() == list(range(max_parallelism))


@pytest.mark.parametrize(("before", "after"), [(1, 4), (2, 3), (3, 2), (4, 1), (4, 16), (8, 3), (5, 7)])
def test_shares_after_a_rescale_are_about_equal(before: int, after: int) -> None:
    entries = 20
    groups = [
        key_group_of(position, range(*key_group_range(subtask, before, 128)))
        for subtask in range(before)
        for position in range(entries)
    ]
    shares = Counter(group * after // 128 for group in groups)
    assert sum(shares.values()) == before * entries
    fair = before * entries / after
    assert max(abs(shares[subtask] - fair) for subtask in range(after)) <= 0.15 * fair + 1


def test_entries_survive_any_sequence_of_rescales() -> None:
    """Lists are moved as recovery moves tables: by their key groups."""
    rng = random.Random(7)
    declared = hf.SplitListState(pa.int64())
    model, number, lists = Counter[int](), 0, list[SubtaskList]()
    for _ in range(12):
        parallelism, rows = rng.randint(1, 9), [each.table.snapshot() for each in lists]
        lists = [SubtaskList("o", "s", declared, 128) for _ in range(parallelism)]
        for subtask, each in enumerate(lists):
            start, stop = key_group_range(subtask, parallelism, 128)
            for some in rows:
                each.table.apply(some, start, stop)
            each.open(range(start, stop))
        for each in lists:
            each.table.begin(1)
            each.begin()
            kept = each.entries()
            gone = rng.sample(range(len(kept)), len(kept) // 3)
            new = [number + i for i in range(rng.randint(0, 4))]
            number += len(new)
            model.subtract(kept[i] for i in gone)
            model.update(new)
            each.replace([value for i, value in enumerate(kept) if i not in gone])
            for value in new:
                each.add(value)
            each.store()
            each.end()
            each.table.commit()
        found = Counter(value for each in lists for value in each.entries())
        assert found == +model
        assert found == Counter(row["__value"] for each in lists for row in each.table.snapshot().to_pylist())


# --- declarations -----------------------------------------------------------------------------------------------------


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(SettingsError, match="UnionListState type is 'text'"):
        hf.UnionListState("text")  # type: ignore[arg-type]

    class Twice(Seen):
        seen = hf.ValueState(pa.string())  # type: ignore[assignment]

    with pytest.raises(SettingsError, match="'seen' of Twice is declared twice"):
        opened(Twice())

    class Base(hf.ProcessFunction):
        seen = SubtaskListState(pa.string())

        def process(self, row: Any, ctx: Any) -> None:
            return

    with pytest.raises(SettingsError, match="declare a UnionListState or a SplitListState"):
        opened(Base())

    class InInstance(hf.ProcessFunction):
        def __init__(self) -> None:
            self.seen = hf.UnionListState(pa.string())

        def process(self, row: Any, ctx: Any) -> None:
            return

    with pytest.raises(SettingsError, match=r"InInstance\.seen is a UnionListState that was put into the instance"):
        opened(InInstance())

    class Named(hf.ProcessFunction):
        k = hf.UnionListState(pa.string())

        def process(self, row: Any, ctx: Any) -> None:
            return

    with pytest.raises(JobRefused, match="state 'k' has the name of a key column"):
        opened(Named())
