"""Net changes that the changelog has not collected yet: they are read from the table only when the log persists them.

    commit ──► segment: slots, and the old rows that undo needs anyway
    collect(up to batch N) ──► of the slots touched up to N, the rows as they were after N:
                               as they are now, or as a later batch (also one in flight) saved them before its touch

So a batch costs the changelog next to nothing. A row that many batches touched is read once, and its slot is mostly
gathered once (`Chain`). Waiting changes name rows by slot: before slots lose their keys, all waiting changes are read,
batch by batch (`resolve`). If waiting changes take too much memory, the oldest batches, whose undo was dropped, are
condensed to their slots. Batches wait while the table's lock is held, so only the copying of rows with their keys
happens under the lock (`take`). The slots are determined before it, and the copies are taken back to their state after
batch N after it (`Taken.net`). Does not own undo.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.errors import CheckpointFailed
from holdfast.ids import BatchNumber
from holdfast.state import kernels
from holdfast.state.history import UndoHistory, UndoSegment
from holdfast.state.physical import Bools, Slots
from holdfast.state.rows import KeyedRows, OldRows, RowCopies, Rows

WAITING_BYTES_MAX = 256 * 1024 * 1024
"""Bound on the bytes of waiting changes beyond the bytes of undo, which mostly holds the same rows; above the bound,
the oldest changes are condensed."""
LAG_BATCHES = 8
"""Number of newest batches that are not condensed, however large, as cuts lag behind commits. A higher value lets a cut
lag further, and takes more memory."""


class Chain:
    """Consecutive committed batches whose changes are not logged yet, with all rows that they touched, each found once.

    The index has a stamp beside each key: the number of the batch, or of the write outside of batches, that touched the
    row last. A look-up reads the stamp anyway, so it also finds the *unseen* rows of a batch: those stamped before the
    chain's first batch. The rows of the first batch and the unseen rows of the later batches are all rows that the
    chain touched, so rows that a hundred batches have in common are listed once. A batch that is undone or does not
    wait ends the chain, and so does a touch outside of batches (by a rewind or a replay); the next batch that waits
    begins another chain.
    """

    def __init__(self) -> None:
        self._first = 0
        """The stamp of the chain's first batch; 0: there is no chain."""
        self._stamp = 0
        """The stamp of the batch that began last."""
        self._added = False
        """True if this batch was committed with its changes deferred."""

    def begin(self, stamp: int) -> int:
        """Begin a batch. Rows stamped before the returned stamp are unseen; 0: the batch does not extend a chain."""
        if not self._added or stamp != self._stamp + 1:
            self._first = 0
        self._stamp, self._added = stamp, False
        return self._first

    def add(self, whole: bool) -> bool:
        """Add the batch that began last, which waits with all rows that it touched (`whole`) or with some.

        Returns True if the unseen rows are enough to find all rows of the chain; False for the first batch of a chain,
        and if the chain ended meanwhile: then all rows of this batch count.
        """
        counts = whole and self._first != 0
        self._added = True
        self._first = (self._first or self._stamp) if whole else 0
        return counts

    def end(self) -> None:
        """End the chain: some of its batches no longer wait, or were undone."""
        self._first = 0


class Timeline:
    """Copies of the rows at distinct `slots`, which undo segments take back in time in place, the newest segment
    first."""

    def __init__(self, slots: Slots, copies: RowCopies, capacity: int) -> None:
        self._copies = copies
        self._numbers: Slots = kernels.numbers_by_slot(slots, capacity)

    def back_before(self, segment: OldRows) -> None:
        """Take the rows back to before this segment's batch. The segments of all later batches come first."""
        self._copies.overwrite(self._places(segment.slots), segment)

    def at(self, slots: Slots) -> OldRows:
        """The rows of some of the slots, as they are at this point in time."""
        copies = self._copies.take(self._places(slots))
        return OldRows(copies.present, copies.columns, slots, held=copies.held)

    def _places(self, slots: Slots) -> Slots:
        places: Slots = kernels.gather(self._numbers, slots)
        places -= 1
        return places


