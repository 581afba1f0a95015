"""Objects of users as bytes of msgpack, and back: values of states that have no type. Nothing is pickled."""

import datetime
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from holdfast.value_fits import Misfit

_SCALARS = frozenset([type(None), bool, int, float, str, bytes])
_LISTS = frozenset([list])
_NAIVE, _DATE = 1, 2
"""Codes of msgpack's extensions: datetimes without a time zone, in microseconds, and dates, in days since 0001."""
_EPOCH, _MICROSECOND = datetime.datetime(1970, 1, 1), datetime.timedelta(microseconds=1)


def _packable(value: Any) -> Any:
    """Return the value in a form that msgpack preserves. Classes and sets, which msgpack would change, are refused."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple:
        return value if _are_plain(value) or _are_plain_lists(value) else [_packable(item) for item in value]
    if kind is dict:
        for key in value:
            if type(key) not in _SCALARS:
                raise Misfit(key, "a dict key that msgpack can hold (a number, str, bytes, bool or None)")
        return {key: _packable(item) for key, item in value.items()}
    if kind is datetime.datetime:
        return value if value.tzinfo is not None else _extension(_NAIVE, (value - _EPOCH) // _MICROSECOND)
    if kind is datetime.date:
        return _extension(_DATE, value.toordinal())
    raise Misfit(value, "a value that msgpack can hold: None, bool, int, float, str, bytes, datetime, date, list, dict")


def _are_plain(values: Sequence[Any]) -> bool:
    """True if msgpack preserves each of the values: scalars, and datetimes with a time zone."""
    others = set(map(type, values)) - _SCALARS
    if not others:
        return True
    kind = datetime.datetime
    return others == {kind} and None not in [each.tzinfo for each in values if type(each) is kind]


def _are_plain_lists(values: Sequence[Any]) -> bool:
    """True if the values are lists whose elements msgpack preserves: they are looked at all at once."""
    return _LISTS.issuperset(map(type, values)) and _are_plain(list(chain.from_iterable(values)))


def _extension(code: int, number: int) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, number.to_bytes(8, "big", signed=True))


def _from_extension(code: int, data: memoryview) -> Any:
    number = int.from_bytes(data, "big", signed=True)
    return datetime.date.fromordinal(number) if code == _DATE else _EPOCH + number * _MICROSECOND


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=_from_extension).decode


def pack(value: Any) -> bytes:
    """Any msgpack-able object as bytes; tuples come back as lists, times with a zone in UTC. Raises `Misfit`."""
    try:
        return _encode(_packable(value))
    except (OverflowError, RecursionError, ValueError) as error:
        raise Misfit(value, f"a value that msgpack can hold ({error})") from error


def unpack(data: bytes) -> Any:
    """Return the object that was packed."""
    return _decode(data)
