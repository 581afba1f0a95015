"""The open sessions that rows of a batch may meet, found by following links back from a key's newest session.

    newest ──► session ──► session ──► …     a row in order of time: one or two links
                               ▲
    order in memory ───────────┘             a row far out of order: by its time, once links were followed so far

An order has the starts of a key's open sessions from some session on, and is extended backwards when a row needs it. It
is in memory only, and is forgotten if a batch is not committed (`timing.key_order`).

A row meets at most two sessions. If two sessions began within the gap after the row, the first would reach the second,
but sessions of a key never meet. So only the last two sessions that begin no later than the row's end may meet the row.
The session before these two and the session behind them are found as well, so that links can be written.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.functions.rows.columns import BoolArray
from holdfast.functions.timing.key_order import OrdersOfKeys, names_of_keys
from holdfast.functions.timing.time_index import FollowedIndex
from holdfast.state.keys import encode_keys
from holdfast.state.physical import Integers, Slots, values_of
from holdfast.state.table import StateTable
from holdfast.watermarks import END_US

SESSION = "__session"
"""The start of a session, in microseconds: the last key column of the state."""
END, BEFORE = "__end", "__before"
"""State columns: the end of a session, and the start of the key's session before it."""
LINKS_LEAST, LINKS_MOST, KEYS_A_LINK = 4, 64, 8
"""Number of links that are followed for a key before it gets an order: one for every `KEYS_A_LINK` keys of the batch,
but within the two bounds. Links of many keys are followed together, while each order has its own cost. Higher bounds
make fewer orders."""
ENTRIES_A_LINK = 1_000
"""Approximate number of index entries that can be searched in the time of following a link. Once following links has
taken as long as a search of the index would, the index is searched."""
NOTHING = int(np.iinfo(np.int64).min)
"""Marks that there is no session before."""
REACH = 3
"""Number of sessions to look at that begin no later than a row's end: the two that the row may meet, and the one
before."""


@dataclass(frozen=True)
class OpenSessions:
    """Open sessions of the keys of a batch: `keys` are indexes of distinct keys.

    `leads` marks the sessions directly before which other sessions of the key are left out, because no row falls there.
    `has_newest` marks the keys whose newest session is among these, and the keys without a session.
    """

    keys: Integers
    starts: Integers
    ends: Integers
    slots: Slots
    leads: BoolArray
    has_newest: BoolArray


class OrderOfSessions:
    """The starts of a key's open sessions, in order; `before` is the start of the session before these, which may be
    closed, or `NOTHING`."""

    def __init__(self, starts: Integers, before: int) -> None:
        self.before = before
        self._room = starts
        self._count = len(starts)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._room.nbytes + 256

    @property
    def starts(self) -> Integers:
        return self._room[: self._count]

    def lacks(self, until_us: int) -> bool:
        """Return whether sessions before these may meet a row that ends at `until_us`."""
        return self.before != NOTHING and int(np.searchsorted(self.starts, until_us, "right")) < REACH

    def extend(self, earlier: Integers, before: int) -> None:
        """Add the sessions before these."""
        self.before = before
        self._room = np.concatenate([earlier, self.starts])
        self._count = len(self._room)

    def around(self, untils: Integers) -> tuple[Integers, BoolArray]:
        """Return the starts of sessions near rows that end at the given times, and which of them lead."""
        stops = np.unique(np.searchsorted(self.starts, untils, "right"))
        places = np.unique(stops[:, None] + np.arange(-REACH, 1))
        places = places[(places >= 0) & (places < self._count)]
        return self.starts[places], np.diff(places, prepend=-1) > 1

    def replace(self, gone: Integers, come: Integers) -> None:
        """Replace the sessions `gone` by the sessions `come`."""
        first = int(np.searchsorted(self.starts, min(each[0] for each in (gone, come) if len(each))))
        tail = self.starts[first:]
        tail = np.delete(tail, np.searchsorted(tail, gone))
        tail = np.insert(tail, np.searchsorted(tail, come), come)
        self._count = first + len(tail)
        if self._count > len(self._room):
            grown = np.empty(2 * self._count, np.int64)
            grown[:first] = self._room[:first]
            self._room = grown
        self._room[first : self._count] = tail

    def drop(self, until_us: int) -> None:
        """Forget the sessions that begin by `until_us`: they are closed, and so are all sessions before them."""
        gone = int(np.searchsorted(self.starts, until_us, "right"))
        self._room, self._count = self._room[gone:], self._count - gone
        if gone:
            self.before = NOTHING


Starts = tuple[Integers, Integers]
"""Sessions: the index of the key of each, and its start."""
Orders = dict[int, tuple[Hashable, OrderOfSessions]]
"""Orders with the names of their keys, by the index of the key."""


class _Part(NamedTuple):
    """Some of `OpenSessions`."""

    keys: Integers
    starts: Integers
    slots: Slots
    leads: BoolArray