@dataclass(frozen=True, eq=False)
class Condensed:
    """Consecutive batches `first` to `batch` whose touched slots alone are kept: no checkpoint may end between them."""

    first: BatchNumber
    batch: BatchNumber
    slots: Slots

    @property
    def memory_bytes(self) -> int:
        return self.slots.nbytes


UndoPart = UndoSegment | Condensed


@dataclass(frozen=True, eq=False)
class Read:
    """The changes of batches `first` to `batch`. If these are several, no checkpoint may end between them."""

    first: BatchNumber
    batch: BatchNumber
    rows: KeyedRows


@dataclass(frozen=True)
class Taken:
    """Changes that no longer wait. `net` puts them together, at any time and without the table's lock.

    `touched` are the slots that `parts`, which are consecutive batches, touched, and `now` has their rows at the time
    when the changes were taken. `later` has the old rows that later batches had saved by that time. `read` has changes
    of still earlier batches.
    """

    read: list[KeyedRows]
    parts: Sequence[UndoPart] = ()
    touched: "Touched | None" = None
    now: KeyedRows | None = None
    later: Sequence[OldRows] = ()
    capacity: int = 0

    def net(self, rows: Rows) -> list[KeyedRows]:
        """Return the net changes in order of replay. It may be called once, since it takes `now` itself back in time.

        The changes of several batches hold every row that these batches touched, even a row that came back to its old
        value: they may be replayed onto a table that already has the first of these batches, if it was captured then.
        Without such a capture, rows that only the batches between had are left out (`Touched`).
        """
        if self.touched is None or self.now is None:
            return self.read
        if self.later:
            timeline = Timeline(self.touched.slots, self.now.rows, self.capacity)
            for segment in reversed(self.later):
                timeline.back_before(segment)
        only, was_there = self.parts[0], self.touched.was_there
        if was_there is not None:
            return [*self.read, self.now.only(was_there | self.now.rows.present)]
        if len(self.parts) > 1 or isinstance(only, Condensed):
            return [*self.read, self.now]
        different = rows.different(self.now.rows, only.rows)
        return [*self.read, self.now.only(different)]


@dataclass(frozen=True)
class Touched:
    """The distinct slots that some consecutive batches touched, and whether their rows were there before the first of
    these batches.

    `was_there` is None for a single batch. It also is where a base may have rows that came and went: the table was
    captured between the batches, or nobody knows what was there.
    """

    slots: Slots
    was_there: Bools | None = None

    def without_passing(self, rows: Rows, later: Sequence[OldRows]) -> "Touched":
        """Leave out rows that were not there before, are not there now, and were not touched by `later` batches
        either: nobody asks for them."""
        if self.was_there is None:
            return self
        stays = self.was_there | rows.present_at(self.slots)
        if later:
            touched = np.zeros(rows.capacity, np.bool_)
            for each in later:
                kernels.fill(touched, each.slots, True)
            stays |= kernels.gather(touched, self.slots)
        if stays.all():
            return self
        places = kernels.where(stays)
        return Touched(kernels.gather(self.slots, places), kernels.gather(self.was_there, places))


def touched_by(parts: Sequence[UndoPart], slots_used: int) -> Touched:
    """Return the slots that `parts` touched, all below `slots_used`; those of several parts are in ascending order.

    `parts` are all changes that wait, up to some batch. In ascending order, slots read a table from begin to end.
    """
    slots = _slots_of(parts, slots_used)
    segments = [each for each in parts if isinstance(each, UndoSegment)]
    if len(parts) < 2 or len(segments) < len(parts) or any(each.captured for each in segments[:-1]):
        return Touched(slots)
    were_there = np.ones(slots_used, np.bool_)
    for each in reversed(segments):
        kernels.scatter(were_there, each.slots, each.rows.present)
    return Touched(slots, kernels.gather(were_there, slots))


def _slots_of(parts: Sequence[UndoPart], slots_used: int) -> Slots:
    """Return the distinct slots of `parts`, as `touched_by` does."""
    if len(parts) < 2:
        return next((each.slots for each in parts), np.empty(0, np.int32))
    touched = np.zeros(slots_used, np.bool_)
    for each in parts:
        unseen = each.unseen if isinstance(each, UndoSegment) else None
        kernels.fill(touched, each.slots if unseen is None else unseen, True)
    slots: Slots = kernels.where(touched)
    return slots


