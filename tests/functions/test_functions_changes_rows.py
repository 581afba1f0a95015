"""`last`, `top`, `drop_duplicates` and joins over changes: after every batch they are the query over the tables."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from functions_kit import divided, end

import duckdb_kit
import holdfast as hf
from changes_kit import ChangingTable, Told, in_order
from holdfast.functions.changes.ranked import RankedChangesSpec
from holdfast.functions.joins.bounds import Forever
from holdfast.functions.joins.changes_join import ChangesJoinSpec, without_change_type
from holdfast.functions.operator import BatchContext, Operator, OperatorInput
from holdfast.ids import BatchNumber

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("d", pa.float64()), ("s", pa.string())])
CHANGE = pa.field("_change_type", pa.string())
RANKED = """SELECT * EXCLUDE (place) FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY {order}) place FROM t)
    WHERE place <= {n}"""


def step(operator: Operator, number: int, inputs: Sequence[tuple[int, pa.RecordBatch]]) -> list[dict[str, Any]]:
    """A batch, which now and then is undone first."""
    for attempt in range(2 if number % 3 == 0 else 1):
        for table in operator.tables.values():
            table.begin(BatchNumber(number))
        result = operator.process(divided(operator, number, list(inputs)), BatchContext(BatchNumber(number), 0, "o", 0))
        out = [row for each in result.output for row in each.to_pylist()]
        end(operator, undo=number % 3 == 0 and attempt == 0)
    return out


def all_gone(table: ChangingTable) -> pa.RecordBatch:
    return table.batch([{**row, "_change_type": "delete"} for row in table.rows])


def empty(operator: Operator) -> bool:
    return [len(each) for each in operator.tables.values()] == [0] * len(operator.tables)


FIRST_ROWS = {
    "last": ({"by": "d"}, "d DESC NULLS LAST, v NULLS LAST, s NULLS LAST", 1),
    "least": ({"by": "s", "least": True}, "s NULLS LAST, v NULLS LAST, d NULLS LAST", 1),
    "top": ({"n": 3, "by": "v", "ranked": True}, "v DESC NULLS LAST, d NULLS LAST, s NULLS LAST", 3),
    "first": ({}, "v NULLS LAST, d NULLS LAST, s NULLS LAST", 1),
}


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("kind", FIRST_ROWS)
def test_the_first_rows_of_keys_are_those_of_the_table_after_every_batch(kind: str, changes: bool) -> None:
    settings, order, n = FIRST_ROWS[kind]
    given = OperatorInput(SCHEMA.append(CHANGE), ("k",), kind="changes")
    operator = RankedChangesSpec("o", given, kind, **settings, changes=changes).create(0, 8)
    table, told = ChangingTable(len(kind), SCHEMA), Told(upserts=not changes, keys=2 if kind == "top" else 1)
    query = RANKED.format(order=order, n=n)
    if kind == "top":
        query = query.replace("* EXCLUDE (place)", "k, place, v, d, s", 1)
    for number in range(1, 13):
        told.take(step(operator, number, [(0, table.batch(table.change(table.random.choice([1, 4, 25]))))]))
        assert told.now() == table.query(query)
    told.take(step(operator, 99, [(0, all_gone(table))]))
    assert told.now() == []
    assert empty(operator)


def test_the_first_rows_of_a_long_key_follow_changes_at_both_ends() -> None:
    """A key with more rows than its answer: rows come and go before, in and behind the answer, and all at once."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    given = OperatorInput(schema.append(CHANGE), ("k",), kind="changes")
    operator = RankedChangesSpec("o", given, "top", 5, "v", ranked=True).create(0, 8)
    table, told, draw = ChangingTable(0, schema), Told(), random.Random(3)
    told.take(step(operator, 1, [(0, table.batch(change(table, [{"k": 1, "v": v} for v in range(200)], [])))]))
    for number in range(2, 30):
        gone = [*draw.sample(sorted(row["v"] for row in table.rows)[-10:], draw.randint(0, 6)), draw.randint(0, 99)]
        came = [{"k": 1, "v": draw.randint(0, 400)} for _ in range(draw.randint(0, 3))]
        told.take(step(operator, number, [(0, table.batch(change(table, came, gone)))]))
        best = sorted((row["v"] for row in table.rows), reverse=True)[:5]
        assert told.now() == in_order((1, rank, v) for rank, v in enumerate(best, 1))


