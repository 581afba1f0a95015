"""Holders of each stored object, and the objects that may be deleted.

    unknown ──hold──► held, not owned ──acknowledge──► owned ──last holder lets go──► deletable
                            │                            ▲                               │ take
                            ▼ last holder lets go        │ hold, before it is taken      ▼
                         unknown                         └──────────────────────────  deleting ──deleted──► unknown
                                                                      delete_failed ──► deletable, after a pause

A *holder* is a record, a pending checkpoint, a group of committables, the log of a live TaskManager, or a part of a
checkpoint that such a log sent and does not name yet. The names that a TaskManager's logs hold change little over time,
so their holders share a `Lineage`, and a name counts once for each lineage that needs it. Invariants: only owned names
are ever deleted (a name that was in no acknowledgement belongs to its TaskManager); a name with a holder is neither
deletable nor being deleted.

Does not own: which holder holds which names at which time; the coordinator decides that.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from holdfast.checkpoint.lineage import Lineage
from holdfast.ids import CheckpointId, Incarnation, JournalNumber

RETRY_PAUSE_S = 5.0
"""Seconds after which a failed deletion is tried again."""


@dataclass(frozen=True, slots=True)
class RecordHolder:
    """A record that is, or may still be, in the journal."""

    number: JournalNumber


@dataclass(frozen=True, slots=True)
class PendingHolder:
    """A checkpoint that may yet be recorded."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class GroupHolder:
    """A group whose staged files were not discarded yet: its object is needed to find them."""

    sink: str
    number: JournalNumber


@dataclass(frozen=True, slots=True)
class LogHolder:
    """The logs of a live TaskManager."""

    task_manager: int
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PartHolder:
    """A part of a checkpoint that a live TaskManager sent with its acknowledgement, and whose place in the store its
    logs may not know yet."""

    log: LogHolder
    checkpoint_id: CheckpointId


Holder = RecordHolder | PendingHolder | GroupHolder | LogHolder | PartHolder


