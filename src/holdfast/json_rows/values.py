"""Conversion of the JSON values of a column to an Arrow array of its declared type.

This is the table of which JSON value fits which type; `null` and a missing field fit each type:

    BOOLEAN                  true, false
    TINYINT … BIGINT         a number without fraction and exponent, in the type's range
    FLOAT, DOUBLE            a number in the type's range; NaN, Infinity, -Infinity, also as text
    DECIMAL                  a number, or a number as text, with no more digits than the type has
    STRING                   a text; any other value as its own JSON text
    BINARY                   a text in base64
    DATE, TIMESTAMP, TIME    a text in ISO 8601; digits of a second beyond the type's unit are cut off
    STRUCT                   an object; fields that the type does not have are left out
    ARRAY                    an array
    MAP                      an object; a key of another type than STRING is the text of its JSON: "1", "true"

Any other value is wrong: it becomes null in the array, and its reason is returned beside the array. Values are
independent: neither an entry of the array nor a reason depends on other values.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.json_rows.leaves import (
    NULL,
    JsonTexts,
    alike,
    array_of_alike,
    decoded_alike,
    form_of,
    is_bytes,
    is_text,
    is_time,
    read_leaves,
    shown,
)
from holdfast.json_rows.nesting import is_too_deep

ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class WrongValue(NamedTuple):
    """A value that does not fit: the path to it from its column, and the problem."""

    path: str
    problem: str

    def below(self, part: str) -> "WrongValue":
        return WrongValue(part + self.path, self.problem)


class ReadColumn(NamedTuple):
    """An array with an entry for each value, and the wrong values by position."""

    array: pa.Array
    wrong: Mapping[int, WrongValue]


def texts_of(raws: Sequence[Any]) -> list[bytes | None]:
    """Return the JSON texts of values; None for null and for None."""
    return [None if raw is None or (text := bytes(raw)) == NULL else text for raw in raws]


def read_field(values: JsonTexts, field: pa.Field) -> ReadColumn:
    """Read JSON values as values of a field, which may be declared as never null."""
    array, wrong = read_values(values, field.type)
    if field.nullable or None not in values:
        return ReadColumn(array, wrong)
    nulls = [place for place, value in enumerate(values) if value is None]
    return ReadColumn(array, {**wrong, **dict.fromkeys(nulls, WrongValue("", "is null"))})


def read_values(values: JsonTexts, type_: pa.DataType) -> ReadColumn:
    """Read JSON values as values of a type."""
    if pa.types.is_struct(type_):
        return _structs(values, type_)
    if is_list(type_):
        return _lists(values, type_)
    if pa.types.is_map(type_):
        return _maps(values, type_)
    if pa.types.is_dictionary(type_):
        array, wrong = read_values(values, type_.value_type)
        return ReadColumn(pc.cast(array.dictionary_encode(), type_), wrong)
    if pa.types.is_null(type_):
        return ReadColumn(pa.nulls(len(values)), _unlike(values, b"", type_))
    array, reasons = read_leaves(values, type_)
    return ReadColumn(array, {place: WrongValue("", f"is no {type_}: {reason}") for place, reason in reasons.items()})


def unfit_columns(schema: pa.Schema) -> str | None:
    """Return the reason why JSON records cannot have these columns, or None."""
    for field in schema:
        found = unfit(field.type)
        if found is not None:
            return f"column {field.name!r} is {field.type}, and JSON has no values of type {found}"
    return None


def unfit(type_: pa.DataType) -> pa.DataType | None:
    """Return the first type within a type of which JSON has no values; None if there is none."""
    if pa.types.is_struct(type_):
        return next((found for field in type_ if (found := unfit(field.type))), None)
    if pa.types.is_map(type_):
        return unfit(type_.key_type) or unfit(type_.item_type)
    if is_list(type_) or pa.types.is_dictionary(type_):
        return unfit(type_.value_type)
    return None if pa.types.is_null(type_) or form_of(type_) is not None else type_


def is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _unlike(values: JsonTexts, beginning: bytes, type_: pa.DataType) -> dict[int, WrongValue]:
    """Return the values that do not begin as values of the type do."""
    return {
        place: WrongValue("", f"is no {type_}: {shown(value)}")
        for place, value in enumerate(values)
        if value is not None and not (beginning and value.startswith(beginning))
    }


def _structs(values: JsonTexts, type_: pa.DataType) -> ReadColumn:
    wrong = _unlike(values, b"{", type_)
    present = [place for place, value in enumerate(values) if value is not None and place not in wrong]
    objects = [OBJECT.decode(values[place] or NULL) for place in present]
    if type_.num_fields == 0:
        return ReadColumn(_spread(pa.array([{}] * len(present), type_), present, len(values)), wrong)
    children = []
    for field in type_:
        array, faults = read_field(texts_of([row.get(field.name) for row in objects]), field)
        children.append(array)
        wrong |= {present[place]: fault.below(f".{field.name}") for place, fault in faults.items()}
    return ReadColumn(_spread(pa.StructArray.from_arrays(children, fields=list(type_)), present, len(values)), wrong)


def _spread(array: pa.Array, places: list[int], count: int) -> pa.Array:
    """Put values at their places in a longer array; the other places are null."""
    if len(places) == count:
        return array
    indices: list[int | None] = [None] * count
    for number, place in enumerate(places):
        indices[place] = number
    return array.take(pa.array(indices, pa.int64()))


class Laid(NamedTuple):
    """The parts of arrays or objects, laid end to end: offsets for Arrow, and for each part the place of its whole."""

    offsets: list[int | None]
    owners: list[int]


def _laid(wholes: Sequence[Collection[Any] | None]) -> Laid:
    offsets: list[int | None] = []
    owners: list[int] = []
    for place, whole in enumerate(wholes):
        offsets.append(None if whole is None else len(owners))
        owners += [place] * len(whole or ())
    return Laid([*offsets, len(owners)], owners)


def _lists(values: JsonTexts, type_: pa.DataType) -> ReadColumn:
    wrong = _unlike(values, b"[", type_)
    wholes = [None if value is None or place in wrong else ITEMS.decode(value) for place, value in enumerate(values)]
    if pa.types.is_fixed_size_list(type_):
        for place, whole in enumerate(wholes):
            if whole is not None and len(whole) != type_.list_size:
                wholes[place], wrong[place] = None, WrongValue("", f"is no {type_}: {len(whole)} items")
    offsets, owners = _laid(wholes)
    items, faults = read_field(texts_of([raw for whole in wholes if whole for raw in whole]), type_.value_field)
    wrong |= {owners[place]: fault.below("[]") for place, fault in faults.items()}
    if pa.types.is_fixed_size_list(type_):
        present = [place for place, whole in enumerate(wholes) if whole is not None]
        return ReadColumn(_spread(pa.FixedSizeListArray.from_arrays(items, type=type_), present, len(values)), wrong)
    large = pa.types.is_large_list(type_)
    made, offset_type = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    return ReadColumn(made.from_arrays(pa.array(offsets, offset_type), items, type=type_), wrong)


def _maps(values: JsonTexts, type_: pa.DataType) -> ReadColumn:
    quick = _maps_of_alike(values, type_)
    if quick is not None:
        return ReadColumn(quick, {})
    wrong = _unlike(values, b"{", type_)
    objects = [None if value is None or place in wrong else OBJECT.decode(value) for place, value in enumerate(values)]
    key_texts = [key for row in objects if row for key in row]
    offsets, owners = _laid(objects)
    keys, faults = _keys(key_texts, type_)
    if faults:  # An array of maps cannot have a null key, so these maps become nulls.
        wrong |= {owners[place]: fault.below(" (a key)") for place, fault in faults.items()}
        array, others = _maps([None if place in wrong else value for place, value in enumerate(values)], type_)
        return ReadColumn(array, {**others, **wrong})
    items, faults = read_field(texts_of([raw for row in objects if row for raw in row.values()]), type_.item_field)
    wrong |= {owners[place]: fault.below(f"[{key_texts[place]!r}]") for place, fault in faults.items()}
    return ReadColumn(pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type_), wrong)


def _maps_of_alike(values: JsonTexts, type_: pa.DataType) -> pa.Array | None:
    """Read maps in one call whose values a type takes as they are; None if some map has another value."""
    kind = alike(type_.item_type) if is_text(type_.key_type) and type_.item_field.nullable else None
    objects = None if kind is None else decoded_alike(values, dict[str, kind | None])  # type: ignore[valid-type]
    if objects is None:
        return None
    items = array_of_alike([item for row in objects if row for item in row.values()], type_.item_type)
    if items is None:
        return None
    keys = pa.array([key for row in objects if row for key in row], type_.key_type)
    offsets, _ = _laid(objects)
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type_)


def _keys(keys: Sequence[str], type_: pa.DataType) -> ReadColumn:
    """Read the keys of objects, which are the texts of JSON values: the inverse of `writer.key_text`."""
    if is_text(type_.key_type):
        return ReadColumn(pa.array(keys, type_.key_type), {})
    is_quoted = is_bytes(type_.key_type) or is_time(type_.key_type)
    values = [_quoted(key) if is_quoted else _json_or_quoted(key.encode(), key) for key in keys]
    return read_field(texts_of(values), type_.key_field)


def _json_or_quoted(data: bytes, key: str) -> bytes:
    """Return a key as it is if it is the text of a JSON value, else as a text in JSON."""
    if data != data.strip() or is_too_deep(data):
        return _quoted(key)
    try:
        return bytes(msgspec.json.decode(data, type=msgspec.Raw))
    except msgspec.MsgspecError:
        return _quoted(key)


_quoted: Callable[[str], bytes] = msgspec.json.encode
