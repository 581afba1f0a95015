"""Python functions over values: each distinct value is computed once, and rows with equal settings run together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.nodes import Scope, Term, Value, applied, array_of


def mapped(array: pa.Array, fn: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Apply a Python function to each distinct value that is not null."""
    distinct = array.unique()
    made = pa.array([None if each is None else fn(each) for each in distinct.to_pylist()], kind)
    return made.take(pc.index_in(array, distinct))


def mapping(fn: Callable[..., Any], kind: pa.DataType) -> Callable[..., pa.Array]:
    """Make a kernel from a Python function. Its result is null if an argument is null."""

    def kernel(*arrays: pa.Array) -> pa.Array:
        if len(arrays) == 1:
            return mapped(arrays[0], fn, kind)
        known: dict[tuple[Any, ...], Any] = {}
        made = []
        for row in zip(*(each.to_pylist() for each in arrays), strict=True):
            if row not in known:
                known[row] = None if None in row else fn(*row)
            made.append(known[row])
        return pa.array(made, kind)

    return kernel


def with_settings(
    kind: pa.DataType,
    kernel: Callable[..., pa.Array],
    node: Term,
    *settings: Term,
    fails: bool = False,
    costly: bool = False,
) -> Term:
    """Make a term whose kernel takes an array, and settings as Python values; it runs once per distinct setting."""

    def over(array: Value, *given: Value) -> pa.Array:
        count = next(len(each) for each in (array, *given) if not isinstance(each, pa.Scalar))
        values = array_of(array, count)
        if all(isinstance(each, pa.Scalar) for each in given):
            if not all(each.is_valid for each in given):
                return pa.nulls(count, kind)
            return kernel(values, *(each.as_py() for each in given))
        return _by_setting(values, [array_of(each, count) for each in given])

    def _by_setting(values: pa.Array, given: list[pa.Array]) -> pa.Array:
        rows: dict[tuple[Any, ...], list[int]] = {}
        for place, setting in enumerate(zip(*(each.to_pylist() for each in given), strict=True)):
            rows.setdefault(setting, []).append(place)
        parts, places = [], []
        for setting, taken in rows.items():
            some = values.take(pa.array(taken, pa.int64()))
            parts.append(pa.nulls(len(taken), kind) if None in setting else kernel(some, *setting))
            places.append(taken)
        if not parts:
            return pa.nulls(0, kind)
        order = np.empty(len(values), np.int64)
        order[np.concatenate(places)] = np.arange(len(values))
        return pa.concat_arrays(parts).take(pa.array(order))

    return applied(kind, over, node, *settings, fails=fails, costly=costly)


__all__ = ["Scope", "mapped", "mapping", "with_settings"]