class Unlogged:
    """Segments of committed batches whose changes wait to be collected, and changes read before they were asked for."""

    def __init__(self, rows: Rows, history: UndoHistory) -> None:
        self._rows = rows
        self._history = history
        self._condensed: Condensed | None = None
        self._waiting: list[UndoSegment] = []
        """Segments of the batches after the condensed ones."""
        self._read: list[Read] = []
        """Changes that were read early; their batches come before all batches that wait."""
        self._chain = Chain()
        self._collected = False
        self.memory_bytes = 0
        """Memory of the waiting segments. Undo shares the newest of them, so both together take the larger of the two
        figures."""
        self.unseen_bytes = 0
        """Memory of the lists of unseen slots."""
        self.added = (0, 0, 0)
        """Numbers of rows of the last committed batch that wait: all, those that no earlier waiting batch has (maybe
        more), and those by which the table grew."""

    def begin(self, stamp: int) -> int:
        """Begin a batch: see `Chain.begin`."""
        self.added = (0, 0, 0)
        return self._chain.begin(stamp)

    def add(self, segment: UndoSegment, unseen: Slots, *, whole: bool) -> None:
        """Add the segment of the batch being committed, which the history has too; `whole`: it has all touched rows."""
        if self._chain.add(whole):
            segment.unseen = unseen
            self.unseen_bytes += unseen.nbytes
        rows = len(segment.slots)
        self.added = (rows, rows if segment.unseen is None else len(unseen), segment.appeared)
        self._waiting.append(segment)
        self.memory_bytes += segment.memory_bytes
        condensed_bytes = 0 if self._condensed is None else self._condensed.memory_bytes
        if self.memory_bytes - condensed_bytes > self._history.memory_bytes + WAITING_BYTES_MAX:
            self._condense()

    @property
    def waits(self) -> bool:
        """True if changes wait whose rows are named by slot."""
        return bool(self._parts())

    @property
    def has_gaps(self) -> bool:
        """True if undo has a batch that does not wait, after batches that wait."""
        first = min((each.first for each in self._parts()), default=None)
        return first is not None and any(each.batch >= first for each in {*self._history.by_slot} - {*self._waiting})

    def named(self) -> list[Slots]:
        """Return the slots that waiting changes name."""
        return [each.slots for each in self._parts()]

    def note_capture(self) -> None:
        """Note that the table was captured as of the last batch."""
        if self._waiting:
            self._waiting[-1].captured = True

    def were_collected(self) -> bool:
        """Return whether changes were collected since the last call."""
        were, self._collected = self._collected, False
        return were

    def waiting(self, up_to_batch: BatchNumber) -> list[UndoPart]:
        """Return the waiting parts whose batches are at most `up_to_batch`."""
        return [each for each in self._parts() if each.batch <= up_to_batch]

    def take(
        self, up_to_batch: BatchNumber, in_flight: OldRows | None, gathered: Sequence[UndoPart], touched: Touched
    ) -> Taken:
        """Take out the changes of batches up to `up_to_batch`; the running batch saved the old rows `in_flight`.

        `touched` is determined by `gathered`, the parts that waited at that time.

        Raises
        ------
        CheckpointFailed
            The changes were condensed with changes of later batches. Nothing was taken out.
        """
        undivided: list[Read | UndoPart] = [*self._read, *self._parts()]
        for each in undivided:
            if each.first <= up_to_batch < each.batch:
                raise CheckpointFailed(
                    f"a cut at batch {up_to_batch} came too late: to save memory, a state table keeps the changes of "
                    f"batches {each.first} to {each.batch} together. The next checkpoint has them; a shorter "
                    "checkpoint interval makes it rarer",
                    soft=True,
                )
        read = [each.rows for each in self._read if each.batch <= up_to_batch]
        parts = self.waiting(up_to_batch)
        taken = Taken(read)
        if parts:
            if parts != gathered:
                touched = touched_by(parts, self._rows.index.slots_used)
            saved = [each.rows for each in self._by_slot(BatchNumber(up_to_batch + 1))]
            later = saved if in_flight is None else [*saved, in_flight]
            touched = touched.without_passing(self._rows, later)
            now = self._rows.with_keys(self._rows.copy(touched.slots))
            taken = Taken(read, parts, touched, now, later, self._rows.capacity)
        self._read = [each for each in self._read if each.batch > up_to_batch]
        if parts:
            self._end_chain()
            self._collected = True
        waiting = [each for each in self._waiting if each.batch > up_to_batch]
        self._keep(waiting, None if self._condensed in parts else self._condensed)
        return taken

    def resolve(self) -> None:
        """Read all waiting changes, between batches, because slots are about to lose their keys."""
        parts = self._parts()
        if not parts:
            return
        read: list[Read] = []
        condensed = self._condensed
        segments = self._by_slot(parts[0].batch if condensed is None else BatchNumber(condensed.batch + 1))
        if parts == segments and len(segments) == 1:
            read.append(self._changed(segments[0], self._rows.copy(segments[0].slots)))
        else:
            slots = _slots_of(parts, self._rows.index.slots_used)
            timeline = Timeline(slots, self._rows.copy(slots).copies, self._rows.capacity)
            for each in reversed(segments):
                if each in self._waiting:
                    read.append(self._changed(each, timeline.at(each.slots)))
                timeline.back_before(each.rows)
            if self._condensed is not None:
                rows = self._rows.with_keys(timeline.at(self._condensed.slots))
                read.append(Read(self._condensed.first, self._condensed.batch, rows))
        self._read += reversed(read)
        self._end_chain()
        self._keep([], None)

    def shrink(self, bytes_max: int) -> None:
        """Bound the memory of waiting changes as far as possible, between batches, after undo was shrunk."""
        if self.memory_bytes > bytes_max:
            self._condense()
        if self.memory_bytes > bytes_max and self._condensed is None:
            self.resolve()

    def _condense(self) -> None:
        """Keep only the slots of batches whose undo was dropped, but leave the newest `LAG_BATCHES` as they are."""
        kept = {*self._history.segments, *self._waiting[-LAG_BATCHES:]}
        given_up = [each for each in self._parts() if each not in kept]
        if given_up:
            slots = _slots_of(given_up, self._rows.index.slots_used)
            condensed = Condensed(given_up[0].first, given_up[-1].batch, slots)
            self._keep([each for each in self._waiting if each in kept], condensed)

    def rewind(self, to_batch: BatchNumber) -> None:
        """Drop the changes of later batches. Condensed batches are older: their undo was dropped."""
        self._end_chain()
        self._keep([each for each in self._waiting if each.batch <= to_batch], self._condensed)
        self._read = [each for each in self._read if each.batch <= to_batch]

    def _end_chain(self) -> None:
        """End the chain: from now on all slots of the waiting batches count. The caller then calls `_keep`."""
        for each in self._waiting:
            each.unseen = None
        self._chain.end()

    def _parts(self) -> list[UndoPart]:
        return [*([] if self._condensed is None else [self._condensed]), *self._waiting]

    def _keep(self, waiting: list[UndoSegment], condensed: Condensed | None) -> None:
        self._waiting = waiting
        self._condensed = condensed
        self.memory_bytes = sum(each.memory_bytes for each in self._parts())
        self.unseen_bytes = sum(0 if each.unseen is None else each.unseen.nbytes for each in waiting)

    def _by_slot(self, from_batch: BatchNumber) -> list[UndoSegment]:
        """Segments of that batch and later ones, including those whose undo was dropped."""
        found = {*self._waiting, *self._history.by_slot}
        return sorted((each for each in found if each.batch >= from_batch), key=lambda each: each.batch)

    def _changed(self, segment: UndoSegment, now: OldRows) -> Read:
        different = self._rows.different(now, segment.rows)
        return Read(segment.batch, segment.batch, self._rows.with_keys(now.only(different)))