class ObjectRegistry:
    """Holders and names, and the queue of names that may be deleted."""

    def __init__(self) -> None:
        self._names: dict[Holder, set[str]] = {}
        self._lineages: dict[LogHolder, Lineage] = {}
        self._pins: dict[Holder, list[tuple[LogHolder, int]]] = {}
        """The versions of lineages that a holder needs, beside its own names."""
        self._holder_counts: Counter[str] = Counter()
        self._owned: set[str] = set()
        self._deletable: dict[str, None] = {}
        """Names to delete now, in the order in which they lost their last holder."""
        self._paused: deque[tuple[float, str]] = deque()
        """Names whose deletion failed, each with the time of its next attempt. The pause is the same for all, so the
        earliest is at the left; a name that was needed again meanwhile stays here and is skipped."""
        self._paused_until_s: dict[str, float] = {}
        """The names in `_paused` that must still be deleted."""
        self._deleting: set[str] = set()
        self._log_order: dict[LogHolder, tuple[int, int]] = {}
        """The latest acknowledgement that named the objects of a log: its sequence number, and its checkpoint."""
        self._sent: dict[LogHolder, list[PartHolder]] = {}
        """Parts whose places a log did not know yet, oldest first."""

    def acknowledge(self, names: Iterable[str]) -> None:
        """Own these names: they are deleted here and nowhere else, at once if nobody holds them."""
        new = (names if isinstance(names, Set) else set(names)) - self._owned
        self._owned |= new
        for name in sorted(new):
            if not (name in self._holder_counts or name in self._deleting or name in self._paused_until_s):
                self._deletable[name] = None

    def hold(self, holder: Holder, names: Iterable[str]) -> None:
        """Let `holder` hold these names too, beside the names that it holds already."""
        held = self._names.setdefault(holder, set())
        new = set(names) - held
        held |= new
        self._count(new)

    def hold_version(self, holder: Holder, log: LogHolder, names: Set[str]) -> None:
        """`holder` needs these, which a TaskManager's log had at a time."""
        lineage = self._lineages.setdefault(log, Lineage())
        version, new, free = lineage.pin(names)
        self._pins.setdefault(holder, []).append((log, version))
        self._count(new)
        self._drop(free)

    def _count(self, new: Set[str]) -> None:
        """Count a further holder for each name."""
        self._holder_counts.update(new)
        for name in self._deletable.keys() & new:
            del self._deletable[name]
        for name in self._paused_until_s.keys() & new:
            del self._paused_until_s[name]

    def hand_over(self, holder: Holder, to: Holder) -> None:
        """Pass the names that `holder` needed on to the holder `to`, beside the names that `to` holds already."""
        before, handed = self._names.get(to, set()), self._names.pop(holder, set())
        self._names[to] = before | handed
        self._pins[to] = self._pins.get(to, []) + self._pins.pop(holder, [])
        self._drop(before & handed)

    def update_log(self, log: LogHolder, order: tuple[int, int], names: Set[str], besides: Set[str]) -> None:
        """Note the names in a living log, as of an acknowledgement; these come in any order, and the latest counts.

        `besides`: the few names that the log holds beside those that the acknowledged checkpoint refers to.
        """
        if order > self._log_order.get(log, (-1, -1)):
            self._log_order[log] = order
            before, held = self._pins.pop(log, []), self._names.pop(log, set())
            self.hold_version(log, log, names)
            self.hold(log, besides)
            self._drop([*held, *self._unpin(before)])

    def hold_part(self, log: LogHolder, checkpoint_id: CheckpointId, *names: str) -> None:
        """Hold the object of a part that a log sent, until the log is `informed` of its place; or the objects of a
        table that a follower has stored for the log, which gets it with the news of that checkpoint."""
        part = PartHolder(log, checkpoint_id)
        self._sent.setdefault(log, []).append(part)
        self.hold(part, names)

    def are_held(self, names: Iterable[str]) -> bool:
        """True if each of these names has a holder."""
        return all(name in self._holder_counts for name in names)

    def informed(self, log: LogHolder, checkpoint_id: CheckpointId) -> None:
        """Let go of a log's parts up to that checkpoint: the log knew their places when it said last what it holds."""
        sent = self._sent.pop(log, [])
        for part in sent:
            if part.checkpoint_id <= checkpoint_id:
                self.release(part)
        if kept := [part for part in sent if part.checkpoint_id > checkpoint_id]:
            self._sent[log] = kept

    def release_dead_logs(self, live: Mapping[int, Incarnation]) -> None:
        """Release the logs of incarnations that are not in `live`: their names are owned now, and lose a holder."""
        for holder in self.holders():
            if isinstance(holder, PartHolder) and live.get(holder.log.task_manager) != holder.log.incarnation:
                self.release(holder)
                self._sent.pop(holder.log, None)
            elif isinstance(holder, LogHolder) and live.get(holder.task_manager) != holder.incarnation:
                self.acknowledge(self.names(holder))
                self.release(holder)
                self._log_order.pop(holder, None)

    def release(self, holder: Holder) -> None:
        """Release everything that `holder` holds. An unknown holder is ignored."""
        self._drop([*self._names.pop(holder, ()), *self._unpin(self._pins.pop(holder, ()))])

    def _unpin(self, pins: Iterable[tuple[LogHolder, int]]) -> list[str]:
        """Remove a pin of each version; return the names that the lineages no longer need, each once for a lineage."""
        free: list[str] = []
        for log, version in pins:
            lineage = self._lineages[log]
            free += lineage.unpin(version)
            if not lineage.is_needed:
                del self._lineages[log]
        return free

    @property
    def has_deletable(self) -> bool:
        """True if names have lost their last holder since the last `take`."""
        return bool(self._deletable)

    def take(self, now_s: float) -> list[str]:
        """Return names to delete now, in the order in which they lost their last holder, then by name. A name is not
        returned again before its deletion is answered."""
        while self._paused and self._paused[0][0] <= now_s:
            not_before_s, name = self._paused.popleft()
            if self._paused_until_s.get(name) == not_before_s:
                del self._paused_until_s[name]
                self._deletable[name] = None
        names = list(self._deletable)
        self._deletable.clear()
        self._deleting.update(names)
        return names

    def deleted(self, names: Iterable[str]) -> None:
        """Forget names whose objects are gone."""
        for name in names:
            if name in self._deleting:
                self._deleting.discard(name)
                self._owned.discard(name)

    def delete_failed(self, names: Iterable[str], now_s: float) -> None:
        """Keep names whose objects may still be there; they stay queued."""
        for name in sorted(self._deleting.intersection(names)):
            self._deleting.discard(name)
            self._paused_until_s[name] = now_s + RETRY_PAUSE_S
            self._paused.append((now_s + RETRY_PAUSE_S, name))

    def names(self, holder: Holder) -> frozenset[str]:
        """The names that `holder` holds."""
        versions = [self._lineages[log].at(version) for log, version in self._pins.get(holder, ())]
        return frozenset(self._names.get(holder, set()).union(*versions))

    def holders(self) -> list[Holder]:
        """All holders, including those that hold nothing at the moment."""
        return list(self._names.keys() | self._pins.keys())

    def being_deleted(self, names: Iterable[str]) -> list[str]:
        """Return the members of `names` whose deletion was ordered; no new reference to them is allowed."""
        return sorted(self._deleting.intersection(names))

    def __len__(self) -> int:
        return len(self._holder_counts.keys() | self._owned)

    def validate(self) -> None:
        """Check the invariants; raises AssertionError."""
        holders = Counter(name for names in self._names.values() for name in names)
        holders.update(name for lineage in self._lineages.values() for name in lineage.names())
        assert all(lineage.is_needed for lineage in self._lineages.values()), "a lineage that nobody needs"
        assert dict(holders) == dict(self._holder_counts), "holders and names disagree"
        waiting = self._deletable.keys() | self._paused_until_s.keys() | self._deleting
        doomed = self._holder_counts.keys() & waiting
        assert not doomed, f"held, and yet to be deleted: {sorted(doomed)}"
        assert waiting <= self._owned, f"not ours to delete: {sorted(waiting - self._owned)}"
        idle = self._owned - self._holder_counts.keys() - waiting
        assert not idle, f"held by nobody and never deleted: {sorted(idle)}"
        assert len(waiting) == len(self._deletable) + len(self._paused_until_s) + len(self._deleting), "queued twice"

    def _drop(self, names: Collection[str]) -> None:
        """Remove a holder of each name, as often as the name is given; names without a holder become deletable."""
        self._holder_counts.subtract(names)
        free = {name for name in names if not self._holder_counts[name]}
        for name in free:
            del self._holder_counts[name]
        for name in sorted(self._owned.intersection(free) - self._deleting):
            self._deletable[name] = None
