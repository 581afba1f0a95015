"""Values read from texts, as Spark's cast of STRING reads them."""

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions import zones
from holdfast.expressions.nodes import failed_where
from holdfast.expressions.types import INSTANT, LOCAL, is_integer, type_name

_FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?$"
_DECIMAL = r"^[+-]?(\p{Nd}+\.?\p{Nd}*|\.\p{Nd}+)([eE][+-]?\p{Nd}{1,9})?$"
"""A decimal: Java reads the digits of all scripts in it, though in no other number."""
_SPECIAL = {
    "inf": "inf",
    "+inf": "inf",
    "infinity": "inf",
    "+infinity": "inf",
    "-inf": "-inf",
    "-infinity": "-inf",
    "nan": "nan",
}
_TRUE = pa.array(["t", "true", "y", "yes", "1"])
_FALSE = pa.array(["f", "false", "n", "no", "0"])
_DATE = r"^(?P<y>-?[0-9]{4,7})(?:-(?P<m>[0-9]{1,2})(?:-(?P<d>[0-9]{1,2})(?:[ T](?s:.)*)?)?)?$"
_OFFSET = r"[+-](?:[0-9]{1,2}(?::[0-9]{1,2}(?::[0-9]{2})?)?|[0-9]{4}(?:[0-9]{2})?)"
_TIME = (
    r"^(?P<y>[0-9]{4,6})(?:-(?P<m>[0-9]{1,2})(?:-(?P<d>[0-9]{1,2})(?:[ T](?P<h>[0-9]{1,2})(?::(?P<n>[0-9]{1,2})"
    rf"(?::(?P<s>[0-9]{{1,2}})(?:\.(?P<f>[0-9]*))?\s*(?P<z>Z|UTC|GMT|{_OFFSET})?)?)?)?)?)?$"
)
"""A time. Only seconds are followed by a zone."""
_OTHER_TIME = r"^(?:[+-]?[0-9]{4,}-.*[A-Za-z]{2,}|[+-][0-9]{4,}|T?[0-9]{1,2}:[0-9])"
"""Forms of times that Spark may read and Holdfast does not: with the name of a zone, with a sign, or without a day."""
_DAYS_MAX = (2**63 - 1) // zones.DAY_US
"""Days from 1970 to the last time that a count of microseconds holds."""
_BLANK = "".join(map(chr, range(33))) + "\x7f"


def reader(wanted: pa.DataType, mode: str, zone: str) -> Callable[[pa.Array], pa.Array] | None:
    """Return the kernel that reads texts as values of a type; None if there is none."""
    if is_integer(wanted):
        return lambda array: _integers(array, wanted, mode)
    if pa.types.is_floating(wanted):
        return lambda array: _floats(array, wanted, mode)
    if pa.types.is_decimal(wanted):
        return lambda array: read_decimals(array, wanted, mode)
    if wanted == pa.bool_():
        return lambda array: _booleans(array, mode)
    if wanted == pa.binary():
        return lambda array: array.cast(pa.binary())
    if wanted == pa.date32():
        return lambda array: read_dates(array, mode)
    if wanted in (INSTANT, LOCAL):
        return lambda array: read_times(array, wanted, mode, zone)
    return None


def _checked(array: pa.Array, valid: pa.Array, wanted: pa.DataType, mode: str) -> pa.Array:
    """Return the mask of the texts to read. Invalid texts fail, or will be null."""
    if mode == "ansi":
        failed_where(pc.invert(valid), f"{{}} cannot be cast to {type_name(wanted)}", array)
    return valid


def _trimmed(array: pa.Array) -> pa.Array:
    return pc.utf8_trim(array, _BLANK)


def _integers(array: pa.Array, wanted: pa.DataType, mode: str) -> pa.Array:
    texts = _trimmed(array)
    shape = r"^[+-]?[0-9]+$" if mode != "legacy" else r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)$"
    valid = pc.match_substring_regex(texts, shape)
    digits = pc.replace_substring_regex(texts, r"^\+?(-?)0*([0-9]*)(\..*)?$", r"\1\2")
    digits = pc.replace_substring_regex(pc.if_else(pc.equal(digits, ""), "0", digits), "^-$", "0")
    short = pc.less_equal(pc.utf8_length(digits), 20)
    wide = pc.if_else(pc.and_(valid, short), digits, None).cast(pa.decimal128(38, 0))
    bits = wanted.bit_width
    inside = pc.and_(
        pc.greater_equal(wide, pa.scalar(-(2 ** (bits - 1)), pa.decimal128(38, 0))),
        pc.less_equal(wide, pa.scalar(2 ** (bits - 1) - 1, pa.decimal128(38, 0))),
    )
    valid = _checked(array, pc.if_else(array.is_valid(), pc.fill_null(inside, False), None), wanted, mode)
    return pc.if_else(valid, wide, None).cast(wanted)


