"""Spark's types as Arrow types: their names, the order in which numbers widen, and the types of decimal results."""

from typing import Any

import pyarrow as pa
from sqlglot import exp

from holdfast.expressions.nodes import ExpressionRefused

INSTANT = pa.timestamp("us", "UTC")
"""Spark's TIMESTAMP: an instant."""
LOCAL = pa.timestamp("us")
"""Spark's TIMESTAMP_NTZ."""
SPAN = pa.duration("us")
"""Spark's INTERVAL DAY TO SECOND."""
MONTHS = pa.month_day_nano_interval()
"""An interval with months, which is never a value of a column."""
DIGITS_MAX = 38

_WIDTHS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_NAMES = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT", pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE", pa.string(): "STRING", pa.binary(): "BINARY", pa.bool_(): "BOOLEAN", pa.date32(): "DATE",
    INSTANT: "TIMESTAMP", LOCAL: "TIMESTAMP_NTZ", SPAN: "INTERVAL DAY TO SECOND", pa.null(): "VOID", MONTHS: "INTERVAL",
}  # fmt: skip
_BY_SQL: dict[Any, pa.DataType] = {
    exp.DataType.Type.TINYINT: pa.int8(), exp.DataType.Type.SMALLINT: pa.int16(), exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(), exp.DataType.Type.FLOAT: pa.float32(), exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.TEXT: pa.string(), exp.DataType.Type.BINARY: pa.binary(), exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.DATE: pa.date32(), exp.DataType.Type.TIMESTAMP: INSTANT, exp.DataType.Type.TIMESTAMPTZ: INSTANT,
    exp.DataType.Type.TIMESTAMPLTZ: INSTANT, exp.DataType.Type.TIMESTAMPNTZ: LOCAL,
}  # fmt: skip


def type_name(kind: pa.DataType) -> str:
    """Return Spark's name of a type."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"MAP<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{each.name}: {type_name(each.type)}' for each in kind)}>"
    return _NAMES.get(kind, str(kind))


def spark_type(kind: pa.DataType) -> pa.DataType | None:
    """Return Spark's type for the values of an Arrow type; None if it has none."""
    types = pa.types
    if kind in _NAMES and kind != MONTHS:
        return kind
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= DIGITS_MAX and kind.scale >= 0 else None
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.unit != "ns":
        return LOCAL if kind.tz is None else INSTANT
    if types.is_duration(kind) and kind.unit != "ns":
        return SPAN
    if types.is_struct(kind):
        made = [spark_type(each.type) for each in kind]
        return None if None in made else pa.struct([pa.field(f.name, t) for f, t in zip(kind, made, strict=True)])
    if types.is_map(kind):
        key, item = spark_type(kind.key_type), spark_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if types.is_list(kind) or types.is_large_list(kind):
        value = spark_type(kind.value_type)
        return None if value is None else pa.list_(value)
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    return wider.get(kind)


def type_of_sql(declared: exp.DataType) -> pa.DataType:
    """Return the type that a text such as `DECIMAL(10, 2)` or `ARRAY<INT>` names."""
    kind = declared.this
    inner = declared.expressions
    if kind in _BY_SQL and not inner:
        return _BY_SQL[kind]
    if kind == exp.DataType.Type.DECIMAL:
        digits = [int(each.name) for each in inner] or [10]
        precision, scale = digits[0], digits[1] if len(digits) > 1 else 0
        if not 1 <= precision <= DIGITS_MAX or not 0 <= scale <= precision:
            raise ExpressionRefused(
                f"DECIMAL({precision},{scale}): at most {DIGITS_MAX} digits, and no more behind the point"
            )
        return pa.decimal128(precision, scale)
    if kind == exp.DataType.Type.ARRAY and len(inner) == 1:
        return pa.list_(type_of_sql(inner[0]))
    if kind == exp.DataType.Type.MAP and len(inner) == 2:
        return pa.map_(type_of_sql(inner[0]), type_of_sql(inner[1]))
    if kind == exp.DataType.Type.STRUCT and inner:
        if any(each.args.get("kind") is None for each in inner):
            raise ExpressionRefused(
                f"{declared.sql('spark')}: expected a name and a type for each field, as in `a: INT`"
            )
        return pa.struct([pa.field(each.name, type_of_sql(each.args["kind"])) for each in inner])
    raise ExpressionRefused(f"the type {declared.sql('spark')} is not supported in expressions; use transform(…)")


