"""Times shifted by units, and the units between two times: `timestampadd(HOUR, 3, at)`, `timestampdiff(DAY, a, b)`."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions import zones
from holdfast.expressions.conversions import cast
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, with_arrays
from holdfast.expressions.times import local_time, moved, moved_by_months
from holdfast.expressions.types import INSTANT, LOCAL, SPAN, is_integer, type_name

_MICROS = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": 3_600_000_000,
    "DAY": zones.DAY_US, "DAYOFYEAR": zones.DAY_US, "WEEK": 7 * zones.DAY_US,
}  # fmt: skip
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def of_unit(binder: Binding, name: str, unit: str, first: Term, second: Term) -> Term:
    """Make `timestampadd`, or `timestampdiff`, with a unit. Raises `ExpressionRefused`."""
    unit = unit.upper()
    if unit not in _MICROS and unit not in _MONTHS:
        raise ExpressionRefused(
            f"{name}: the unit {unit} is not known; expected one of {', '.join([*_MICROS, *_MONTHS])}"
        )
    if name in ("timestampdiff", "datediff", "date_diff"):
        return _between(
            binder, unit, *(binder.fitted(each, "timestamp", f"a time of {name}") for each in (first, second))
        )
    if not is_integer(first.type):
        raise ExpressionRefused(f"{name}: the number of units is {type_name(first.type)}; expected a whole number")
    time = second if second.type == LOCAL else binder.fitted(second, "timestamp", f"the time of {name}")
    if unit in _MICROS:
        length = _MICROS[unit]
        span = applied(
            SPAN, lambda count: pc.multiply_checked(count.cast(pa.int64()), length).cast(SPAN), first, fails=True
        )
        return moved(binder, time, span, False)
    zone, months = binder.settings.zone, _MONTHS[unit]

    def kernel(array: pa.Array, count: pa.Array) -> pa.Array:
        by = pc.fill_null(count, 0).to_numpy(zero_copy_only=False).astype(np.int64) * months
        return pc.if_else(count.is_valid(), moved_by_months(array, by, zone), None)

    return applied(time.type, with_arrays(kernel), time, cast(first, pa.int64(), binder.settings))


def _between(binder: Binding, unit: str, start: Term, end: Term) -> Term:
    """Make the term of the number of whole units between two times, in local times of the session."""
    ends = [local_time(binder, cast(each, INSTANT, binder.settings)) for each in (start, end)]

    def kernel(begin: pa.Array, stop: pa.Array) -> pa.Array:
        if unit in _MICROS:
            return pc.divide(pc.subtract(stop.cast(pa.int64()), begin.cast(pa.int64())), _MICROS[unit])
        months = _months(
            *(pc.fill_null(each.cast(pa.int64()), 0).to_numpy(zero_copy_only=False) for each in (begin, stop))
        )
        found = pa.array(np.trunc(months / _MONTHS[unit]).astype(np.int64))
        return pc.if_else(pc.and_(begin.is_valid(), stop.is_valid()), found, None)

    return applied(pa.int64(), with_arrays(kernel), *ends)


def _months(begin: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Return the whole months between local times in microseconds, rounded towards zero."""
    days = [np.floor_divide(each, zones.DAY_US) for each in (begin, stop)]
    of_day = [each - day * zones.DAY_US for each, day in zip((begin, stop), days, strict=True)]
    last = days[1] - ((days[1] > days[0]) & (of_day[1] < of_day[0])) + ((days[1] < days[0]) & (of_day[1] > of_day[0]))
    packed = []
    for each in (days[0], last):
        date = each.astype("datetime64[D]")
        month = date.astype("datetime64[M]")
        packed.append(month.astype(np.int64) * 32 + (date - month.astype("datetime64[D]")).astype(np.int64))
    found: np.ndarray = np.trunc((packed[1] - packed[0]) / 32)
    return found
