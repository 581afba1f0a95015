"""A start's requests to its storage, by lane, as the history keeps and displays show them. Data only."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.store_prices import StorePrices


@dataclass(frozen=True)
class LaneUse:
    """Requests of a lane, and the bytes that they stored or read.

    `kind`: "put", "get", "list" or "delete", by which requests are priced.
    """

    lane: str
    kind: str
    requests: int
    size_bytes: int


@dataclass(frozen=True)
class StoreUse:
    """Requests of a start so far. `kept_bytes`: all the state that the newest checkpoint refers to."""

    seconds: float
    checkpoints: int
    kept_bytes: int
    lanes: tuple[LaneUse, ...]


class LaneRates(NamedTuple):
    """A lane's use for each hour and each completed checkpoint; the latter are None before the first checkpoint."""

    lane: str
    kind: str
    requests_per_hour: float
    bytes_per_hour: float
    requests_per_checkpoint: float | None
    bytes_per_checkpoint: float | None
    cost_per_hour: float


def rates(use: StoreUse, prices: StorePrices) -> Iterator[LaneRates]:
    """The rates of each lane, and last of all lanes together ("all"), with what it costs to keep the bytes."""
    hours, kept = max(use.seconds, 1.0) / 3600, prices.of_bytes_per_hour(use.kept_bytes)
    costs = [prices.of_requests(each.kind, each.requests) / hours for each in use.lanes]
    total = LaneUse("all", "", sum(each.requests for each in use.lanes), sum(each.size_bytes for each in use.lanes))
    for each, cost in zip((*use.lanes, total), (*costs, sum(costs) + kept), strict=True):
        yield LaneRates(
            each.lane,
            each.kind,
            each.requests / hours,
            each.size_bytes / hours,
            each.requests / use.checkpoints if use.checkpoints else None,
            each.size_bytes / use.checkpoints if use.checkpoints else None,
            cost,
        )
