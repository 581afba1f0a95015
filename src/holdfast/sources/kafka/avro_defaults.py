"""Decoding of the defaults of fields in Avro schemas.

A default is JSON, and the row-wise library takes it as it is. By the specification, bytes and fixed are text in which
each character is a byte (ISO 8859-1), a decimal is such bytes, and a time is a number in the unit of its type.
"""

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from holdfast.errors import SettingsError

EPOCH = datetime.datetime(1970, 1, 1)
UNITS_US = {"millis": 1_000, "micros": 1}
INT_BITS = {"int": 32, "long": 64}


def decode_defaults(schema: Any, named: Mapping[str, Any], whose: str) -> None:
    """Decode the defaults of all fields in a parsed schema, in place. Raises `SettingsError` naming the field."""
    if isinstance(schema, list):
        for branch in schema:
            decode_defaults(branch, named, whose)
    if not isinstance(schema, dict):
        return
    for below in ("items", "values", "type"):
        decode_defaults(schema.get(below), named, whose)
    for field in schema.get("fields", ()):
        decode_defaults(field["type"], named, whose)
        if "default" in field:
            try:
                field["default"] = decoded(field["type"], field["default"], named)
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise SettingsError(
                    f"{whose}: field {field['name']!r} has default {field['default']!r:.100}, which is no value of its "
                    f"type: {error}"
                ) from error


def decoded(schema: Any, default: Any, named: Mapping[str, Any]) -> Any:
    """Return the value of a default in JSON. Raises `ValueError` or the like if it is no value of the type."""
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    if isinstance(schema, list):
        return _of_union(schema, default, named)
    kind, logical = schema["type"], str(schema.get("logicalType"))
    if isinstance(kind, dict | list):
        return decoded(kind, default, named)
    match kind:
        case "null":
            return _checked(default, default is None)
        case "boolean":
            return _checked(default, isinstance(default, bool))
        case "int" | "long":
            is_whole = isinstance(default, int) and not isinstance(default, bool)
            limit = 2 ** (INT_BITS[kind] - 1)
            return _time(_checked(default, is_whole and -limit <= default < limit), logical)
        case "float" | "double":
            return float(_checked(default, not isinstance(default, bool)))
        case "bytes" | "fixed":
            return _bytes(schema, default, logical)
        case "string":
            return _checked(default, isinstance(default, str))
        case "enum":
            return _checked(default, default in schema["symbols"])
        case "array":
            return [decoded(schema["items"], one, named) for one in _checked(default, isinstance(default, list))]
        case "map":
            pairs = _checked(default, isinstance(default, dict)).items()
            return {name: decoded(schema["values"], one, named) for name, one in pairs}
        case "record":
            return _of_record(schema, _checked(default, isinstance(default, dict)), named)
    raise ValueError(f"type {kind!r} is not known")


def _of_union(branches: list[Any], default: Any, named: Mapping[str, Any]) -> Any:
    """Return the value in the first branch that accepts it. Older specifications require that it is the very first
    branch."""
    for branch in branches:
        try:
            return decoded(branch, default, named)
        except (TypeError, ValueError, KeyError, OverflowError):
            continue
    raise ValueError("no branch of the union takes it")


def _of_record(schema: Mapping[str, Any], default: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record; the defaults of its own fields are decoded already."""
    return {
        field["name"]: decoded(field["type"], default[field["name"]], named)
        if field["name"] in default
        else field["default"]
        for field in schema["fields"]
    }


def _bytes(schema: Mapping[str, Any], default: Any, logical: str) -> Any:
    if isinstance(default, bytes):
        return default
    content = _checked(default, isinstance(default, str)).encode("iso-8859-1")
    if schema["type"] == "fixed" and len(content) != schema["size"]:
        raise ValueError(f"{len(content)} bytes, expected {schema['size']}")
    if logical != "decimal":
        return content
    return Decimal(int.from_bytes(content, "big", signed=True)).scaleb(-schema.get("scale", 0))


def _time(number: int, logical: str) -> Any:
    if logical == "date":
        return (EPOCH + datetime.timedelta(days=number)).date()
    family, _, unit = logical.rpartition("-")
    if family not in {"timestamp", "local-timestamp"} or unit not in UNITS_US:
        return number
    time = EPOCH + datetime.timedelta(microseconds=number * UNITS_US[unit])
    return time if family.startswith("local") else time.replace(tzinfo=datetime.UTC)


def _checked(default: Any, is_right: bool) -> Any:
    if not is_right:
        raise ValueError(f"found {default!r:.100} ({type(default).__name__})")
    return default
