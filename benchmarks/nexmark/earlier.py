"""Parts of queries for earlier commits, which this one is compared with."""

from collections.abc import Iterator
from typing import Any

import holdfast as hf


class LastTen(hf.ProcessFunction):
    """The mean price of a seller's last ten auctions that have expired, for commits without `KeyedStream.over`."""

    last = hf.ValueState(default=[])

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        last = sorted([*self.last.value(), [row.expires, row.id, row.final]])[-10:]
        self.last.update(last)
        yield ctx.key, sum(final for _, _, final in last) / len(last)
