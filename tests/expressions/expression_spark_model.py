"""Expressions over the same rows, here and in Spark, in one query for all of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.expressions.declared import SqlExpression
from holdfast.expressions.nodes import ExpressionRefused, SqlSettings

CLOSE = 1e-12
"""Relative difference of results of functions such as `sin`, which Java and C calculate to the last digit but one."""
ROUGH = {
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "acosh",
    "asinh",
    "atanh",
    "cot",
    "csc",
    "sec",
    "sinh",
    "cosh",
    "tanh",
    "exp",
    "expm1",
    "ln",
    "log",
    "log10",
    "log2",
    "log1p",
    "pow",
    "power",
    "cbrt",
    "hypot",
    "degrees",
    "radians",
}


@dataclass(frozen=True)
class Found:
    """The values of an expression. `failed`: the rows for which it fails; `refused`: why it does not run here."""

    kind: pa.DataType | None
    values: list[Any]
    failed: dict[int, str]
    refused: str = ""


def here(text: str, table: pa.Table, settings: SqlSettings) -> Found:
    """Run an expression here, over all rows at once, or over halves of them where rows fail."""
    rows = table.combine_chunks().to_batches()[0]
    try:
        bound = SqlExpression(text, settings).bound(rows.schema)
    except ExpressionRefused as error:
        return Found(None, [], {}, str(error))
    values: list[Any] = [None] * rows.num_rows
    failed: dict[int, str] = {}
    waiting = [(0, rows.num_rows)]
    while waiting:
        first, count = waiting.pop()
        try:
            made = bound(rows.slice(first, count))
            assert made.type == bound.type, f"{text}: gave {made.type}, said {bound.type}"
            made.validate(full=True)
            values[first : first + count] = comparable(made)
        except pa.ArrowInvalid as error:
            if count == 1:
                failed[first] = str(error)
                continue
            waiting += [(first, count // 2), (first + count // 2, count - count // 2)]
    return Found(bound.type, values, failed)


def in_spark(frame: Any, found: dict[str, Found]) -> dict[str, pa.ChunkedArray | str]:
    """Run expressions in Spark over the rows for which they do not fail here; a text says why Spark has none."""
    asked = {}
    for text, each in found.items():
        guarded = text
        if each.failed:
            guarded = f"case when id in ({','.join(map(str, each.failed))}) then null else {text} end"
        asked[text] = guarded
    return dict(zip(asked, _answers(frame, list(asked.values())), strict=True))


def _answers(frame: Any, texts: Sequence[str]) -> list[Any]:
    """Ask for all texts in one query; where Spark refuses, halve."""
    try:
        table = frame.selectExpr("id", *[f"{text} as c{place}" for place, text in enumerate(texts)]).toArrow()
        table = table.sort_by("id")
        return [table.column(f"c{place}") for place in range(len(texts))]
    except Exception as error:
        if len(texts) == 1:
            return [str(error).splitlines()[0][:200]]
        half = len(texts) // 2
        return [*_answers(frame, texts[:half]), *_answers(frame, texts[half:])]


def comparable(array: Any) -> list[Any]:
    """Return values as Python has them; times as numbers, since Python has no years beyond 9999."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_date(kind):
        array = array.cast(pa.int32())
    return list(array.to_pylist())


def same(one: Any, other: Any, rough: bool) -> bool:
    """Compare values; NaN equals NaN, and -0.0 is not 0.0."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        if rough and one and other:
            return math.isclose(one, other, rel_tol=CLOSE)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b, rough) for a, b in zip(one, other, strict=True))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(a, b, rough) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], rough) for key in one)
    return type(one) is type(other) and one == other


def plain(kind: pa.DataType) -> str:
    """Write a type without what Spark and Arrow name differently: the zone of instants, nulls, fields of lists."""
    types = pa.types
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if types.is_map(kind):
        return f"map({plain(kind.key_type)}, {plain(kind.item_type)})"
    if types.is_list(kind):
        return f"list({plain(kind.value_type)})"
    if types.is_struct(kind):
        return f"struct({', '.join(f'{each.name}: {plain(each.type)}' for each in kind)})"
    return str(kind)


def differences(name: str, text: str, found: Found, answer: Any, table: pa.Table) -> list[str]:
    """Say where an answer of Spark differs from the values here."""
    if isinstance(answer, str):
        return [f"{text}: Spark refuses: {answer}"]
    if plain(answer.type) != plain(found.kind):
        return [f"{text}: the type is {plain(found.kind)} here, {plain(answer.type)} in Spark"]
    said = []
    for row, (one, other) in enumerate(zip(found.values, comparable(answer), strict=True)):
        if not same(one, other, name in ROUGH):
            columns = {each: table.column(each)[row].as_py() for each in table.column_names if each in text}
            said.append(f"{text}: {one!r} here, {other!r} in Spark, for {columns}")
    return said
