"""Values of declarations as texts that stay the same from start to start. Pure.

A value of an unknown class is described only by its class, since its `repr` may contain an address.
"""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.graph.program import name_of_function

DEPTH_MAX = 8
"""Bound on the depth of nested values. A higher value distinguishes declarations that differ deeper inside."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, range, Enum)
ARROW = (pa.DataType, pa.Field, pa.Schema, pa.Scalar, pc.Expression)
PLAIN_MODULES = {"datetime", "decimal", "fractions", "numpy", "pathlib", "re", "uuid", "zoneinfo"}
"""Modules whose classes have a `repr` that describes the complete value, unless it contains an address."""


def settings_text(value: object, depth: int = 0) -> str:
    """Describe a value by its class and its settings."""
    if isinstance(value, PLAIN + ARROW):
        return repr(value)
    name = type(value).__qualname__
    if type(value).__module__.partition(".")[0] in PLAIN_MODULES and " at 0x" not in repr(value).lower():
        return repr(value)
    if depth == DEPTH_MAX:
        return name
    if isinstance(value, Mapping):
        return f"{name}({', '.join(_items(value, depth))})"
    if isinstance(value, list | tuple):
        return f"{name}({', '.join(settings_text(each, depth + 1) for each in value)})"
    if isinstance(value, set | frozenset):
        return f"{name}({', '.join(sorted(settings_text(each, depth + 1) for each in value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{name}({', '.join(_items(_fields(value), depth))})"
    if isinstance(value, msgspec.Struct):
        return f"{name}({', '.join(_items(msgspec.structs.asdict(value), depth))})"
    return f"{name} {name_of_function(value)}" if callable(value) else name


def attributes_text(value: object) -> str:
    """Describe an object of a class that is the user's own, with its attributes in order of their names."""
    return f"{type(value).__qualname__}({', '.join(sorted(_items(getattr(value, '__dict__', {}), 0)))})"


def _fields(value: Any) -> dict[str, object]:
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def _items(values: Mapping[Any, object], depth: int) -> list[str]:
    return [f"{settings_text(key, depth + 1)}: {settings_text(each, depth + 1)}" for key, each in values.items()]
