"""Time to live: a value expires by the batch's planned time, never by a clock.

So a batch that is processed again sees the same values. A value has expired if it is as old as `ttl` or older. A value
without a time was written before its state had a time to live: it is not expired, and its time begins when it is next
written, or when a round of `sweeping` comes to it. The times are kept by `cells` and `array_states` in the operator's
own table, and by `entries` for lists and maps. `sweeping` removes expired values.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from holdfast.errors import SettingsError
from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.quantities import duration_s

TtlOn = Literal["create", "write", "read"]


@dataclass(frozen=True)
class Expiry:
    ttl_us: int
    on: TtlOn


@dataclass
class BatchClock:
    """The time of the batch in flight; all states of an operator share a clock."""

    now_us: int = 0


def expired_rows(times: IntArray, known: BoolArray, expiry: Expiry, now_us: int) -> BoolArray:
    """Return the mask of expired rows, given their times and the mask of times that are not null."""
    expired: BoolArray = known & (times <= now_us - expiry.ttl_us)
    return expired


def renewed(times: IntArray, kept: BoolArray, expiry: Expiry, now_us: int) -> IntArray:
    """Return the times of rows that are written now. `kept`: rows that existed, with a time, and had not expired."""
    return np.where(kept, times, now_us) if expiry.on == "create" else np.full(len(times), now_us, np.int64)


def expiry_of(kind: str, ttl: Any, on: Any) -> Expiry | None:
    """Raises `SettingsError` naming the kind of state."""
    if on not in get_args(TtlOn):
        raise SettingsError(f"{kind} ttl_on is {on!r}; allowed are 'create', 'write' and 'read'")
    if ttl is None:
        return None
    try:
        ttl_us = round(duration_s(ttl, "ttl") * 1_000_000)
    except SettingsError as error:
        raise SettingsError(f"{kind}: {error}") from error
    if ttl_us <= 0:
        raise SettingsError(f"{kind} ttl is {ttl!r}; it must be longer than nothing")
    return Expiry(ttl_us, on)
