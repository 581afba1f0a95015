"""JSON in texts: `get_json_object`, `to_json`, `from_json`, value by value."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from holdfast.expressions.mapping import mapped
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, with_arrays
from holdfast.expressions.parse import parsed
from holdfast.expressions.table import function
from holdfast.expressions.times import text_constant
from holdfast.expressions.types import is_integer, type_name, type_of_sql
from holdfast.expressions.writing_texts import java_text

_PATH = re.compile(r"\.([^.\[\]*'\s]+)|\['([^'*]+)'\]|\[([0-9]+)\]")
_CONTROLS = re.compile(r"\\u00([0-9a-f]{2})")


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


class _Doubled(Exception):
    """An object has a name twice. Some of Spark's functions then take the first value, others the last, or both."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _Doubled
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_each_once, parse_constant=_refuse_constant)
_MISSING = object()


def _decoded(text: str) -> Any:
    """Return the value at the start of a text, as Jackson reads it; `_MISSING` if the text is not JSON."""
    try:
        return _DECODER.raw_decode(text.lstrip(" \t\r\n"))[0]
    except _Doubled:
        raise pa.ArrowInvalid("JSON with a name twice in an object is not supported in expressions") from None
    except (ValueError, RecursionError):
        if "'" in text:
            raise pa.ArrowInvalid("JSON with single quotes is not supported in expressions") from None
        return _MISSING


def _written(value: Any) -> str:
    """Write a value as Jackson does."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return str(java_text(value, pa.float64()))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    return _CONTROLS.sub(lambda found: f"\\u00{found[1].upper()}", json.dumps(text, ensure_ascii=False))


@function("get_json_object", "string, string")
def get_json_object(_: Binding, node: Term, path: Term) -> Term:
    given = text_constant(path, "the path of get_json_object")
    steps = [(each[1] or each[2], each[3]) for each in _PATH.finditer(given, 1)]
    if not given.startswith("$") or "$" + "".join(each.group() for each in _PATH.finditer(given, 1)) != given:
        raise ExpressionRefused(
            f"get_json_object: the path {given!r} is not supported in expressions; use transform(…)"
        )

    def found(text: str) -> str | None:
        value = _decoded(text)
        for name, place in steps:
            if place is not None and isinstance(value, list) and int(place) < len(value):
                value = value[int(place)]
            elif name and isinstance(value, dict) and name in value:
                value = value[name]
            else:
                return None
        if value is _MISSING or (value is None and steps and steps[-1][0]):
            return None
        return value if isinstance(value, str) else _written(value)

    return applied(pa.string(), with_arrays(lambda array: mapped(array, found, pa.string())), node, fails=True)


def _outermost(name: str, kind: type, gives: pa.DataType, fn: Callable[[Any], Any]) -> None:
    @function(name, "string")
    def build(_: Binding, node: Term) -> Term:
        def found(text: str) -> Any:
            value = _decoded(text)
            return fn(value) if isinstance(value, kind) else None

        return applied(gives, with_arrays(lambda array: mapped(array, found, gives)), node, fails=True)


_outermost("json_array_length", list, pa.int32(), len)
_outermost("json_object_keys", dict, pa.list_(pa.string()), list)


@function("to_json", "any")
def to_json(_: Binding, node: Term) -> Term:
    if not pa.types.is_nested(node.type):
        raise ExpressionRefused(f"to_json of {type_name(node.type)}; expected a struct, an array or a map")
    writer = _writer(node.type)

    def kernel(array: pa.Array) -> pa.Array:
        return pa.array([None if each is None else writer(each) for each in array.to_pylist()], pa.string())

    return applied(pa.string(), with_arrays(kernel), node)


def _writer(kind: pa.DataType) -> Callable[[Any], str]:
    types = pa.types
    if types.is_struct(kind):
        writers = {each.name: _writer(each.type) for each in kind}
        return lambda value: (
            "{" + ",".join(f"{_quoted(k)}:{writers[k](v)}" for k, v in value.items() if v is not None) + "}"
        )
    if types.is_map(kind) and kind.key_type == pa.string():
        inner = _writer(kind.item_type)
        return lambda value: "{" + ",".join(f"{_quoted(k)}:{'null' if v is None else inner(v)}" for k, v in value) + "}"
    if types.is_list(kind):
        item = _writer(kind.value_type)
        return lambda value: "[" + ",".join("null" if each is None else item(each) for each in value) + "]"
    if types.is_floating(kind):
        return lambda value: str(java_text(value, kind)) if math.isfinite(value) else f'"{java_text(value, kind)}"'
    if kind in (pa.string(), pa.bool_()) or is_integer(kind):
        return _written
    raise ExpressionRefused(f"to_json of {type_name(kind)} is not supported in expressions; use transform(…)")


@function("from_json", "string, string")
def from_json(_: Binding, node: Term, schema: Term) -> Term:
    text = text_constant(schema, "the schema of from_json")
    kind = _schema(text)
    reader = _reader(kind)

    def read(value: str) -> Any:
        found = _decoded(value)
        if isinstance(found, dict):
            return reader(found)
        return None if not value.strip() else {each.name: None for each in kind}

    return applied(kind, with_arrays(lambda array: _mapped_structs(array, read, kind)), node, fails=True)


def _mapped_structs(array: pa.Array, read: Callable[[str], Any], kind: pa.DataType) -> pa.Array:
    known: dict[str | None, Any] = {None: None}
    for each in array.unique().to_pylist():
        if each is not None:
            known[each] = read(each)
    return pa.array([known[each] for each in array.to_pylist()], kind)


def _schema(text: str) -> pa.DataType:
    columns = re.sub(r"^\s*struct\s*<(.*)>\s*$", r"\1", text, flags=re.I | re.S)
    fields = re.sub(r"(^|,)(\s*`?\w+`?)\s+(?=\w)", r"\1\2: ", columns)
    return type_of_sql(parsed(f"CAST(NULL AS STRUCT<{fields}>)").args["to"])


def _items(value: Any, read: Callable[[Any], Any]) -> list[Any] | None:
    """Read a list. The list is null if an item has another type."""
    if not isinstance(value, list):
        return None
    made = [None if each is None else read(each) for each in value]
    lacking = any(one is not None and other is None for one, other in zip(value, made, strict=True))
    return None if lacking else made


def _reader(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that reads a value of a type; values of other types become null."""
    types = pa.types
    if types.is_struct(kind):
        readers = {each.name: _reader(each.type) for each in kind}
        return lambda value: (
            {name: None if value.get(name) is None else read(value[name]) for name, read in readers.items()}
            if isinstance(value, dict)
            else None
        )
    if types.is_list(kind):
        item = _reader(kind.value_type)
        return lambda value: _items(value, item)
    if kind in (pa.int32(), pa.int64()):
        top = 2 ** (kind.bit_width - 1)
        return lambda value: value if type(value) is int and -top <= value < top else None
    if kind == pa.float64():
        return lambda value: float(value) if type(value) in (int, float) else None
    if kind == pa.bool_():
        return lambda value: value if isinstance(value, bool) else None
    if kind == pa.string():
        return lambda value: value if isinstance(value, str) else _written(value)
    raise ExpressionRefused(f"from_json to {type_name(kind)} is not supported in expressions; use transform(…)")