def _floats(array: pa.Array, wanted: pa.DataType, mode: str) -> pa.Array:
    texts = _trimmed(array)
    lowered = pc.utf8_lower(pc.replace_substring_regex(texts, "^[+-]NaN$", "NaN"))
    special = pc.index_in(lowered, pa.array(list(_SPECIAL)))
    is_special = special.is_valid()
    valid = pc.or_(pc.match_substring_regex(texts, _FLOAT), is_special)
    _checked(array, valid, wanted, mode)
    plain = pc.if_else(
        is_special,
        pa.array(list(_SPECIAL.values())).take(special),
        pc.replace_substring_regex(texts, r"^\+|[dDfF]$", ""),
    )
    return parsed_floats(pc.if_else(valid, plain, None), wanted)


def parsed_floats(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    return texts.cast(wanted)


def read_decimals(array: pa.Array, wanted: pa.DataType, mode: str) -> pa.Array:
    """Read decimals, rounded half up to the wanted digits."""
    texts = _trimmed(array)
    valid = pc.match_substring_regex(texts, _DECIMAL)
    chosen = pc.if_else(valid, texts, None)
    distinct = chosen.unique()
    made = pa.array([None if each is None else _decimal(each, wanted) for each in distinct.to_pylist()], wanted)
    values = made.take(pc.index_in(chosen, distinct))
    if mode == "ansi":
        failed_where(pc.and_(array.is_valid(), values.is_null()), f"{{}} cannot be cast to {type_name(wanted)}", array)
    return values


_EXACT = Context(prec=10_000, Emax=10**9, Emin=-(10**9))


def _decimal(text: str, wanted: pa.DataType) -> Decimal | None:
    found = Decimal(text)
    if found.adjusted() > 100 or not found:
        return Decimal(0) if not found else None
    try:
        made = found.quantize(Decimal(1).scaleb(-wanted.scale), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return None
    return made if made.adjusted() < wanted.precision - wanted.scale or not made else None


def _booleans(array: pa.Array, mode: str) -> pa.Array:
    texts = pc.utf8_lower(_trimmed(array))
    true, false = pc.is_in(texts, _TRUE), pc.is_in(texts, _FALSE)
    valid = pc.if_else(array.is_valid(), pc.or_(true, false), None)
    return pc.if_else(_checked(array, valid, pa.bool_(), mode), true, None)


def read_dates(array: pa.Array, mode: str) -> pa.Array:
    """Read dates: years, months or days, followed by any text after a blank or a T."""
    texts = pc.replace_substring_regex(_trimmed(array), r"^\+([0-9])", r"\1")
    parts = pc.extract_regex(texts, _DATE)
    days = days_from(
        parts.field("y") if not parts.null_count else pc.struct_field(parts, "y"),
        pc.struct_field(parts, "m"),
        pc.struct_field(parts, "d"),
    )
    if mode == "ansi":
        failed_where(pc.and_(array.is_valid(), days.is_null()), "{} cannot be cast to DATE", array)
    return days.cast(pa.date32())


def _number(texts: pa.Array, otherwise: int) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), str(otherwise), texts).cast(pa.int64())


def days_from(years: pa.Array, months: pa.Array, days: pa.Array) -> pa.Array:
    """Return the days since 1970 for years, months and days as texts; null if there is no such day."""
    return days_of(_number(years, 1970), _number(months, 1), _number(days, 1))


