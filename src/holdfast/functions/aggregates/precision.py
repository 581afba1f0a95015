"""The precision of a sketch of distinct values: from a relative standard deviation to a number of registers."""

import math

from holdfast.errors import SettingsError

PRECISION_MIN, PRECISION_MAX = 4, 16
"""Bits of a hash that choose a register. A further bit halves the variance and doubles the sketch."""
RSD_ONE = 1.106
"""The standard deviation with a single register; with m registers it is divided by √m (as Spark SQL has it)."""


def precision_for(rsd: float | None) -> int:
    """The least precision with at most that relative standard deviation. Raises `SettingsError`."""
    least, most = (RSD_ONE / math.sqrt(1 << bits) for bits in (PRECISION_MAX, PRECISION_MIN))
    if not isinstance(rsd, int | float) or isinstance(rsd, bool) or not least <= rsd <= most:
        raise SettingsError(
            f"approx_count_distinct(rsd={rsd!r}): a relative standard deviation from {least:.4f} to {most:.3f}; for "
            "exact results take count_distinct"
        )
    return math.ceil(2 * math.log2(RSD_ONE / rsd))