class _Followed(NamedTuple):
    """Sessions found by links. `befores` has, for each followed key, the link of its earliest found session, or
    `NOTHING`."""

    keys: Integers
    starts: Integers
    slots: Slots
    befores: Integers


class SessionChains:
    """Follows the links of `state` from the sessions in `newest`. Call `begin` when a batch begins."""

    def __init__(self, state: StateTable, newest: StateTable, index: FollowedIndex, gap_us: int) -> None:
        self._state = state
        self._newest = newest
        self._index = index
        self._gap_us = gap_us
        self._orders: OrdersOfKeys[OrderOfSessions] = OrdersOfKeys()

    @property
    def memory_bytes(self) -> int:
        return self._orders.memory_bytes

    def begin(self) -> None:
        """Begin a batch."""
        self._orders.begin(self._state.commits)

    def keyed(self, keys: pa.RecordBatch, owners: Integers, starts: Integers) -> pa.RecordBatch:
        """Keys of sessions: of the keys by index, with the starts."""
        arrays: list[Any] = keys.take(pa.array(owners)).columns
        return pa.RecordBatch.from_arrays([*arrays, pa.array(starts)], schema=self._state.key_schema)

    def meeting(self, keys: pa.RecordBatch, key_slots: Slots, groups: Integers, times: Integers) -> OpenSessions:
        """Return the open sessions of distinct keys that rows may meet, and their neighbours."""
        first_us = np.full(len(key_slots), END_US, np.int64)
        np.minimum.at(first_us, groups, times)
        orders = self._orders_of(keys)
        owners, starts = self._begins(key_slots, first_us, orders)
        followed = self._followed(keys, owners, starts, first_us)
        self._note_followed(keys, followed, orders, orders.keys() & set(owners.tolist()) if orders else set())
        has_order = np.zeros(len(key_slots), np.bool_)
        has_order[list(orders)] = True
        alone = ~has_order[followed.keys]
        nothing = np.zeros(int(np.count_nonzero(alone)), np.bool_)
        parts = [_Part(followed.keys[alone], followed.starts[alone], followed.slots[alone], nothing)]
        if orders:
            parts.append(self._by_order(keys, orders, groups, times))
        owners, starts, slots, leads = (np.concatenate(each) for each in zip(*parts, strict=True))
        newest = self._newest.column(SESSION).values[key_slots]
        has_newest = ~(has_order & self._newest.present[key_slots])
        has_newest[owners[starts == newest[owners]]] = True
        return OpenSessions(owners, starts, self._state.column(END).values[slots], slots, leads, has_newest)

    def replace(self, keys: pa.RecordBatch, gone: Starts, come: Starts) -> None:
        """Note that open sessions of keys came in place of others."""
        if not self._orders:
            return
        (gone_starts, gone_bounds), (come_starts, come_bounds) = (
            _by_key(*each, keys.num_rows) for each in (gone, come)
        )
        for place, (name, _) in self._orders_of(keys).items():
            old = gone_starts[gone_bounds[place] : gone_bounds[place + 1]]
            new = come_starts[come_bounds[place] : come_bounds[place + 1]]
            if len(old) or len(new):
                self._orders.change(name, lambda order, old=old, new=new: order.replace(old, new))  # type: ignore[misc]

    def close(self, keys: pa.RecordBatch, starts: Integers) -> None:
        """Note that sessions of keys are closed; each row is a session."""
        if not self._orders:
            return
        latest: dict[Hashable, int] = {}
        for name, start in zip(names_of_keys(keys), starts.tolist(), strict=True):
            latest[name] = max(start, latest.get(name, NOTHING))
        for name, start in latest.items():
            order = self._orders.get(name)
            if order is None:
                continue
            self._orders.change(name, lambda order, start=start: order.drop(start))  # type: ignore[misc]
            if not len(order):
                self._orders.drop(name)

    def _orders_of(self, keys: pa.RecordBatch) -> Orders:
        """The orders of those keys that have one."""
        names = enumerate(names_of_keys(keys)) if self._orders else ()
        return {place: (name, order) for place, name in names if (order := self._orders.get(name)) is not None}

    def _begins(self, key_slots: Slots, first_us: Integers, orders: Orders) -> tuple[Integers, Integers]:
        """Return the keys whose links must be followed, and the session to begin with. A key with an order is followed
        from the session before the order's first, if the key's rows may reach so far back."""
        is_followed = self._newest.present[key_slots]
        starts = self._newest.column(SESSION).values[key_slots]
        for place, (_, order) in orders.items():
            is_followed[place] = order.lacks(int(first_us[place]) + self._gap_us)
            starts[place] = order.before
        owners = np.flatnonzero(is_followed)
        return owners, starts[owners]

    def _followed(self, keys: pa.RecordBatch, owners: Integers, starts: Integers, first_us: Integers) -> _Followed:
        """Follow links back to the first session that ends before the first row of its key.

        Each step looks up a link of all keys at once, so there are as many steps as the longest chain has links. Rows
        in order of time meet the newest session, and need few steps.
        """
        nothing = np.empty(0, np.int64)
        found: list[tuple[Integers, Integers, Slots]] = [(nothing, nothing, np.empty(0, np.int32))]
        befores = np.full(len(first_us), NOTHING, np.int64)
        links_max = max(LINKS_MOST, len(self._index) // ENTRIES_A_LINK)
        while len(owners):
            if len(found) > links_max:
                searched = self._search(keys, owners, starts, found)
                befores[owners[searched]] = NOTHING
                owners, starts = np.delete(owners, searched), np.delete(starts, searched)
                continue
            slots = self._state.lookup(self.keyed(keys, owners, starts))
            there = self._state.present[slots]
            befores[owners[~there]] = NOTHING
            owners, starts, slots = owners[there], starts[there], slots[there]
            found.append((owners, starts, slots))
            before = self._state.column(BEFORE)
            linked = before.valid[slots]
            starts = np.where(linked, before.values[slots], NOTHING)
            befores[owners] = starts
            linked &= self._state.column(END).values[slots] >= first_us[owners]
            owners, starts = owners[linked], starts[linked]
        columns = [np.concatenate(column) for column in zip(*found, strict=True)]
        return _Followed(columns[0], columns[1], columns[2], befores)

    def _search(self, keys: pa.RecordBatch, owners: Integers, untils: Integers, found: list[Any]) -> Integers:
        """Find all open sessions of some keys that begin no later than `untils`, among the entries of the index. Return
        the positions in `owners` of the keys that were searched: of several keys with the same hash, only one is
        searched.
        """
        names = self._newest.key_schema.names
        hashes, searched = np.unique(encode_keys(keys.take(pa.array(owners)), names).hashes, return_index=True)
        parts = []
        for entries in self._index.pieces():
            of_entries = encode_keys(entries, names).hashes
            places = np.minimum(np.searchsorted(hashes, of_entries), len(hashes) - 1)
            starts, by_entry = values_of(entries.column(SESSION)), searched[places]
            chosen = (hashes[places] == of_entries) & (starts <= untils[by_entry])
            parts.append(np.stack([owners[by_entry[chosen]], starts[chosen]]))
        of_keys, starts = np.unique(np.concatenate(parts, axis=1), axis=1)
        slots = self._state.lookup(self.keyed(keys, of_keys, starts))
        there = self._state.present[slots]
        found.append((of_keys[there], starts[there], slots[there]))
        return searched

    def _note_followed(self, keys: pa.RecordBatch, followed: _Followed, orders: Orders, extended: set[int]) -> None:
        """Add the found sessions to the orders of their keys. A key with many found sessions gets an order."""
        counts = np.bincount(followed.keys, minlength=keys.num_rows)
        many = min(LINKS_MOST, max(LINKS_LEAST, keys.num_rows // KEYS_A_LINK))
        long = [place for place in np.flatnonzero(counts > many).tolist() if place not in orders]
        if not extended and not long:
            return
        starts, bounds = _by_key(followed.keys, followed.starts, keys.num_rows)
        for place in extended:
            own, before = starts[bounds[place] : bounds[place + 1]], int(followed.befores[place])
            self._orders.change(orders[place][0], lambda order, own=own, before=before: order.extend(own, before))  # type: ignore[misc]
        for place, name in zip(long, names_of_keys(keys.take(pa.array(long, pa.int64()))), strict=True):
            order = OrderOfSessions(starts[bounds[place] : bounds[place + 1]].copy(), int(followed.befores[place]))
            orders[place] = name, order
            self._orders.put(name, order)

    def _by_order(self, keys: pa.RecordBatch, orders: Orders, groups: Integers, times: Integers) -> _Part:
        """The sessions near the rows of keys with an order."""
        untils, bounds = _by_key(groups, times + self._gap_us, keys.num_rows)
        found = [order.around(untils[bounds[place] : bounds[place + 1]]) for place, (_, order) in orders.items()]
        starts, leads = (np.concatenate(each) for each in zip(*found, strict=True))
        owners = np.repeat(np.array(list(orders)), [len(own) for own, _ in found])
        slots = self._state.lookup(self.keyed(keys, owners, starts))
        assert self._state.present[slots].all(), "an order has open sessions alone"
        return _Part(owners, starts, slots, leads)


def _by_key(owners: Integers, values: Integers, count: int) -> tuple[Integers, Integers]:
    """Return values sorted by owner, then by value; and the positions where each owner's values begin, with the end."""
    order = np.lexsort((values, owners))
    return values[order], np.searchsorted(owners[order], np.arange(count + 1))
