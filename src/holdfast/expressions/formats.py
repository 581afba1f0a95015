"""Patterns of dates and times (`yyyy-MM-dd HH:mm:ss`), which turn times into texts, and texts into times."""

import re

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions import zones
from holdfast.expressions.conversions import cast
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, constant, failed_where, with_arrays
from holdfast.expressions.reading_texts import days_of
from holdfast.expressions.table import found, function
from holdfast.expressions.times import local_time, text_constant
from holdfast.expressions.types import INSTANT, LOCAL, type_name

_MONTHS = pa.array(
    [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
)
_WEEK = pa.array(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"])
_TOKEN = re.compile(r"'(?:[^']|'')*'|([a-zA-Z])\1*|[^a-zA-Z']")


def _tokens(pattern: str) -> list[str]:
    found = [each.group() for each in _TOKEN.finditer(pattern)]
    if "".join(found) != pattern or any(each in "[]{}#" for each in found):
        raise ExpressionRefused(f"the pattern {pattern!r} of a time is not supported in expressions; use transform(…)")
    return found


def _literal(token: str) -> str | None:
    if token.startswith("'"):
        return "'" if token == "''" else token[1:-1].replace("''", "'")
    return None if token[0].isalpha() else token


def _padded(values: pa.Array, width: int) -> pa.Array:
    return pc.utf8_lpad(values.cast(pa.int64()).cast(pa.string()), width, "0")


def _hour12(array: pa.Array) -> pa.Array:
    hour = pc.hour(array)
    return pc.if_else(pc.equal(hour, 0), 12, pc.if_else(pc.greater(hour, 12), pc.subtract(hour, 12), hour))


def _fraction(array: pa.Array, digits: int) -> pa.Array:
    micros = array.cast(pa.int64())
    part = pc.subtract(micros, pc.multiply(zones.floor_divided(micros, 1_000_000), 1_000_000))
    return pc.utf8_slice_codeunits(_padded(part, 6), 0, digits)


def _named(names: pa.Array, places: pa.Array, short: bool) -> pa.Array:
    return (pc.utf8_slice_codeunits(names, 0, 3) if short else names).take(places)


def _writer(token: str, pattern: str):  # type: ignore[no-untyped-def]
    """Return the kernel that writes the part of local times for a letter of a pattern."""
    letter, width = token[0], len(token)
    numbers = {"M": pc.month, "d": pc.day, "H": pc.hour, "h": _hour12, "m": pc.minute, "s": pc.second}
    if letter == "y" and width == 4:
        return lambda array: _padded(pc.year(array), 4)
    if letter == "y" and width == 2:
        return lambda array: pc.utf8_slice_codeunits(_padded(pc.year(array), 4), 2)
    if letter in numbers and width <= 2:
        return lambda array: _padded(numbers[letter](array), width)
    if letter == "M" and width in (3, 4):
        return lambda array: _named(_MONTHS, pc.subtract(pc.month(array), 1), width == 3)
    if letter == "E" and width <= 4:
        return lambda array: _named(_WEEK, pc.day_of_week(array), width < 4)
    if letter == "a" and width == 1:
        return lambda array: pc.if_else(pc.less(pc.hour(array), 12), "AM", "PM")
    if letter == "S" and width <= 6:
        return lambda array: _fraction(array, width)
    raise ExpressionRefused(
        f"{token!r} in the pattern {pattern!r} of a time is not supported in expressions; use transform(…)"
    )


def written(binder: Binding, node: Term, pattern: str) -> Term:
    """Make the term that writes times as texts in a pattern."""
    parts = []
    for token in _tokens(pattern):
        text = _literal(token)
        parts.append(text if text is not None else _writer(token, pattern))

    def kernel(array: pa.Array) -> pa.Array:
        years = pc.year(array)
        if pc.any(pc.or_(pc.less(years, 1), pc.greater(years, 9999))).as_py():
            raise pa.ArrowInvalid("a time before the year 1 or after 9999 has no text here")
        made = [pa.scalar(each) if isinstance(each, str) else each(array) for each in parts]
        if not any(isinstance(each, pa.Array) for each in made):
            made.append(pc.if_else(array.is_valid(), "", pa.scalar(None, pa.string())))
        return pc.binary_join_element_wise(*made, "")

    return applied(pa.string(), with_arrays(kernel), local_time(binder, node))


@function("date_format", "timestamp, string")
def date_format(binder: Binding, time: Term, pattern: Term) -> Term:
    return written(binder, time, text_constant(pattern, "the pattern of date_format"))


@function("from_unixtime", "long, string?")
def from_unixtime(binder: Binding, seconds: Term, pattern: Term | None = None) -> Term:
    chosen = "yyyy-MM-dd HH:mm:ss" if pattern is None else text_constant(pattern, "the pattern of from_unixtime")
    return written(binder, cast(seconds, INSTANT, binder.settings), chosen)


_DIGITS = {
    "yyyy": "[0-9]{4}",
    "MM": "[0-9]{2}",
    "M": "[0-9]{1,2}",
    "dd": "[0-9]{2}",
    "d": "[0-9]{1,2}",
    "HH": "[0-9]{2}",
    "H": "[0-9]{1,2}",
    "mm": "[0-9]{2}",
    "m": "[0-9]{1,2}",
    "ss": "[0-9]{2}",
    "s": "[0-9]{1,2}",
}


def _shape(pattern: str) -> tuple[str, set[str]]:
    """Return the regular expression of a pattern, which has a group for each letter, and the letters."""
    made, letters = "", set()
    for token in _tokens(pattern):
        text = _literal(token)
        if text is not None:
            made += re.escape(text)
            continue
        digits = _DIGITS.get(token) or (f"[0-9]{{{len(token)}}}" if token[0] == "S" and len(token) <= 6 else None)
        if digits is None or token[0] in letters:
            raise ExpressionRefused(
                f"{token!r} in the pattern {pattern!r} of a time is not supported in expressions; use transform(…)"
            )
        letters.add(token[0])
        made += f"(?P<{token[0]}>{digits})"
    if "y" not in letters or ("d" in letters and "M" not in letters):
        raise ExpressionRefused(
            f"the pattern {pattern!r} of a time is not supported here: it needs a year, and a month before a day"
        )
    return f"^{made}$", letters


def read(binder: Binding, node: Term, pattern: str, mode: str) -> Term:
    """Make the term that reads local times from texts in a pattern.

    With `mode` "ansi" other texts fail; in other modes they give null.
    """
    shape, letters = _shape(pattern)

    def kernel(array: pa.Array) -> pa.Array:
        parts = pc.extract_regex(array, shape)

        def part(letter: str, otherwise: int) -> pa.Array:
            if letter not in letters:
                return pc.if_else(array.is_valid(), pa.scalar(otherwise, pa.int64()), None)
            found = pc.struct_field(parts, letter)
            return (pc.utf8_rpad(found, 6, "0") if letter == "S" else found).cast(pa.int64())

        days = days_of(part("y", 1970), part("M", 1), part("d", 1)).cast(pa.int64())
        hour, minute, second = part("H", 0), part("m", 0), part("s", 0)
        valid = pc.and_(pc.and_(pc.less(hour, 24), pc.less(minute, 60)), pc.less(second, 60))
        seconds = pc.add(pc.multiply(pc.add(pc.multiply(hour, 60), minute), 60), second)
        micros = pc.add(pc.multiply(pc.add(pc.multiply(days, 86_400), seconds), 1_000_000), part("S", 0))
        made = pc.if_else(valid, micros, None)
        if mode == "ansi":
            failed_where(
                pc.and_(array.is_valid(), made.is_null()), f"{{}} is no time of the pattern {pattern!r}", array
            )
        return made.cast(LOCAL)

    return applied(LOCAL, with_arrays(kernel), node, fails=mode == "ansi")


def _reading(names: str, wanted: pa.DataType, tries: bool) -> None:
    @function(names, "any, string?")
    def build(binder: Binding, node: Term, pattern: Term | None = None) -> Term:
        mode = "try" if tries else "ansi" if binder.settings.ansi else "legacy"
        if node.type != pa.string() or pattern is None:
            return cast(node, wanted, binder.settings, mode)  # type: ignore[arg-type]
        local = read(binder, node, text_constant(pattern, f"the pattern of {names}"), mode)
        return cast(local, wanted, binder.settings)


_reading("to_date", pa.date32(), False)
_reading("to_timestamp to_timestamp_ltz", INSTANT, False)
_reading("to_timestamp_ntz", LOCAL, False)
_reading("try_to_timestamp", INSTANT, True)


@function("unix_timestamp to_unix_timestamp", "any, string?")
def unix_timestamp(binder: Binding, node: Term, pattern: Term | None = None) -> Term:
    if node.type == pa.string():
        chosen = "yyyy-MM-dd HH:mm:ss" if pattern is None else text_constant(pattern, "the pattern of unix_timestamp")
        node = read(binder, node, chosen, "ansi" if binder.settings.ansi else "legacy")
    elif node.type not in (pa.date32(), INSTANT, LOCAL):
        raise ExpressionRefused(f"unix_timestamp of {type_name(node.type)}; expected a time or a text")
    instant = cast(node, INSTANT, binder.settings)
    return applied(pa.int64(), lambda array: pc.divide(array.cast(pa.int64()), 1_000_000), instant)


def _named_part(name: str, pattern: str) -> None:
    @function(name, "date")
    def build(binder: Binding, date: Term) -> Term:
        return found("date_format").node(binder, [date, constant(pa.scalar(pattern))])


_named_part("dayname", "EEE")
_named_part("monthname", "MMM")
