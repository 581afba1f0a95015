"""Leaf values, which have no parts: JSON values become texts, and the texts of a column are cast to its type at once.

A cast fails for all texts if it fails for one of them. Then the texts are halved until each wrong text is found.
"""

import base64
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.json_rows.decimals import FOUND_CHARS_MAX, Texts, shown_text, to_decimals
from holdfast.json_rows.far_times import far_time
from holdfast.json_rows.nesting import INFINITY

NULL = b"null"
INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
NOT_FINITE = {
    **dict.fromkeys(("NaN", "-NaN"), "nan"),
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF", "Inf"), "inf"),
    **dict.fromkeys(("-Infinity", "-INF", "-Inf"), "-inf"),
}
"""Spellings, by Python, Java, Spark and PyArrow, of floats that are no numbers in JSON."""

TEXT = msgspec.json.Decoder(str)

JsonTexts = Sequence[bytes | None]
"""JSON texts that a parser has checked; None for a null or a missing field."""
Form = Callable[[bool, str], str | None]
"""A function from a JSON value (whether it is a text, and the text) to the text to cast; None if no value fits."""


def is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def is_bytes(type_: pa.DataType) -> bool:
    views = pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_)
    return bool(views or pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_))


def is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_) or pa.types.is_time(type_))


def form_of(type_: pa.DataType) -> Form | None:
    """Return how JSON values become texts of a type; None for a type of which JSON has no values."""
    if pa.types.is_boolean(type_):
        return lambda quoted, text: text if not quoted and text in {"true", "false"} else None
    if pa.types.is_integer(type_):
        return lambda quoted, text: _integer(text) if not quoted else None
    if pa.types.is_floating(type_):
        return lambda quoted, text: NOT_FINITE.get(text) if quoted else text if NUMBER.fullmatch(text) else None
    if pa.types.is_decimal(type_):
        return lambda quoted, text: text if quoted or NUMBER.fullmatch(text) else None
    if is_text(type_):
        return lambda quoted, text: text
    if is_bytes(type_) or is_time(type_):
        return lambda quoted, text: text if quoted else None
    return None


def _integer(text: str) -> str | None:
    if text == "-0":
        return "0"
    return text if INTEGER.fullmatch(text) else None


def read_leaves(values: JsonTexts, type_: pa.DataType) -> Texts:
    """Read JSON values as values of a type without parts."""
    kind = alike(type_)
    array = None if kind is None else array_of_alike(decoded_alike(values, kind), type_)
    if array is not None:
        return Texts(array, {})
    form = form_of(type_)
    assert form is not None, type_
    takes_infinity = not is_bytes(type_)
    texts = [
        form(*_unquoted(value)) if value is not None and (takes_infinity or value != INFINITY) else None
        for value in values
    ]
    array, reasons = read_texts(pa.array(texts, pa.string()), type_)
    unlike = [place for place, text in enumerate(texts) if text is None and values[place] is not None]
    return Texts(array, {**reasons, **{place: shown(values[place]) for place in unlike}})


def alike(type_: pa.DataType) -> type | None:
    """Return the Python type of JSON values that fit a type directly; None if their texts must be parsed."""
    if pa.types.is_boolean(type_):
        return bool
    if pa.types.is_integer(type_):
        return int
    return str if is_text(type_) else None


@cache
def list_decoder(of: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[of | None])


def decoded_alike(values: JsonTexts, of: Any) -> list[Any] | None:
    """Decode values in one call; None if some value is of another type."""
    try:
        return list(list_decoder(of).decode(b"[" + b",".join(value or NULL for value in values) + b"]"))
    except msgspec.MsgspecError:
        return None


def array_of_alike(values: list[Any] | None, type_: pa.DataType) -> pa.Array | None:
    """Return decoded values as an array; None if some value is beyond the range of the type."""
    try:
        return None if values is None else pa.array(values, type_)
    except (pa.ArrowException, OverflowError):
        return None


def _unquoted(value: bytes) -> tuple[bool, str]:
    return (True, TEXT.decode(value)) if value.startswith(b'"') else (False, _as_read(value).decode())