COPIES = pa.schema([("k", pa.int64()), ("s", pa.string())])


@pytest.mark.parametrize("kind", ["first", "all keys"])
def test_copies_of_a_row_count_also_where_some_go_before_they_come(kind: str) -> None:
    keys = ("k",) if kind == "first" else ("k", "s")
    operator = RankedChangesSpec("o", OperatorInput(COPIES.append(CHANGE), keys, kind="changes"), kind).create(0, 8)
    row = {"k": 1, "s": "a"}
    steps = [("delete", 300), ("insert", 300), ("insert", 1_000), ("delete", 999), ("delete", 1)]
    found = []
    for number, (change_type, count) in enumerate(steps, 1):
        batch = pa.RecordBatch.from_pylist([{**row, "_change_type": change_type}] * count, COPIES.append(CHANGE))
        found.append([each["_change_type"] for each in step(operator, 3 * number + 1, [(0, batch)])])
    assert found == [[], [], ["insert"], [], ["delete"]]
    assert empty(operator)


def test_the_log_of_a_key_stays_as_long_as_its_rows() -> None:
    """Rows of a hundred bytes, most behind the answer: full blocks appear, and go with the rows."""
    given = OperatorInput(COPIES.append(CHANGE), ("k",), kind="changes")
    operator = RankedChangesSpec("o", given, "first").create(0, 8)
    rows = [{"k": 1, "s": f"{number:04}".ljust(100)} for number in range(200)]

    def entries(number: int, changes: list[tuple[str, dict[str, Any]]]) -> int:
        made = [{**row, "_change_type": kind} for kind, row in changes]
        step(operator, number, [(0, pa.RecordBatch.from_pylist(made, COPIES.append(CHANGE)))])
        found: int = operator.tables["state"].column("kept.entries").values.max()
        return found

    assert entries(1, [("insert", row) for row in rows]) == 200
    assert len(operator.tables["kept.blocks"]) > 0
    for number in range(10):
        again = [(kind, row) for row in rows[100:150] for kind in ("delete", "insert")]
        assert entries(10 + 3 * number, again) <= 2 * 200 + 32 + 100
    assert entries(100, [("delete", row) for row in rows[50:]]) <= 2 * 50 + 32 + 150
    assert entries(103, [("delete", row) for row in rows[1:50]]) <= 2 * 50 + 32
    assert entries(106, [("delete", rows[0])]) == 0
    assert empty(operator)


def change(table: ChangingTable, came: list[dict[str, Any]], gone: list[int]) -> list[dict[str, Any]]:
    """Changes that take rows with these values out of a table, as far as there are any, and put others in."""
    made = [{**row, "_change_type": "insert"} for row in came]
    for value in gone:
        found = next((row for row in table.rows if row["v"] == value), None)
        if found is not None:
            table.rows.remove(found)
            made.append({**found, "_change_type": "delete"})
    table.rows += came
    return made


LEFT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
RIGHT = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("d", pa.float64())])
PAIRS = "SELECT coalesce(l.k, r.k) AS k, v, s, w, d FROM l {how} JOIN r ON l.k = r.k"
EXISTS = "SELECT * FROM l WHERE {how} (SELECT * FROM r WHERE r.k = l.k)"
JOINS = {
    **{how: PAIRS.format(how=how) for how in ("inner", "left", "right")},
    "outer": PAIRS.format(how="full"),
    "semi": EXISTS.format(how="EXISTS"),
    "anti": EXISTS.format(how="NOT EXISTS"),
}


def join_of(how: Any, kinds: tuple[Any, Any] = ("changes", "changes")) -> Operator:
    given = tuple(
        OperatorInput(schema.append(CHANGE), ("k",), kind=kind)
        for schema, kind in zip((LEFT, RIGHT), kinds, strict=True)
    )
    sides = without_change_type(given[0]), without_change_type(given[1])
    return ChangesJoinSpec("o", sides, Forever(), how, given=given).create(0, 8)


