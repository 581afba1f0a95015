"""The entries of single keys in order of time, for keys with very many entries: a search need not look at all of them.

    a key with few entries          the operator looks at all of them: nothing is kept here
    a key with many, asked once     the operator looks at all of them
    a key with many, asked again    order of times ──► the entries between two times, in a logarithm

The orders are in memory, stored nowhere, and made when they are needed for the second time: many keys are asked for
only once, and to make an order takes longer than to look at all entries. The operator that owns the entries adds new
entries to the orders, but need not remove entries: removed ones are looked up in vain, until they outnumber the others
and the order is made anew. All orders are forgotten unless the last event of the table was the commit of the last
batch.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state.keys import encode_keys
from holdfast.state.physical import Integers

LONG_KEY = 256
"""Number of entries from which on a key has an order. A lower value makes orders for more keys, which take memory; with
a higher value, a row looks at more entries."""
ORDERS_BYTES_MAX = 64 * 1024 * 1024
"""Memory of a subtask's orders; past it the order that was not used for the longest time is forgotten."""
ASKED_MAX = 1 << 16
"""Number of keys without an order of which is known that they were asked for; past it the first of them is forgotten. A
higher value takes more memory."""
LATE_MAX = 4_096
"""Number of entries out of order that wait beside the others. A higher value merges them less often, and makes searches
a little longer."""
BLOCK = 256
"""Number of entries in a block whose greatest end is kept, so that a block that ends too early is skipped as a
whole."""


class _Sorted:
    """Entries in order of time; `ends` has the last time of each, or is its time itself."""

    def __init__(self) -> None:
        self.count = 0
        self._columns = np.empty((3, LONG_KEY), np.int64)
        self._greatest_ends = np.empty(0, np.int64)

    @property
    def times(self) -> Integers:
        return self._columns[0, : self.count]

    @property
    def nbytes(self) -> int:
        return self._columns.nbytes

    def add(self, entries: Integers) -> None:
        """Add entries, which are in order among themselves."""
        stop = self.count + entries.shape[1]
        if stop > self._columns.shape[1]:
            grown = np.empty((3, 2 * stop), np.int64)
            grown[:, : self.count] = self._columns[:, : self.count]
            self._columns = grown
        self._columns[:, self.count : stop] = entries
        is_in_turn = not self.count or not entries.shape[1] or entries[0, 0] >= self._columns[0, self.count - 1]
        first_block = self.count // BLOCK if is_in_turn else 0
        self.count = stop
        if not is_in_turn:
            order = np.argsort(self.times, kind="stable")
            self._columns[:, :stop] = self._columns[:, order]
        if stop:
            begins = np.arange(first_block * BLOCK, stop, BLOCK)
            greatest = np.maximum.reduceat(self._columns[2, :stop], begins) if len(begins) else begins
            self._greatest_ends = np.concatenate([self._greatest_ends[:first_block], greatest])

    def taken(self) -> Integers:
        """Remove and return all entries."""
        entries = self._columns[:, : self.count].copy()
        self.count, self._greatest_ends = 0, np.empty(0, np.int64)
        return entries

    def meeting(self, froms: Integers, untils: Integers, reaching: Integers) -> list[Integers]:
        """Return, for each interval, the entries with a time from `froms` to `untils`, both included, that end no
        earlier than `reaching`."""
        begins = np.searchsorted(self.times, froms, "left")
        stops = np.searchsorted(self.times, untils, "right")
        return [
            self._columns[1, self._places(begin, stop, until)]
            for begin, stop, until in zip(begins.tolist(), stops.tolist(), reaching.tolist(), strict=True)
        ]

    def _places(self, begin: int, stop: int, reaching: int) -> npt.NDArray[np.int64]:
        first, last = begin // BLOCK, -(-stop // BLOCK)
        blocks = first + np.flatnonzero(self._greatest_ends[first:last] >= reaching)
        places = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        places = places[(places >= begin) & (places < stop)]
        chosen: npt.NDArray[np.int64] = places[self._columns[2, places] >= reaching]
        return chosen

    def newest(self, untils: Integers) -> tuple[Integers, Integers]:
        """Return the times and numbers of the last entries up to these times; the number is -1 if there is none."""
        places = np.searchsorted(self.times, untils, "right") - 1
        found = self._columns[:2, np.maximum(places, 0)]
        return found[0], np.where(places < 0, -1, found[1])