def is_integer(kind: pa.DataType) -> bool:
    return kind in _DIGITS


def is_number(kind: pa.DataType) -> bool:
    return is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def is_time(kind: pa.DataType) -> bool:
    return kind in (pa.date32(), INSTANT, LOCAL)


def decimal_of(kind: pa.DataType, digits: int | None = None) -> pa.DataType:
    """Return the decimal type that holds the values of a whole number, or of a decimal."""
    return kind if pa.types.is_decimal(kind) else pa.decimal128(digits or _DIGITS[kind], 0)


def bounded(precision: int, scale: int) -> pa.DataType:
    """Return the decimal type that Spark gives a result: if it has too many digits, decimal places are cut first."""
    if precision <= DIGITS_MAX:
        return pa.decimal128(precision, scale)
    whole = precision - scale
    return pa.decimal128(DIGITS_MAX, max(DIGITS_MAX - whole, min(scale, 6)))


def wider_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the decimal type in which two decimals are compared or combined."""
    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    if whole + scale <= DIGITS_MAX:
        return pa.decimal128(whole + scale, scale)
    return bounded(whole + scale, scale)


def wider_number(one: pa.DataType, other: pa.DataType, ansi: bool) -> pa.DataType:
    """Return the type in which Spark combines two numbers."""
    if one == other:
        return one
    if is_integer(one) and is_integer(other):
        return max(one, other, key=_WIDTHS.index)
    if pa.types.is_decimal(one) or pa.types.is_decimal(other):
        if pa.types.is_floating(one) or pa.types.is_floating(other):
            return pa.float64()
        return wider_decimal(decimal_of(one), decimal_of(other))
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return pa.float64()
    whole = one if is_integer(one) else other
    floating = other if is_integer(one) else one
    return pa.float64() if floating == pa.float64() or (ansi and whole in (pa.int32(), pa.int64())) else pa.float32()


def common_type(one: pa.DataType, other: pa.DataType, ansi: bool) -> pa.DataType | None:
    """Return the type in which Spark combines values of two types; None if there is none."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if is_number(one) and is_number(other):
        return wider_number(one, other, ansi)
    if is_time(one) and is_time(other):
        return INSTANT if INSTANT in (one, other) else LOCAL
    if pa.string() in (one, other):
        return _with_text(other if one == pa.string() else one, ansi)
    if types.is_map(one) and types.is_map(other):
        key, item = common_type(one.key_type, other.key_type, ansi), common_type(one.item_type, other.item_type, ansi)
        return None if key is None or item is None else pa.map_(key, item)
    if types.is_list(one) and types.is_list(other):
        value = common_type(one.value_type, other.value_type, ansi)
        return None if value is None else pa.list_(value)
    if types.is_struct(one) and types.is_struct(other) and [f.name for f in one] == [f.name for f in other]:
        made = [common_type(a.type, b.type, ansi) for a, b in zip(one, other, strict=True)]
        return None if None in made else pa.struct([pa.field(f.name, t) for f, t in zip(one, made, strict=True)])
    return None


def _with_text(other: pa.DataType, ansi: bool) -> pa.DataType | None:
    """Return the common type of a string and another type: in ANSI mode that of the other, in its widest form; in other
    modes None, because it depends on the operation."""
    if not ansi:
        return None
    if is_integer(other):
        return pa.int64()
    if pa.types.is_floating(other) or pa.types.is_decimal(other):
        return pa.float64()
    return other if is_time(other) or other in (pa.bool_(), pa.binary()) else None
