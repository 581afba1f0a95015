"""Check that a Python value fits an Arrow type, without the silent conversions of `pyarrow.array` (1.5 → 1, 1 → date).

A *fit* is a function that returns the value as Arrow would give it back (so that a value that is read later equals the
value that was put), a fresh copy if it is mutable, and raises `Misfit` otherwise. It is called for every value that
user code hands over, so the usual case of each type is a single comparison.
"""

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import SettingsError
from holdfast.python_values import python_values

Fit = Callable[[Any], Any]
_INFINITE = (float("inf"), float("-inf"))


class Misfit(TypeError):
    """A value that does not fit; the message names the value found and the values expected.

    `place`: its place among the values of an array.
    """

    def __init__(self, value: Any, expected: str) -> None:
        self.place = 0
        super().__init__(f"found {value!r:.200} ({type(value).__name__}), expected {expected}")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def integer_range(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
    return low, low + 2**kind.bit_width - 1


def _fit_integer(kind: pa.DataType, nullable: bool) -> Fit:
    low, high = integer_range(kind)

    def fit(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        if value is None and nullable:
            return None
        plain = _plain(value)
        if isinstance(plain, int) and not isinstance(plain, bool) and low <= plain <= high:
            return int(plain)
        raise Misfit(value, _expected(kind, nullable))

    return fit


def _fit_float(kind: pa.DataType, nullable: bool) -> Fit:
    def fit(value: Any) -> Any:
        if type(value) is float:
            return value
        if value is None and nullable:
            return None
        plain = _plain(value)
        if isinstance(plain, int | float) and not isinstance(plain, bool):
            try:
                return float(plain)
            except OverflowError:
                raise Misfit(value, f"{kind}, which has no number so large") from None
        raise Misfit(value, _expected(kind, nullable))

    def fit_narrow(value: Any) -> Any:
        number = fit(value)
        found = pa.scalar(number, type=kind).as_py()
        if found in _INFINITE and number not in _INFINITE:
            raise Misfit(value, f"{kind}, which has no number so large")
        return found

    return fit if kind == pa.float64() else fit_narrow


def _fit_text(kind: pa.DataType, nullable: bool) -> Fit:
    """Make a check for texts. Python has texts that no UTF-8 holds: with halves of surrogate pairs, as `json.loads`
    makes of `"\\ud800"`."""

    def fit(value: Any) -> Any:
        if type(value) is str and value.isascii():
            return value
        if value is None and nullable:
            return None
        if not isinstance(value, str):
            raise Misfit(value, _expected(kind, nullable))
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Misfit(value, f"text that UTF-8 can hold ({error.reason})") from None
        return str(value)

    return fit


def _fit_class(kind: pa.DataType, nullable: bool, usual: type, accepted: tuple[type, ...]) -> Fit:
    def fit(value: Any) -> Any:
        if type(value) is usual:
            return value
        if value is None and nullable:
            return None
        plain = _plain(value)
        if isinstance(plain, accepted):
            return usual(plain)
        raise Misfit(value, _expected(kind, nullable))

    return fit


def _expected(kind: pa.DataType, nullable: bool) -> str:
    return str(kind) if nullable else f"{kind} (not null)"


_CLOCKS = (datetime.datetime, datetime.time)


def _fit_by_arrow(kind: pa.DataType, accepted: tuple[type, ...]) -> Fit:
    """Make a check for types with own limits (precision, width, unit): Arrow decides, for values of the right kind."""

    def fit(value: Any) -> Any:
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise Misfit(value, str(kind))
        if isinstance(value, _CLOCKS) and value.utcoffset() and getattr(kind, "tz", None) is None:
            raise Misfit(value, f"{kind}: a time without a zone, or in UTC")
        try:
            return python_values(pa.array([value], type=kind))[0]
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise Misfit(value, f"{kind} ({error})") from error

    return fit


def _fit_date(value: Any) -> Any:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise Misfit(value, "a date")


def _fit_list(kind: pa.DataType) -> Fit:
    fit_item = fit_for(kind.value_type, kind.value_field.nullable)
    are_usual = usual_values(kind.value_type, kind.value_field.nullable)

    def fit(value: Any) -> Any:
        if type(value) is list and are_usual(value):
            return value.copy()
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | np.ndarray):
            raise Misfit(value, str(kind))
        return [fit_item(item) for item in value]

    return fit


def _fit_map(kind: pa.DataType) -> Fit:
    fit_key, fit_item = fit_for(kind.key_type, False), fit_for(kind.item_type, kind.item_field.nullable)
    are_usual_keys = usual_values(kind.key_type, False)
    are_usual_items = usual_values(kind.item_type, kind.item_field.nullable)

    def fit(value: Any) -> Any:
        if type(value) is dict and are_usual_keys(value.keys()) and are_usual_items(value.values()):
            return list(value.items())
        pairs = value.items() if isinstance(value, Mapping) else value
        if isinstance(value, str | bytes) or (not isinstance(pairs, Sequence) and not isinstance(value, Mapping)):
            raise Misfit(value, str(kind))
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise Misfit(value, f"{kind} (a dict, or a list of pairs)")
        return [(fit_key(key), fit_item(item)) for key, item in pairs]

    return fit


def _fit_struct(kind: pa.DataType) -> Fit:
    fits = {field.name: fit_for(field.type, field.nullable) for field in kind}

    def fit(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == len(fits):
            value = dict(zip(fits, value, strict=True))
        if not isinstance(value, Mapping) or not value.keys() <= fits.keys():
            raise Misfit(value, f"{kind} (a dict with these fields, or a tuple of all of them)")
        return {name: fit_field(value.get(name)) for name, fit_field in fits.items()}

    return fit


def _fit_plain(kind: pa.DataType, nullable: bool) -> Fit | None:
    """Make a check for the types that most values have, with a single comparison in the usual case."""
    types = pa.types
    if types.is_integer(kind):
        return _fit_integer(kind, nullable)
    if types.is_floating(kind):
        return _fit_float(kind, nullable)
    if types.is_boolean(kind):
        return _fit_class(kind, nullable, bool, (bool,))
    if types.is_string(kind) or types.is_large_string(kind):
        return _fit_text(kind, nullable)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _fit_class(kind, nullable, bytes, (bytes, bytearray, memoryview))
    return None


def _fit_other(kind: pa.DataType) -> Fit | None:
    types = pa.types
    if types.is_fixed_size_binary(kind):
        return _fit_by_arrow(kind, (bytes,))
    if types.is_decimal(kind):
        return _fit_by_arrow(kind, (Decimal, int))
    if types.is_date(kind):
        return _fit_date
    if types.is_timestamp(kind):
        return _fit_by_arrow(kind, (datetime.datetime, np.datetime64))
    if types.is_time(kind):
        return _fit_by_arrow(kind, (datetime.time,))
    if types.is_duration(kind):
        return _fit_by_arrow(kind, (datetime.timedelta, np.timedelta64))
    if types.is_map(kind):
        return _fit_map(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return _fit_list(kind)
    return _fit_struct(kind) if types.is_struct(kind) else None


def fit_for(kind: pa.DataType, nullable: bool = True) -> Fit:
    """The fit of a type; raises `SettingsError` for types that functions cannot hold (dictionaries, unions, …)."""
    plain = _fit_plain(kind, nullable)
    if plain is not None:
        return plain
    other = _fit_other(kind)
    if other is None:
        raise SettingsError(
            f"type {kind} cannot be held by a function; use a number, boolean, string, binary, decimal, date, time, "
            "timestamp, duration, list, map or struct"
        )
    found = other

    def fit_or_none(value: Any) -> Any:
        if value is not None:
            return found(value)
        if nullable:
            return None
        raise Misfit(value, _expected(kind, nullable))

    return fit_or_none


def plain_class(kind: pa.DataType) -> type | None:
    """The class whose values need no `fit_for`: `pyarrow.array` converts or refuses them likewise. None: no class."""
    types = pa.types
    tests: dict[type, tuple[Callable[[Any], bool], ...]] = {
        int: (types.is_integer,),
        float: (types.is_float64,),
        bool: (types.is_boolean,),
        str: (types.is_string, types.is_large_string),
        bytes: (types.is_binary, types.is_large_binary),
    }
    return next((found for found, group in tests.items() if any(test(kind) for test in group)), None)


def usual_values(kind: pa.DataType, nullable: bool) -> Callable[[Collection[Any]], bool]:
    """Return a check for many values at once: True if `fit_for` would return each of them as it is. It may also be
    False for such values, but not if each is a number or bytes of the type's `plain_class`, or a text in ASCII."""
    plain = plain_class(kind)
    if plain is None:
        return lambda values: False
    if plain is int:
        low, high = integer_range(kind)
        integers = frozenset([int])
        return lambda values: (
            integers.issuperset(map(type, values)) and (not values or (low <= min(values) and max(values) <= high))
        )
    if plain is str:
        texts = frozenset([str])
        return lambda values: texts.issuperset(map(type, values)) and all(map(str.isascii, values))
    classes = frozenset([plain, type(None)]) if nullable else frozenset([plain])
    return lambda values: classes.issuperset(map(type, values))


def copier_for(kind: pa.DataType) -> Fit | None:
    """Return a function that copies a value that `fit_for` returned; None if such values cannot change in place."""
    types = pa.types
    if types.is_struct(kind):
        nested = {field.name: copy for field in kind if (copy := copier_for(field.type)) is not None}
        return lambda value: None if value is None else value | {name: nested[name](value[name]) for name in nested}
    if types.is_map(kind):
        copy_item = copier_for(kind.item_type)
        if copy_item is not None:
            return lambda value: None if value is None else [(key, copy_item(item)) for key, item in value]
    elif types.is_list(kind) or types.is_large_list(kind):
        copy_element = copier_for(kind.value_type)
        if copy_element is not None:
            return lambda value: None if value is None else list(map(copy_element, value))
    else:
        return None
    return lambda value: None if value is None else value.copy()


def fitted_array(values: Sequence[Any], field: pa.Field, fit: Fit) -> pa.Array:
    """Return values as an array of a field's type; `fit` is the type's. Raises `Misfit`, with the place of the first
    value that does not fit."""
    plain, kind = plain_class(field.type), field.type
    classes = {plain, type(None)} if field.nullable else {plain}
    if plain is not None and classes.issuperset(map(type, values)):
        try:
            return pa.array(values, type=kind)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            pass  # the check below names the value
    fitted: list[Any] = []
    try:
        for value in values:
            fitted.append(fit(value))
    except Misfit as misfit:
        misfit.place = len(fitted)
        raise
    return pa.array(fitted, type=kind)
