"""Literals of Spark's SQL: numbers with their types, and intervals."""

import re
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from holdfast.expressions.nodes import ExpressionRefused, Term, constant
from holdfast.expressions.types import DIGITS_MAX, MONTHS, SPAN, is_integer

_UNITS_US = {
    "week": 604_800_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}


def number(text: str, kind: pa.DataType | None = None) -> Term:
    """Return the term of a number: INT or BIGINT; DECIMAL if it has a point, DOUBLE if it has an exponent."""
    if kind is not None and pa.types.is_floating(kind):
        return constant(pa.scalar(float(text), kind))
    if kind is not None and is_integer(kind):
        return constant(_whole(text, kind), len(text.lstrip("-")))
    if kind is None and "e" in text.lower():
        return constant(pa.scalar(float(text), pa.float64()))
    found = Decimal(text)
    if kind is None and "." not in text and -(2**63) <= int(text) < 2**63:
        fits = -(2**31) <= int(text) < 2**31
        return constant(pa.scalar(int(text), pa.int32() if fits else pa.int64()), len(text.lstrip("-")))
    if kind is None:
        scale = max(0, -int(found.as_tuple().exponent))
        precision = max(len(found.as_tuple().digits), scale)
        if precision > DIGITS_MAX:
            raise ExpressionRefused(f"the number {text} has more than {DIGITS_MAX} digits")
        kind = pa.decimal128(precision, scale)
    return constant(pa.scalar(found, kind))


def _whole(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(int(text), kind)
    except (ValueError, OverflowError, pa.ArrowInvalid) as error:
        raise ExpressionRefused(f"the number {text} is out of the range of its type") from error


def text_of_literal(tree: exp.Expression) -> str:
    if not isinstance(tree, exp.Literal) or not tree.is_string:
        raise ExpressionRefused(f"expected a text in quotes, found {tree.sql('spark')}")
    return str(tree.this)


def interval(tree: exp.Interval) -> Term:
    """Return the term of an interval: of months and years, or of shorter units. Spark does not mix them either."""
    unit = tree.args.get("unit")
    this = tree.this
    text = this.name if isinstance(this, exp.Literal) else f"-{this.this.name}" if isinstance(this, exp.Neg) else None
    if text is None:
        raise ExpressionRefused(f"{tree.sql('spark')}: an interval is a literal here, such as INTERVAL 5 MINUTES")
    whole = text if unit is None else f"{text} {unit.name}"
    value = interval_value(whole, tree.sql("spark"))
    of_days = re.fullmatch(r"(?i)\s*[+-]?[0-9]+\s*days?\s*", whole) is not None
    return Term(value.type, lambda _: value, constant=value, name="days" if of_days else None)


def interval_value(text: str, shown: str) -> pa.Scalar:
    """Read an interval such as `1 day 2 hours`. Raises `ExpressionRefused`."""
    parts = re.findall(r"\s*([+-]?[0-9]*\.?[0-9]+)\s*([a-zA-Z]+)", re.sub("^interval ", "", text.strip(), flags=re.I))
    if (
        not parts
        or re.sub(
            r"\s*[+-]?[0-9]*\.?[0-9]+\s*[a-zA-Z]+", "", re.sub("^interval ", "", text.strip(), flags=re.I)
        ).strip()
    ):
        raise ExpressionRefused(f"{shown}: expected an interval such as INTERVAL 5 MINUTES or INTERVAL '1 day 2 hours'")
    months, micros = 0, Decimal(0)
    for count, name in parts:
        unit = name.lower().removesuffix("s")
        if unit in ("year", "month", "quarter"):
            months += int(count) * {"year": 12, "quarter": 3, "month": 1}[unit]
        elif unit in _UNITS_US:
            micros += Decimal(count) * _UNITS_US[unit]
        else:
            raise ExpressionRefused(f"{shown}: the unit {name} is not supported in intervals")
    if months and micros:
        raise ExpressionRefused(f"{shown}: months or years and shorter units do not mix in an interval")
    if months:
        return pa.scalar((months, 0, 0), MONTHS)
    return pa.scalar(int(micros), SPAN)
