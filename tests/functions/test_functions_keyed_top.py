"""`top` without a window against a recomputation in Python, over undo and restarts."""

import random
from pathlib import Path

import pytest
from functions_kit import divided
from functions_windows_kit import BACKENDS, SCHEMA, Row, batch_of, commit, restored, undo

from holdfast.errors import JobRefused
from holdfast.functions.operator import BatchContext, EventTime, NewTable, OperatorInput
from holdfast.functions.ranking import keyed_top
from holdfast.functions.ranking.keyed_top import KeyedTopSpec
from holdfast.state.backends import tables_of
from sampling import some

INPUT = OperatorInput(SCHEMA, ("k",), EventTime(("at",), "at"))


@pytest.fixture(params=["hashmap", "cache"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


def order(row: Row, least: bool) -> tuple[bool, int]:
    value = row[2] or 0
    return row[2] is None, value if least else -value


@pytest.mark.parametrize(("least", "ranks"), some([(False, 40), (True, 3), (False, 3), (True, 40)], 0, 1))
def test_ranks_are_those_of_a_recomputation(
    least: bool, ranks: int, tables: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_top, "LONG_KEY", 8)
    monkeypatch.setattr(keyed_top, "PROBES", 3)
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    spec = KeyedTopSpec("top", INPUT, ranks, "v", least)
    operator = spec.create(0, 128, tables)
    seen: dict[str, list[Row]] = {}
    shown: dict[tuple[str, int], int] = {}
    for number in range(1, 40):
        rows = [
            (chance.choice("abc"), number * 100 + place, chance.choice([None, *range(30)]))
            for place in range(chance.choice([0, 1, 3, 40]))
        ]
        sender = spec.combiner(True, None)
        assert sender is not None
        sent = [*sender.take(batch_of(rows)), *sender.finish()] if rows else []
        for table in operator.tables.values():
            table.begin(number)
        result = operator.process(divided(operator, number, sent), BatchContext(number, 0, "top", 0))
        if chance.random() < 0.2:
            undo(operator)
            continue
        commit(operator)
        for row in rows:
            seen.setdefault(row[0], []).append(row)
        given = [row for batch in result.output for row in batch.to_pylist()]
        assert len({(row["k"], row["rank"]) for row in given}) == len(given)
        shown |= {(row["k"], row["rank"]): round(row["at"].timestamp()) for row in given}
        for key, kept in seen.items():
            best = sorted(kept, key=lambda row: order(row, least))[:ranks]
            assert [shown[key, place + 1] for place in range(len(best))] == [at for _, at, _ in best]
        if chance.random() < 0.1:
            operator = restored(operator, spec, tables)


def test_a_rank_in_the_input_and_columns_without_an_order_are_refused() -> None:
    with pytest.raises(JobRefused, match="rank"):
        KeyedTopSpec("top", OperatorInput(SCHEMA.set(2, SCHEMA.field("v").with_name("rank")), ("k",)), 3, "at")
    with pytest.raises(JobRefused, match="no such column"):
        KeyedTopSpec("top", INPUT, 3, "nothing")


@pytest.mark.parametrize("ranks", [2_000, 16_000])
def test_a_row_touches_the_ranks_that_it_changes_however_many_its_key_has(ranks: int) -> None:
    spec = KeyedTopSpec("top", INPUT, ranks, "v")
    operator = spec.create(0, 128)
    touched = []
    for number, values in enumerate((range(100, 100 + ranks), [5], [103]), 1):
        for table in operator.tables.values():
            table.begin(number)
        rows = batch_of([("a", number * 100, value) for value in values])
        result = operator.process([(0, rows)], BatchContext(number, 0, "top", 0))
        touched.append((len(operator.tables["rows"].touched()), sum(batch.num_rows for batch in result.output)))
        commit(operator)
    assert [out for _, out in touched] == [ranks, 0, 3], "a row that is equal to a stored row comes behind it"
    assert max(count for count, _ in touched[1:]) <= 4 * keyed_top.PROBES
