"""Times as datetimes of Python and as microseconds since 1970."""

from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_datetime(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def to_micros(timestamp: Any) -> int:
    """Return the microseconds since 1970 of a datetime (without a zone: UTC). Raises `TypeError` for anything else."""
    if not isinstance(timestamp, datetime):
        raise TypeError(f"a timer's timestamp is {timestamp!r}; expected a datetime")
    aware = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND
