"""Values that row functions hold as Python objects count as memory before their batch ends."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import StateTooLarge
from holdfast.functions.operator import BatchContext, BatchRoom, OperatorInput
from holdfast.functions.process.by_row import row_operator
from holdfast.functions.process.declared import ProcessFunction, ProcessSpec
from holdfast.functions.process.shared.states import ListState, MapState, ValueState

INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.int64())])
WIDE = 1_000


class Value(ProcessFunction):
    kept = ValueState(pa.string(), default="")

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        self.kept.update(f"{row.v:0{WIDE}}")
        yield {"k": row.k}


class Listed(ProcessFunction):
    kept = ListState(pa.string())

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        self.kept.add(f"{row.v:0{WIDE}}")
        yield {"k": row.k}


class Mapped(ProcessFunction):
    kept = MapState(pa.int64(), pa.string())

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        self.kept.put(row.v, f"{row.v:0{WIDE}}")
        yield {"k": row.k}


@pytest.mark.parametrize(("function", "keys"), [(Value(), 2_000), (Listed(), 2_000), (Listed(), 2), (Mapped(), 2)])
def test_objects_are_measured_after_each_slice_and_forgotten_with_the_batch(
    function: ProcessFunction, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_operator, "SLICE_ROWS", 100)
    operator = ProcessSpec("texts", OperatorInput(INPUT, ("k",)), function, OUTPUT).create(0, 128)
    seen: list[int] = []
    operator.room = BatchRoom(100 * WIDE, lambda: seen.append(operator.memory_bytes))
    rows = pa.RecordBatch.from_pydict({"k": [n % keys for n in range(1_000)], "v": list(range(1_000))}, INPUT)
    for number in (1, 2):
        for table in operator.tables.values():
            table.begin(number)
        operator.process([(0, rows)], BatchContext(number, 0, "texts", 0))
        assert operator.memory_bytes < 100 * WIDE, "forgotten"
        for table in operator.tables.values():
            table.commit()
    assert len(seen) in range(10, 21), "a check for each 100 texts or some more"
    assert 1_000 * WIDE < max(seen) < 3_000 * WIDE


def test_a_room_that_is_full_ends_the_batch_in_its_midst() -> None:
    def full() -> None:
        raise StateTooLarge("full")

    operator = ProcessSpec("texts", OperatorInput(INPUT, ("k",)), Listed(), OUTPUT).create(0, 128)
    operator.room = BatchRoom(WIDE, full)
    operator.tables["state"].begin(1)
    with pytest.raises(StateTooLarge):
        operator.process(
            [(0, pa.RecordBatch.from_pydict({"k": [1] * 10, "v": [1] * 10}, INPUT))], BatchContext(1, 0, "texts", 0)
        )
    assert operator.memory_bytes == 0