def days_of(year: pa.Array, month: pa.Array, day: pa.Array) -> pa.Array:
    """Return the days since 1970 for years, months and days as numbers, in int32; null if there is no such day."""
    valid = pc.and_(
        pc.and_(pc.greater_equal(month, 1), pc.less_equal(month, 12)),
        pc.and_(pc.greater_equal(day, 1), pc.less_equal(day, 31)),
    )
    shifted = pc.subtract(year, pc.if_else(pc.less_equal(month, 2), 1, 0))
    era = zones.floor_divided(shifted, 400)
    of_era = pc.subtract(shifted, pc.multiply(era, 400))
    place = pc.if_else(pc.greater(month, 2), pc.subtract(month, 3), pc.add(month, 9))
    of_year = pc.add(zones.floor_divided(pc.add(pc.multiply(place, 153), 2), 5), pc.subtract(day, 1))
    leap = pc.subtract(zones.floor_divided(of_era, 4), zones.floor_divided(of_era, 100))
    number = pc.subtract(
        pc.add(pc.multiply(era, 146_097), pc.add(pc.add(pc.multiply(of_era, 365), leap), of_year)), 719_468
    )
    is_leap = pc.or_(
        pc.and_(pc.equal(_mod(year, 4), 0), pc.not_equal(_mod(year, 100), 0)), pc.equal(_mod(year, 400), 0)
    )
    longest = pc.if_else(
        pc.equal(month, 2), pc.if_else(is_leap, 29, 28), pc.if_else(pc.is_in(month, pa.array([4, 6, 9, 11])), 30, 31)
    )
    within = pc.and_(pc.greater_equal(number, -(2**31)), pc.less(number, 2**31))
    return pc.if_else(pc.and_(pc.and_(valid, pc.less_equal(day, longest)), within), number, None).cast(pa.int32())


def _mod(array: pa.Array, by: int) -> pa.Array:
    return pc.subtract(array, pc.multiply(zones.floor_divided(array, by), by))


def read_times(array: pa.Array, wanted: pa.DataType, mode: str, zone: str) -> pa.Array:
    """Read times, with a zone or without one."""
    texts = _trimmed(array)
    parts = pc.extract_regex(texts, _TIME)
    get = {name: pc.struct_field(parts, name) for name in "ymdhnsfz"}
    days = days_from(get["y"], get["m"], get["d"])
    hour, minute, second = (_number(get[name], 0) for name in "hns")
    valid = pc.and_(pc.and_(pc.less(hour, 24), pc.less(minute, 60)), pc.less(second, 60))
    ahead = _ahead(get["z"])
    valid = pc.and_(pc.and_(valid, ahead.is_valid()), pc.less(pc.abs(days.cast(pa.int64())), _DAYS_MAX))
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(get["f"], 6, "0"), 0, 6).cast(pa.int64())
    seconds = pc.add(pc.multiply(hour, 3600), pc.add(pc.multiply(minute, 60), second))
    local = pc.add(pc.multiply(days.cast(pa.int64()), zones.DAY_US), pc.add(pc.multiply(seconds, 1_000_000), fraction))
    local = pc.if_else(valid, local, None).cast(LOCAL)
    made = local if wanted == LOCAL else _in_zone(local, get["z"], ahead, zone)
    other = pc.and_(pc.match_substring_regex(texts, _OTHER_TIME), made.is_null())
    failed_where(pc.and_(array.is_valid(), other), "{} has a form of time that is not supported in expressions", array)
    if mode == "ansi":
        failed_where(
            pc.and_(array.is_valid(), made.is_null()),
            f"{{}} cannot be cast to {type_name(wanted)}, as it is read here",
            array,
        )
    return made


def _ahead(given: pa.Array) -> pa.Array:
    """Return by how many microseconds zones such as `+01:30` are ahead; null where there is no such zone."""
    if not pc.any(pc.not_equal(given, "")).as_py():
        return pa.repeat(pa.scalar(0, pa.int64()), len(given))
    shape = r"^(?P<g>[+-])?(?P<h>[0-9]{1,2})?:?(?P<n>[0-9]{1,2})?:?(?P<s>[0-9]{2})?"
    parts = pc.extract_regex(given, shape)
    hours, minutes, seconds = (_number(pc.struct_field(parts, name), 0) for name in "hns")
    ahead = pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds)
    valid = pc.and_(pc.and_(pc.less(minutes, 60), pc.less(seconds, 60)), pc.less_equal(ahead, 18 * 3_600))
    ahead = pc.if_else(pc.equal(pc.struct_field(parts, "g"), "-"), pc.negate(ahead), ahead)
    return pc.if_else(valid, pc.multiply(ahead, 1_000_000), None)


def _in_zone(local: pa.Array, given: pa.Array, ahead: pa.Array, zone: str) -> pa.Array:
    has_zone = pc.not_equal(given, "")
    made = zones.to_instant(local, zone)
    if not pc.any(has_zone).as_py():
        return made
    offset = pc.subtract(local.cast(pa.int64()), ahead).cast(INSTANT)
    return pc.if_else(pc.fill_null(has_zone, False), offset, made)
