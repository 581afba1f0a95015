"""Prices of an object store, for displays of what a job's requests cost. A leaf: every room may import it."""

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from holdfast.errors import SettingsError

BYTES_PER_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class StorePrices:
    """Prices of the object store that a job's storage is in. They are shown beside its requests, and decide nothing.

    The defaults are those of S3's standard class in its cheapest regions; look up your own.

    Parameters
    ----------
    per_1000_puts
        Price of a thousand requests that store or list objects.
    per_1000_gets
        Price of a thousand requests that read.
    per_gb_month
        Price of a gigabyte (10^9 bytes) that is kept for a month.
    currency
        The unit of the prices, as it is shown.
    """

    HOURS_PER_MONTH: ClassVar[float] = 730.0

    per_1000_puts: float = 0.005
    per_1000_gets: float = 0.0004
    per_gb_month: float = 0.023
    currency: str = "USD"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "currency":
                if not isinstance(value, str) or not value:
                    raise SettingsError(f"currency={value!r} is not allowed: a text, for example 'USD'")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise SettingsError(f"{each.name}={value!r} is not allowed: a price, a number from 0")

    def of_requests(self, kind: str, requests: float) -> float:
        """Return the price of `requests` of a `kind`: "put", "list", "get", or "delete", which is free."""
        per_1000 = {"put": self.per_1000_puts, "list": self.per_1000_puts, "get": self.per_1000_gets}.get(kind, 0.0)
        return requests * per_1000 / 1000

    def of_bytes_per_hour(self, kept_bytes: float) -> float:
        """Return the price of keeping `kept_bytes` for an hour."""
        return kept_bytes / BYTES_PER_GB * self.per_gb_month / self.HOURS_PER_MONTH
