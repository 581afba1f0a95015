"""Ledger of commits: the last batch, and the committables that no record holds yet.

    committed ──► in memory ──past a bound──► Gather ──Gathered──► a committable naming the stored ones ──► record
                      │                         │ GatherFailed, after a pause
                      │ ◄───────────────────────┘
                      └──────────────────────────────────────────────────────────────────────────────────────► record

The memory that committables take between two checkpoints is bounded: past `GATHER_BYTES_MAX` for a sink, the oldest of
them are stored as an object, and a committable that names this object takes their place. Invariants: committables stay
in order of batches. An object never holds batches of both sides of a pending checkpoint's cut. Committables stay in
memory until their object is stored; a record or a failover before that makes the object useless.
Does not own: groups that a record holds (publication), the bytes of committables.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from holdfast.checkpoint.events import CommitAcknowledged, Position
from holdfast.checkpoint.gathering import Gather, Gathered, GatherFailed
from holdfast.ids import BatchNumber, RunNumber

GATHER_BYTES_MAX = 1024 * 1024
"""Bytes of a sink's committables that are kept in memory. A higher value makes fewer and larger stored objects."""

PAUSE_RATIO = 8
"""Multiple of `GATHER_BYTES_MAX` up to which committables may pile up in memory, as they do while the store fails;
above it no further batch is planned. A higher value plans for longer, and takes more memory."""

COMMITTABLE_BYTES = 256
"""Approximate memory that a committable takes besides its bytes."""

RETRY_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    batch: BatchNumber
    position: Position


@dataclass(frozen=True, slots=True)
class _Entry:
    """Committables that a sink staged for a batch, or for several batches up to `batch` that were gathered."""

    batch: BatchNumber
    committables: list[bytes]
    gathered: bool = False

    @property
    def size_bytes(self) -> int:
        return 0 if self.gathered else sum(COMMITTABLE_BYTES + len(each) for each in self.committables)


