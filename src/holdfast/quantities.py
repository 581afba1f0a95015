"""Durations and sizes as users write them: strings with a unit, numbers of seconds or bytes, or a `timedelta`.

Pure. Durations may use Spark's long unit names and several parts: `"10 minutes"`, `"1 hour 30 minutes"`. Sizes follow
Spark and Flink: 1KB is 1024 bytes.
"""

import math
import re
from datetime import timedelta
from functools import lru_cache

from holdfast.errors import SettingsError

Duration = str | int | float | timedelta
"""`"500ms"`, `"1s"`, `"10min"`, `"2h"`, `"1d"`, `"10 minutes"`, a `timedelta`, or a number of seconds."""

Size = str | int
"""`"512B"`, `"64KB"`, `"8MB"`, `"1GB"`, `"1TB"`, or a number of bytes."""

TEXTS_KEPT_MAX = 1024
"""Most texts of durations whose seconds are cached, since loops read their settings many times a second."""

_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_PARTS = re.compile(r"(?:\s*\d+(?:\.\d+)?\s*[A-Za-z]+)+\s*")
_SECONDS = {
    name: seconds
    for names, seconds in (
        ("us microsecond", 1e-6),
        ("ms millisecond", 0.001),
        ("s sec second", 1.0),
        ("m min minute", 60.0),
        ("h hr hour", 3600.0),
        ("d day", 86400.0),
        ("w week", 604800.0),
    )
    for name in names.split()
}
_SECONDS |= {f"{name}s": seconds for name, seconds in _SECONDS.items() if len(name) > 2}
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def duration_s(value: Duration, field: str) -> float:
    """Return the seconds of a duration `value` of the setting `field`.

    Raises
    ------
    SettingsError
        It is negative, not finite, or not a duration.
    """
    return _text_s(value, field) if isinstance(value, str) else _seconds(value, field)


@lru_cache(maxsize=TEXTS_KEPT_MAX)
def _text_s(value: str, field: str) -> float:
    return _seconds(value, field)


def _seconds(value: Duration, field: str) -> float:
    allowed = "a number of seconds, a timedelta, or a string such as '500ms', '1s', '10min', '2h', '1d'"
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and _PARTS.fullmatch(value):
        parts = [match[0] for match in _NUMBER_AND_UNIT.finditer(value)]
        seconds = sum(_quantity(part, _SECONDS, field, allowed, value) for part in parts)
    else:
        seconds = _quantity(value, _SECONDS, field, allowed)
    if not math.isfinite(seconds) or seconds < 0:
        raise SettingsError(f"{field}={value!r}: a duration is finite and not negative; allowed: {allowed}")
    return seconds


def duration_us(value: Duration, field: str) -> int:
    """Return the microseconds of a duration, rounded. Otherwise the same as `duration_s`."""
    return round(duration_s(value, field) * 1_000_000)


def signed_duration_us(value: Duration, field: str) -> int:
    """Return the microseconds of a duration `value` of the setting `field`, which may be negative, as in `"-5min"`."""
    if isinstance(value, str) and value.lstrip().startswith("-"):
        return -duration_us(value.lstrip()[1:], field)
    if (isinstance(value, timedelta) and value < timedelta()) or (isinstance(value, (int, float)) and value < 0):
        return -duration_us(-value, field)
    return duration_us(value, field)


def size_bytes(value: Size, field: str) -> int:
    """Return the bytes of a size `value` of the setting `field`.

    Raises
    ------
    SettingsError
        It is negative, no whole number of bytes, or not a size.
    """
    allowed = "a number of bytes, or a string such as '512B', '64KB', '8MB', '1GB', '1TB' (1KB is 1024 bytes)"
    size = _quantity(value, _BYTES, field, allowed)
    if not math.isfinite(size) or size < 0 or size != int(size):
        raise SettingsError(f"{field}={value!r}: a size is a whole number of bytes, not negative; allowed: {allowed}")
    return int(size)


def size_text(size: float) -> str:
    """Return a number of bytes as text for people."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def above_zero(number: float, field: str, value: object) -> None:
    """Refuse a `number` that is not above zero; `value` is the user's value of the setting `field`."""
    if not number > 0:
        raise SettingsError(f"{field}={value!r}: allowed is anything above zero")


def whole_number(value: object, field: str, least: int) -> None:
    """Refuse a `value` of the setting `field` that is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingsError(f"{field}={value!r}: allowed is a whole number of at least {least}")


def _quantity(
    value: object, units: dict[str, float] | dict[str, int], field: str, allowed: str, whole: object = None
) -> float:
    """Return the number that `value` denotes. `whole` is the user's complete value if `value` is only a part of it."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
    unit = units.get(match.group(2)) if match else None
    if match is None or unit is None:
        raise SettingsError(f"{field}={(value if whole is None else whole)!r} is not understood; allowed: {allowed}")
    return float(match.group(1)) * unit