def _as_read(value: bytes) -> bytes:
    return value.replace(INFINITY, b'"Infinity"')


def shown(value: bytes | None) -> str:
    """Return the beginning of a value, for a reason."""
    return shown_text(_as_read(value or NULL)[: 4 * FOUND_CHARS_MAX].decode("utf-8", "replace"))


def read_texts(texts: pa.Array, type_: pa.DataType) -> Texts:
    """Cast texts to a type."""
    if texts.type == type_:
        return Texts(texts, {})
    if is_bytes(type_):
        return _from_base64(texts, type_)
    if pa.types.is_decimal(type_):
        return to_decimals(texts, type_)
    if pa.types.is_time(type_):
        moments = pc.binary_join_element_wise("1970-01-01T", texts, "")
        times, reasons = read_texts(moments, pa.timestamp(type_.unit))
        return Texts(pc.cast(times, type_), reasons)
    array, reasons = _cast(texts, type_, _digits_to_cut(type_))
    return Texts(array, reasons or _beyond_range(texts, array))


def _beyond_range(texts: pa.Array, array: pa.Array) -> dict[int, str]:
    """Return a reason for each float that is infinite although its text is a number."""
    if not pa.types.is_floating(array.type):
        return {}
    infinite = pc.is_inf(pc.cast(array, pa.float64()))
    beyond = pc.and_(infinite, pc.invert(pc.is_in(texts, pa.array(["inf", "-inf"]))))
    return {
        place: f"{shown_text(texts[place].as_py())} is beyond its range"
        for place in pc.indices_nonzero(beyond).to_pylist()
    }


def _digits_to_cut(type_: pa.DataType) -> str | None:
    """Return the pattern of the digits that a second has beyond the unit of the type; None for other types."""
    if not pa.types.is_timestamp(type_):
        return None
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[type_.unit]
    return rf"(\.[0-9]{{{digits}}})[0-9]{{1,9}}" if digits else r"()\.[0-9]{1,9}"


def _cast(texts: pa.Array, type_: pa.DataType, digits_to_cut: str | None) -> Texts:
    try:
        return Texts(pc.cast(texts, type_), {})
    except pa.ArrowInvalid as error:
        if digits_to_cut is not None:
            return _cast(pc.replace_substring_regex(texts, digits_to_cut, r"\1"), type_, None)
        if len(texts) == 1:
            found = far_time(texts[0].as_py(), type_)
            return Texts(pa.nulls(1, type_), {0: advised(str(error))}) if found is None else Texts(found, {})
    half = len(texts) // 2
    first, second = _cast(texts[:half], type_, None), _cast(texts[half:], type_, None)
    reasons = {**first.reasons, **{half + place: reason for place, reason in second.reasons.items()}}
    return Texts(pa.concat_arrays([first.array, second.array]), reasons)


def _from_base64(texts: pa.Array, type_: pa.DataType) -> Texts:
    size = type_.byte_width if pa.types.is_fixed_size_binary(type_) else None
    found: list[bytes | None] = []
    reasons = {}
    for place, text in enumerate(texts.to_pylist()):
        found.append(None)
        if text is None:
            continue
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError:
            reasons[place] = f"{shown_text(text)} is not in base64"
            continue
        if size is not None and len(data) != size:
            reasons[place] = f"{len(data)} bytes"
        else:
            found[place] = data
    return Texts(pa.array(found, type_), reasons)


def advised(reason: str) -> str:
    """Return a conversion error, with advice in Holdfast's words if a time zone is missing or too much."""
    if "expected a zone offset" in reason:
        return reason.partition("expected a zone offset")[0] + (
            "the value has no time zone, and TIMESTAMP (an instant) needs a zone: declare the column as "
            "TIMESTAMP_NTZ, or write a zone such as Z or +01:00 into the file"
        )
    if "expected no zone offset" in reason:
        return reason.partition("expected no zone offset")[0] + (
            "the value has a time zone, and TIMESTAMP_NTZ takes none: declare the column as TIMESTAMP"
        )
    return reason
