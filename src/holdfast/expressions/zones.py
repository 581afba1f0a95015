"""Times in the session's zone: conversion of instants to local times, and back as Java does it."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.nodes import ExpressionRefused
from holdfast.expressions.types import INSTANT, LOCAL

DAY_US = 86_400_000_000
_FAR_US = 2_114_380_800_000_000
"""The first microsecond of 2037, in UTC."""
_YEARS = np.arange("2009", "2037", dtype="datetime64[Y]")
_BEGINS = _YEARS.astype("datetime64[D]").astype(np.int64)
_LIKE = np.zeros(14, np.int64)
"""A near year with the same days of the week, by the weekday of its first day; from 7 on, leap years."""
_LIKE[(_BEGINS + 3) % 7 + 7 * ((_YEARS + 1).astype("datetime64[D]").astype(np.int64) - _BEGINS - 365)] = _BEGINS
_UTC = {"UTC", "Etc/UTC", "GMT", "Z", "+00:00", "Etc/GMT", "UCT", "Etc/UCT", "Zulu"}


def is_utc(zone: str) -> bool:
    return zone in _UTC


def check_zone(zone: str) -> None:
    """Raise `ExpressionRefused` for an unknown zone."""
    try:
        pc.assume_timezone(pa.array([0], LOCAL), zone)
    except (pa.ArrowException, ValueError) as error:
        raise ExpressionRefused(f"the zone {zone!r} is not known: {error}") from error


def _without_far(array: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Move times after 2037 into earlier years with the same days of the week; returns the shift in microseconds too.

    PyArrow knows no daylight saving time after 2037, but the rules of zones continue. The rules for a year depend on
    the weekday of its first day and on whether it is a leap year, and all combinations occur within any 28 years of
    this century.
    """
    micros = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    far = micros >= _FAR_US
    if not far.any():
        return array, None
    years = np.floor_divide(micros, DAY_US).astype("datetime64[D]").astype("datetime64[Y]")
    begins = years.astype("datetime64[D]").astype(np.int64)
    leap = (years + 1).astype("datetime64[D]").astype(np.int64) - begins - 365
    kind = (begins + 3) % 7 + 7 * leap
    ahead = np.where(far, (begins - _LIKE[kind]) * DAY_US, 0)
    return pc.subtract(array.cast(pa.int64()), pa.array(ahead)).cast(array.type), pa.array(ahead)


def to_local(array: pa.Array, zone: str) -> pa.Array:
    """Return the local times of instants."""
    if is_utc(zone):
        return array.cast(pa.int64()).cast(LOCAL)
    near, ahead = _without_far(array)
    made = pc.local_timestamp(near.cast(pa.timestamp("us", zone)))
    return made if ahead is None else pc.add(made.cast(pa.int64()), ahead).cast(LOCAL)


def to_instant(array: pa.Array, zone: str) -> pa.Array:
    """Return the instants of local times: the earlier instant in an overlap; in a gap, the time shifted by the gap."""
    if is_utc(zone):
        return array.cast(pa.int64()).cast(INSTANT)
    near, ahead = _without_far(array)
    made = pc.assume_timezone(near, zone, ambiguous="earliest", nonexistent="earliest").cast(INSTANT)
    if ahead is not None:
        made = pc.add(made.cast(pa.int64()), ahead).cast(INSTANT)
    back = to_local(made, zone)
    skipped = pc.not_equal(back, array)
    if not pc.any(skipped).as_py():
        return made
    offset = pc.subtract(back.cast(pa.int64()), made.cast(pa.int64()))
    moved = pc.subtract(array.cast(pa.int64()), offset).cast(INSTANT)
    return pc.if_else(skipped, moved, made)


def floor_divided(array: pa.Array, divisor: int) -> pa.Array:
    """Divide whole numbers, rounded down."""
    values = np.floor_divide(pc.fill_null(array, 0).to_numpy(zero_copy_only=False), divisor)
    return pc.if_else(array.is_valid(), pa.array(values), None) if array.null_count else pa.array(values)


def local_date(array: pa.Array) -> pa.Array:
    return floor_divided(array.cast(pa.int64()), DAY_US).cast(pa.int32()).cast(pa.date32())


def midnight(array: pa.Array) -> pa.Array:
    """Return the local times at which days begin."""
    return pc.multiply(array.cast(pa.int32()).cast(pa.int64()), DAY_US).cast(LOCAL)


def between(found: pa.DataType, wanted: pa.DataType, zone: str) -> Callable[[pa.Array], pa.Array]:
    """Return the cast between two of the types DATE, TIMESTAMP and TIMESTAMP_NTZ."""

    def kernel(array: pa.Array) -> pa.Array:
        local = midnight(array) if found == pa.date32() else to_local(array, zone) if found == INSTANT else array
        if wanted == pa.date32():
            return local_date(local)
        return local if wanted == LOCAL else to_instant(local, zone)

    return kernel