def joined(left: ChangingTable, right: ChangingTable, query: str) -> list[tuple[Any, ...]]:
    with duckdb_kit.connection() as connection:
        connection.register("l", pa.Table.from_pylist(left.rows, LEFT))
        connection.register("r", pa.Table.from_pylist(right.rows, RIGHT))
        return in_order(connection.execute(query).fetchall())


@pytest.mark.parametrize("how", JOINS)
def test_a_join_is_that_of_both_tables_after_every_batch(how: str) -> None:
    operator, told, draw = join_of(how), Told(), random.Random(len(how))
    left, right = ChangingTable(len(how), LEFT, keys=6), ChangingTable(50 + len(how), RIGHT, keys=8)
    for number in range(1, 16):
        inputs = []
        for side in draw.choice([(0,), (1,), (0, 1), (1, 0)]):
            table = (left, right)[side]
            inputs.append((side, table.batch(table.change(draw.choice([1, 4, 20])))))
        told.take(step(operator, number, inputs))
        assert told.now() == joined(left, right, JOINS[how])
    told.take(step(operator, 99, [(side, all_gone(table)) for side, table in enumerate((left, right))]))
    assert told.now() == []
    assert empty(operator)


@pytest.mark.parametrize("how", ["inner", "outer", "semi"])
def test_the_order_of_changes_does_not_matter_for_the_end_of_a_join(how: str) -> None:
    left, right, draw = ChangingTable(1, LEFT), ChangingTable(2, RIGHT), random.Random(0)
    changes = [(side, each) for _ in range(4) for side, table in enumerate((left, right)) for each in table.change(6)]
    draw.shuffle(changes)
    told, operator = Told(), join_of(how)
    for number, start in enumerate(range(0, len(changes), 7), 1):
        piece = changes[start : start + 7]
        inputs = [
            (side, table.batch([each for of, each in piece if of == side])) for side, table in enumerate((left, right))
        ]
        told.take(step(operator, number, inputs))
    assert told.now() == joined(left, right, JOINS[how])


def test_an_update_of_a_side_updates_the_rows_that_it_makes() -> None:
    operator, schema = join_of("left"), (LEFT.append(CHANGE), RIGHT.append(CHANGE))
    orders = [{"k": 1, "v": v, "s": "o", "_change_type": "insert"} for v in (1, 2)]
    first = step(operator, 1, [(0, pa.RecordBatch.from_pylist(orders, schema[0]))])
    assert [(row["v"], row["w"], row["_change_type"]) for row in first] == [(1, None, "insert"), (2, None, "insert")]
    came = [{"k": 1, "w": 7, "d": 0.0, "_change_type": "insert"}]
    second = step(operator, 2, [(1, pa.RecordBatch.from_pylist(came, schema[1]))])
    before, after = "update_preimage", "update_postimage"
    assert [(row["v"], row["w"], row["_change_type"]) for row in second] == [
        (1, None, before),
        (1, 7, after),
        (2, None, before),
        (2, 7, after),
    ]
    changed = [{**came[0], "_change_type": before}, {**came[0], "w": 8, "_change_type": after}]
    both = [
        (0, pa.RecordBatch.from_pylist([{**orders[0], "_change_type": "delete"}], schema[0])),
        (1, pa.RecordBatch.from_pylist(changed, schema[1])),
    ]
    third = step(operator, 4, both)
    assert [(row["v"], row["w"], row["_change_type"]) for row in third] == [
        (1, 7, "delete"),
        (2, 7, before),
        (2, 8, after),
    ]


def test_values_that_cannot_be_found_again_are_refused_by_name() -> None:
    nested = pa.schema([("k", pa.int64()), ("l", pa.list_(pa.int64())), CHANGE])
    given = OperatorInput(nested, ("k",), kind="changes")
    with pytest.raises(hf.JobRefused, match=r"'o': last\(by='k'\) over a stream of changes finds rows by all.*'l' has"):
        RankedChangesSpec("o", given, "last(by='k')")