class TimeOrder:
    """The entries of a key by time: each has a number, and perhaps a time to which it reaches.

    `following`: the number that the owner gives next, by which the owner sees that the order lacks entries.
    """

    def __init__(self, times: Integers, numbers: Integers, ends: Integers | None, following: int) -> None:
        self.following = following
        self._in_turn, self._late = _Sorted(), _Sorted()
        self._add(times, numbers, ends)

    def __len__(self) -> int:
        return self._in_turn.count + self._late.count

    @property
    def nbytes(self) -> int:
        return self._in_turn.nbytes + self._late.nbytes

    def add(self, times: Integers, numbers: Integers, ends: Integers | None, following: int) -> None:
        """Add further entries."""
        self._add(times, numbers, ends)
        self.following = following

    def _add(self, times: Integers, numbers: Integers, ends: Integers | None) -> None:
        order = np.argsort(times, kind="stable")
        entries = np.stack([times, numbers, times if ends is None else ends])[:, order]
        newest = self._in_turn.times[-1] if self._in_turn.count else entries[0, 0] if entries.shape[1] else 0
        first = int(np.searchsorted(entries[0], newest, "left"))
        self._in_turn.add(entries[:, first:])
        if first:
            self._late.add(entries[:, :first])
        if self._late.count > LATE_MAX:
            self._in_turn.add(self._late.taken())

    def meeting(self, froms: Integers, untils: Integers, reaching: Integers) -> Integers:
        """The numbers of entries that any of the intervals meets, each once, in order."""
        parts = [part for each in (self._in_turn, self._late) for part in each.meeting(froms, untils, reaching)]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def newest(self, untils: Integers) -> Integers:
        """Return the numbers of the last entries up to these times, once each, in order; of equal ones the last."""
        times, numbers = self._in_turn.newest(untils)
        late_times, late_numbers = self._late.newest(untils)
        is_late = (late_numbers >= 0) & (
            (numbers < 0) | (late_times > times) | ((late_times == times) & (late_numbers > numbers))
        )
        found = np.unique(np.where(is_late, late_numbers, numbers))
        return found[found >= 0]


def names_of_keys(keys: pa.RecordBatch) -> list[Hashable]:
    """Return a name for each key, by which its order is found: equal for equal keys only."""
    encoded = encode_keys(keys, keys.schema.names)
    if encoded.values is not None:
        return list(encoded.values.tolist())
    data, offsets = encoded.bytes.tobytes(), encoded.byte_offsets.tolist()
    return [data[start:stop] for start, stop in pairwise(offsets)]


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


OrderKept = TypeVar("OrderKept", bound=_Sized)


class OrdersOfKeys(Generic[OrderKept]):
    """The most recently used orders of long keys. `commits` of `begin` is the commit count of the table of entries."""

    def __init__(self) -> None:
        self._orders: OrderedDict[Hashable, OrderKept] = OrderedDict()
        self._asked: dict[Hashable, None] = {}
        self._commits: int | None = None
        self.memory_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._orders)

    def begin(self, commits: int | None) -> None:
        """Begin a batch. The orders stay only if the batch before was committed, and nothing else happened to the
        table."""
        if commits is None or commits != (self._commits or 0) + 1:
            self._orders.clear()
            self._asked.clear()
            self.memory_bytes = 0
        self._commits = commits

    def asked_again(self, key: Hashable) -> bool:
        """Note that a key is asked for; return whether it was before, so that an order pays."""
        if key in self._orders or key in self._asked:
            return True
        if len(self._asked) >= ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[key] = None
        return False

    def get(self, key: Hashable) -> OrderKept | None:
        """Return the order of a key, if there is one."""
        found = self._orders.get(key)
        if found is not None:
            self._orders.move_to_end(key)
        return found

    def put(self, key: Hashable, order: OrderKept) -> None:
        """Keep an order, perhaps instead of others."""
        self.drop(key)
        self._asked.pop(key, None)
        self._orders[key] = order
        self.memory_bytes += order.nbytes
        while self.memory_bytes > ORDERS_BYTES_MAX and len(self._orders) > 1:
            self.drop(next(iter(self._orders)))

    def change(self, key: Hashable, change: Callable[[OrderKept], None]) -> None:
        """Change an order in place."""
        order = self._orders[key]
        self.memory_bytes -= order.nbytes
        change(order)
        self.memory_bytes += order.nbytes

    def drop(self, key: Hashable) -> None:
        """Forget an order, if there is one."""
        found = self._orders.pop(key, None)
        if found is not None:
            self.memory_bytes -= found.nbytes

    def keys(self) -> list[Hashable]:
        """The keys that have an order."""
        return list(self._orders)
