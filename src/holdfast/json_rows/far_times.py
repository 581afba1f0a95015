"""Dates and timestamps outside of the years 0 to 9999, which Arrow neither reads nor writes as text.

Years of more than four digits, and years before 0, are written as in ISO 8601, with a sign: `+10000-01-01`. The
calendar repeats every 400 years, so Python's calendar can compute the days of any year.
"""

import re
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FAR = re.compile(
    r"([+-]?[0-9]{4,12})-([0-9]{2})-([0-9]{2})"
    r"(?:[ T]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
CYCLE_YEARS, CYCLE_DAYS = 400, 146_097
EPOCH_DAY = date(1970, 1, 1).toordinal()
UNITS_OF_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DAY_S = 86_400
INT64 = np.iinfo(np.int64)
YEAR_0_DAY, YEAR_10000_DAY = -719_528, 2_932_897
"""Days since 1970-01-01 of the first day of year 0, the first year that Arrow reads and writes, and of year 10000."""


def far_time(text: str, type_: pa.DataType) -> pa.Array | None:
    """Return the time that a text names, as an array of it alone; None if the text names no time of the type."""
    match = FAR.fullmatch(text)
    if match is None or not (pa.types.is_date(type_) or pa.types.is_timestamp(type_)):
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    cycles, year_of_cycle = divmod(int(year), CYCLE_YEARS)
    try:
        days = date(CYCLE_YEARS + year_of_cycle, int(month), int(day)).toordinal() - EPOCH_DAY
    except ValueError:
        return None
    days += (cycles - 1) * CYCLE_DAYS
    if pa.types.is_date(type_):
        count = days if pa.types.is_date32(type_) else days * DAY_S * 1_000
        return _as_time(count, type_) if hour is None else None
    clock = [int(part or 0) for part in (hour, minute, second)]
    if (zone is None) != (type_.tz is None) or clock[0] > 23 or max(clock[1:]) > 59:
        return None
    seconds = days * DAY_S + clock[0] * 3_600 + clock[1] * 60 + clock[2] - _offset_s(zone or "Z")
    per_second = UNITS_OF_SECOND[type_.unit]
    return _as_time(seconds * per_second + int((fraction or "").ljust(9, "0")) * per_second // 10**9, type_)


def _offset_s(zone: str) -> int:
    if zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return (-1 if zone[0] == "-" else 1) * (int(digits[:2]) * 3_600 + int(digits[2:]) * 60)


def _as_time(count: int, type_: pa.DataType) -> pa.Array | None:
    bits = pa.int32() if pa.types.is_date32(type_) else pa.int64()
    if not -(2 ** (bits.bit_width - 1)) <= count < 2 ** (bits.bit_width - 1):
        return None
    return pa.array([count], bits).view(type_)


def time_texts(array: pa.Array) -> pa.Array:
    """Return dates or timestamps as texts in ISO 8601, instants in UTC; a fraction of a second only if it is not 0."""
    type_ = array.type
    if pa.types.is_date(type_):
        counts = array.view(pa.int32()) if pa.types.is_date32(type_) else array.view(pa.int64())
        per_day = 1 if pa.types.is_date32(type_) else DAY_S * 1_000
        return _texts(array, counts, per_day)
    array = pc.cast(array, pa.timestamp(type_.unit, None if type_.tz is None else "UTC"))
    return _texts(array, array.view(pa.int64()), DAY_S * UNITS_OF_SECOND[type_.unit])


def _texts(array: pa.Array, counts: pa.Array, per_day: int) -> pa.Array:
    low, high = max(YEAR_0_DAY * per_day, INT64.min), min(YEAR_10000_DAY * per_day, INT64.max)
    far = pc.or_(pc.less(counts, low), pc.greater_equal(counts, high))
    near = pc.cast(pc.if_else(far, pa.scalar(None, array.type), array), pa.string())
    near = pc.replace_substring_regex(pc.replace_substring(near, " ", "T"), r"\.0+(Z?)$", r"\1")
    if not pc.any(far).as_py():
        return near
    texts = near.to_pylist()
    for place in pc.indices_nonzero(far).to_pylist():
        texts[place] = far_text(counts[place].as_py(), per_day, array.type)
    return pa.array(texts, pa.string())


def far_text(count: int, per_day: int, type_: pa.DataType) -> str:
    """Return the text of a time: a count of units of which a day has `per_day`."""
    days, rest = divmod(count, per_day)
    cycles, day_of_cycle = divmod(days - YEAR_0_DAY, CYCLE_DAYS)
    found = date(CYCLE_YEARS, 1, 1) + timedelta(days=day_of_cycle)
    year = found.year + (cycles - 1) * CYCLE_YEARS
    text = f"{'-' if year < 0 else '+'}{abs(year):04}-{found.month:02}-{found.day:02}"
    if pa.types.is_date(type_):
        return text
    seconds, fraction = divmod(rest, UNITS_OF_SECOND[type_.unit])
    digits = len(str(UNITS_OF_SECOND[type_.unit])) - 1
    text += f"T{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{fraction:0{digits}}" if fraction else "") + ("" if type_.tz is None else "Z")