@dataclass(slots=True)
class _Kept:
    """The staged output of a sink that no record holds, in order of batches. At most a single `Gather` is
    unanswered."""

    entries: list[_Entry] = field(default_factory=list)
    size_bytes: int = 0
    """Bytes of committables that are not gathered."""
    gathering: tuple[int, list[_Entry]] | None = None
    not_before_s: float = 0.0

    def replace(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.size_bytes = sum(each.size_bytes for each in entries)

    def largest_run(self, cuts: Collection[BatchNumber]) -> list[_Entry]:
        """Return the consecutive entries that may share an object and take the most memory."""
        runs: list[list[_Entry]] = [[]]
        for entry in self.entries:
            if entry.gathered or (runs[-1] and any(runs[-1][-1].batch <= cut < entry.batch for cut in cuts)):
                runs.append([])
            if not entry.gathered:
                runs[-1].append(entry)
        return max(runs, key=lambda run: sum(each.size_bytes for each in run))


class Ledger:
    """Committed batches since the last recorded cut."""

    def __init__(self) -> None:
        self.last: CommittedBatch | None = None
        self.recorded: BatchNumber | None = None
        self.gathers = 0
        """Number of gatherings begun so far; the next gathering gets this number."""
        self._progress: BatchNumber | None = None
        self._sinks: dict[str, _Kept] = {}

    def is_new(self, batch: BatchNumber) -> bool:
        """True if the batch is later than the last committed batch: numbers grow, even from run to run."""
        return self.last is None or batch > self.last.batch

    def committed(self, event: CommitAcknowledged) -> None:
        """Note that a batch was committed; a repeated report is ignored."""
        if not self.is_new(event.batch):
            return
        self.last = CommittedBatch(event.batch, event.position)
        staged = {sink: list(each) for sink, each in event.committables.items() if each}
        for sink, each in staged.items():
            kept = self._sinks.setdefault(sink, _Kept())
            kept.entries.append(_Entry(event.batch, each))
            kept.size_bytes += kept.entries[-1].size_bytes
        if staged or event.progress:
            self._progress = event.batch

    @property
    def unrecorded_progress(self) -> BatchNumber | None:
        """The last batch with progress, if the newest record of this epoch is of an earlier cut."""
        if self._progress is None or (self.recorded is not None and self._progress <= self.recorded):
            return None
        return self._progress

    def committables(self, until: BatchNumber) -> dict[str, list[bytes]]:
        """Unrecorded committables of batches up to `until`, per sink, in order of batches."""
        taken = {
            sink: [one for entry in kept.entries if entry.batch <= until for one in entry.committables]
            for sink, kept in sorted(self._sinks.items())
        }
        return {sink: each for sink, each in taken.items() if each}

    def record(self, cut: BatchNumber) -> None:
        """Note that a record now holds everything up to `cut`."""
        self.recorded = cut
        for kept in self._sinks.values():
            kept.replace([entry for entry in kept.entries if entry.batch > cut])
            if kept.gathering is not None and kept.gathering[1][0].batch <= cut:
                kept.gathering = None

    def drop(self) -> dict[str, list[bytes]]:
        """Forget unrecorded output, because the job goes back to its newest record; return the output staged in
        vain."""
        dropped: dict[str, list[bytes]] = {}
        if self.last is not None:
            dropped = self.committables(self.last.batch)
        self._sinks.clear()
        self._progress = None
        return dropped

    # --- gathering ----------------------------------------------------------------------------------------------------

    def gather(self, cuts: Collection[BatchNumber], run: RunNumber, now_s: float) -> list[Gather]:
        """Choose the committables to store now, to bound memory; `cuts` are the cuts of pending checkpoints."""
        commands = []
        for sink, kept in sorted(self._sinks.items()):
            if kept.size_bytes > GATHER_BYTES_MAX and kept.gathering is None and kept.not_before_s <= now_s:
                entries = kept.largest_run(cuts)
                kept.gathering = (self.gathers, entries)
                everything = [one for entry in entries for one in entry.committables]
                commands.append(Gather(sink, self.gathers, run, entries[-1].batch, everything))
                self.gathers += 1
        return commands

    def gathered(self, event: Gathered) -> None:
        """Replace committables by the object that holds them, if they are still needed."""
        kept = self._gathering(event.sink, event.gathering)
        if kept is None or kept.gathering is None:
            return
        taken, kept.gathering = kept.gathering[1], None
        start = kept.entries.index(taken[0])
        one = _Entry(taken[-1].batch, [event.committable], gathered=True)
        kept.replace([*kept.entries[:start], one, *kept.entries[start + len(taken) :]])

    def gather_failed(self, event: GatherFailed, now_s: float) -> None:
        """Note that committables were probably not stored; they are gathered again after a pause."""
        kept = self._gathering(event.sink, event.gathering)
        if kept is not None:
            kept.gathering = None
            kept.not_before_s = now_s + RETRY_PAUSE_S

    @property
    def gathering(self) -> frozenset[int]:
        """Numbers of gatherings that are under way and still needed."""
        return frozenset(kept.gathering[0] for kept in self._sinks.values() if kept.gathering is not None)

    @property
    def overfull(self) -> frozenset[str]:
        """Sinks whose committables outgrow the bound faster than they can be stored."""
        most = PAUSE_RATIO * GATHER_BYTES_MAX
        return frozenset(sink for sink, kept in self._sinks.items() if kept.size_bytes > most)

    def _gathering(self, sink: str, gathering: int) -> _Kept | None:
        kept = self._sinks.get(sink)
        if kept is None or kept.gathering is None or kept.gathering[0] != gathering:
            return None
        return kept

    def validate(self) -> None:
        """Check the invariants; raises AssertionError."""
        for sink, kept in self._sinks.items():
            batches = [entry.batch for entry in kept.entries]
            assert batches == sorted(set(batches)), f"{sink}: out of order: {batches}"
            assert kept.size_bytes == sum(each.size_bytes for each in kept.entries), f"{sink}: miscounted"
            if self.recorded is not None:
                assert all(batch > self.recorded for batch in batches), f"recorded to {self.recorded}, kept: {batches}"
