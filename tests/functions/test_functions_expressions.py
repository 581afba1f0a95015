"""The columns that expressions of PyArrow read, against binding each expression without one column after another."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.functions.rows import expressions
from holdfast.functions.rows.expressions import needed_columns, types_of

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("state", pa.string()),
        ("a b", pa.int64()),
        ("inner", pa.struct([("x", pa.int64())])),
        ("größe", pa.int64()),
        *[(f"c{number}", pa.int64()) for number in range(20)],
    ]
)
EXPRESSIONS = [
    pc.field("state").isin(["OR", "id"]),
    pc.field(0) + 1,
    pc.field("inner", "x"),
    pc.field("a b") * pc.field("größe"),
    pc.if_else(pc.field("id") > 3, pc.scalar("c4"), pc.field("state")),
    pc.field("c1") + pc.field("c11"),
    pc.scalar(1),
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_the_columns_that_an_expression_reads_are_those_without_which_it_cannot_be_bound(expression: Any) -> None:
    found = []
    for place, name in enumerate(SCHEMA.names):
        try:
            types_of(SCHEMA.remove(place), {"made": expression})
        except pa.ArrowException:
            found.append(name)
    assert needed_columns(SCHEMA, [expression]) == found


def test_an_expression_is_bound_only_without_the_columns_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = []
    monkeypatch.setattr(expressions, "types_of", lambda schema, given: bound.append(schema) or types_of(schema, given))
    assert needed_columns(SCHEMA, [pc.field("c13") < 4]) == ["c13"]
    assert len(bound) <= 4, "c1, c13, and the columns whose names may be shown otherwise"
