"""The function behind aggregates over rows: rows wait for the watermark, and come out in the order of their times."""

import bisect
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from holdfast.functions.process.declared import Context, ProcessFunction
from holdfast.functions.process.shared.states import ValueState

VALUES: dict[str, Callable[[list[Any]], Any]] = {
    "mean": lambda values: sum(values) / len(values), "sum": sum, "min": min, "max": max, "count": len,
}  # fmt: skip
"""The aggregates of values that are not null; without any they are null, but `count`."""
TIME, VALUE = "__row_time", "__row_value"
"""The last columns: the time of a row, further values by which rows of the same time are in order, and the value that
is aggregated. The other columns come out again."""


class LastRows(ProcessFunction):
    """An aggregate over each row and the `before` rows of its key before it. `ordered`: the columns of the order."""

    waiting = ValueState(default=[])
    last = ValueState(default=[])

    def __init__(self, aggregate: str, before: int, ordered: int) -> None:
        self.aggregate = aggregate
        self.before = before
        self.ordered = ordered

    def process(self, row: Any, ctx: Context) -> None:
        *columns, value = row
        time, *further = columns[-self.ordered :]
        if time is None:
            raise ValueError("the time of ORDER BY is null")
        place = [time, *([each is not None, each] for each in further)]
        waiting = self.waiting.value()
        bisect.insort(waiting, [place, value, columns[: -self.ordered]], key=_place)
        self.waiting.update(waiting)
        ctx.timers.register_event_time(time)

    def on_timer(self, timestamp: datetime, ctx: Context) -> Iterator[Any]:
        waiting, last = self.waiting.value(), self.last.value()
        passed = bisect.bisect_right(waiting, timestamp, key=lambda kept: kept[0][0])
        for place, value, columns in waiting[:passed]:
            bisect.insort(last, [place, value], key=_place)
            last = last[-1 - self.before :]
            yield (*columns, self._aggregated([each for _, each in last if each is not None]))
        self.waiting.update(waiting[passed:])
        self.last.update(last)

    def _aggregated(self, values: list[Any]) -> Any:
        return VALUES[self.aggregate](values) if values or self.aggregate == "count" else None


def _place(kept: list[Any]) -> Any:
    return kept[0]
