"""A small exhaustive model of journal, ownership and publication: up to three JobMasters on a common storage.

Every request to the store is an atomic step, and every interleaving of the JobMasters' steps is explored; a
JobMaster may stop for ever at any point (no step is ever forced). A put may be answered, lost, or land later at
any time or never; a delete of records may be repeated later; and the newest record may be lost.
The decisions are those of the real rules
(`journal.rules`, `cleanup.plan.plan_cleanup`, `checkpoint.publication`); each `Weakness` breaks a single rule.

    idle ─list─► put(takeover) ─► relist ─counts─► running ─► put(checkpoint) ─► running …
       │            │ taken ► idle   └ not ► idle         mark ◄─┴─ first  │ taken ► stopped
       └─ the newest record is lost ► stopped

Not modelled: a TaskManager's deletions before an acknowledgement (changelog's own tests), time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import NamedTuple

from holdfast.checkpoint.events import Group, Publish
from holdfast.checkpoint.publication import Publication
from holdfast.cleanup.plan import StorageSurvey, plan_cleanup
from holdfast.ids import JournalNumber
from holdfast.journal import rules
from holdfast.journal.records import CheckpointRecord
from holdfast.storage.store import ObjectInfo


class Weakness(Enum):
    """A rule that is left out."""

    NO_SECOND_LISTING = auto()
    UNANSWERED_MEANS_NOT_WRITTEN = auto()
    UNANSWERED_MEANS_WRITTEN = auto()
    DELETES_BEFORE_RESOLVING = auto()
    TAKEOVERS_EXPIRE = auto()
    NEWEST_EXPIRES = auto()
    CARRIED_GROUPS_ARE_RENUMBERED = auto()
    PUBLISHES_BEFORE_THE_RECORD = auto()
    PUBLISHES_OUT_OF_ORDER = auto()
    FORGETS_THE_GROUPS_OF_ITS_BASE = auto()
    CLEANS_UP_ALL_EPOCHS = auto()
    NO_MARK = auto()
    GAPS_ARE_PASSED_OVER = auto()


class Thing(NamedTuple):
    """A stored object (a manifest with all it names), by the epoch and the turn that made it."""

    epoch: int
    turn: int


class Rec(NamedTuple):
    """A record; groups are (number, content)."""

    kind: str
    epoch: int
    nonce: tuple[int, int]
    things: frozenset[Thing] = frozenset()
    groups: tuple[tuple[int, Thing], ...] = ()


class Master(NamedTuple):
    """A JobMaster."""

    phase: str = "idle"
    attempts: int = 0
    number: int = 0
    sent: Rec | None = None
    base: Rec | None = None
    base_number: int = 0
    epoch: int = 0
    turns: int = 0
    newest: Rec | None = None
    known: frozenset[int] = frozenset()
    garbage: frozenset[Thing] = frozenset()
    unpublished: tuple[tuple[int, Thing], ...] = ()
    cleaned: bool = False
    begun: bool = False
    """True once the JobMaster knows that the mark is there."""


STOPPED = Master(phase="stopped")


class World(NamedTuple):
    """The store, the sink, and the JobMasters. `landed`, `counted` and `lost` are history, for the invariants alone."""

    masters: tuple[Master, ...]
    records: tuple[tuple[int, Rec], ...] = ()
    things: frozenset[Thing] = frozenset()
    late_puts: frozenset[tuple[int, Rec]] = frozenset()
    late_deletes: frozenset[int] = frozenset()
    published: tuple[tuple[int, Thing], ...] = ()
    landed: frozenset[tuple[int, Thing]] = frozenset()
    counted: int = 0
    faults: int = 0
    begun: bool = False
    losses: int = 0
    lost: int = 0
    """The number of the newest record, since it is lost; 0 again once a newer one is written."""


@dataclass(frozen=True)
class Bounds:
    """How far the model goes: checkpoints and takeover attempts of each JobMaster, faults and lost records in all."""

    turns: tuple[int, ...]
    attempts: int = 2
    faults: int = 1
    losses: int = 0


class Violation(Exception):
    """An invariant does not hold."""


class Model:
    """`steps(world)` yields (event, the world after it); raises `Violation` where a step itself is wrong."""

    def __init__(self, bounds: Bounds, weakness: Weakness | None = None) -> None:
        self.bounds = bounds
        self.weakness = weakness

    def start(self) -> World:
        masters = tuple(Master() for _ in self.bounds.turns)
        return World(masters, faults=self.bounds.faults, losses=self.bounds.losses)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for index, master in enumerate(world.masters):
            if index and world.masters[index - 1] == Master():
                continue  # JobMasters that did nothing yet are all alike
            for what, after in self._of(world, index, master):
                yield f"{index}: {what}", after
        for number, rec in world.late_puts:
            after = world._replace(late_puts=world.late_puts - {(number, rec)})
            yield (
                f"the put of {number} lands late",
                after if number in dict(world.records) else land(after, number, rec),
            )
        for number in world.late_deletes:
            kept = tuple(entry for entry in world.records if entry[0] != number)
            after = world._replace(late_deletes=world.late_deletes - {number}, records=kept)
            yield f"the delete of {number} is done again", after
        yield from self._lose(world)

    def _lose(self, world: World) -> Iterator[tuple[str, World]]:
        """The only checkpoint record is lost, after its append was answered."""
        checkpoints = [(number, rec) for number, rec in world.records if rec.kind == "checkpoint"]
        answered = {number for master in world.masters for number in master.known}
        if world.losses and len(checkpoints) == 1 and checkpoints[0][0] in answered:
            number = checkpoints[0][0]
            kept = tuple(entry for entry in world.records if entry[0] != number)
            yield f"record {number} is lost", world._replace(records=kept, losses=world.losses - 1, lost=number)

    def _of(self, world: World, index: int, master: Master) -> Iterator[tuple[str, World]]:
        if master.phase == "idle":
            yield from self._list(world, index, master)
        elif master.phase in ("put takeover", "put checkpoint"):
            yield from self._put(world, index, master)
            if self.weakness is Weakness.DELETES_BEFORE_RESOLVING and master.phase == "put checkpoint":
                yield "deletes", world._replace(things=world.things - (master.garbage | _older_things(master)))
        elif master.phase in ("read takeover", "read checkpoint"):
            yield self._read_back(world, index, master)
        elif master.phase == "mark":
            yield "marks the journal", self._marked(world, index, master)
        elif master.phase == "relist":
            yield self._relist(world, index, master)
        elif master.phase == "running":
            yield from self._run(world, index, master)

    # --- taking over --------------------------------------------------------------------------------------------------

    def _list(self, world: World, index: int, master: Master) -> Iterator[tuple[str, World]]:
        """List, and read the base: in a single step, since a base that is gone means nothing but starting over."""
        records = dict(world.records)
        number = rules.number_for_put(records)
        order = rules.base_search_order(records, number)
        base_number = next((candidate for candidate in order if records[candidate].kind == "checkpoint"), 0)
        begun = world.begun and self.weakness is not Weakness.NO_MARK
        missing = rules.missing_record(records, begun, base_number or None)
        if missing is not None and (self.weakness is not Weakness.GAPS_ARE_PASSED_OVER or missing > max(records)):
            if not world.lost:
                raise Violation(f"{index} is refused for want of {missing}, although nothing was lost")
            yield f"is refused: {missing} is missing", put_master(world, index, STOPPED)
            return
        listed = Master(
            phase="put takeover",
            attempts=master.attempts + 1,
            number=number,
            sent=Rec("takeover", number, (index, master.attempts)),
            base=records.get(base_number),
            base_number=base_number,
        )
        yield f"lists, its base is {base_number}", put_master(world, index, listed)

    def _relist(self, world: World, index: int, master: Master) -> tuple[str, World]:
        listed = [number for number, _ in world.records]
        begun = world.begun and self.weakness is not Weakness.NO_MARK
        counts = rules.takeover_counts(master.number, master.base_number or None, listed, begun)
        if not counts and self.weakness is not Weakness.NO_SECOND_LISTING:
            return "does not count", put_master(world, index, self._over_again(master))
        base = master.base
        running = Master(
            phase="running",
            attempts=self.bounds.attempts,
            number=master.number + 1,
            base=base,
            base_number=master.base_number,
            epoch=master.number,
            newest=base,
            known=frozenset({master.base_number} if base else ()),
            unpublished=base.groups if base and self.weakness is not Weakness.FORGETS_THE_GROUPS_OF_ITS_BASE else (),
            begun=world.begun,
        )
        if base and not world.begun:
            running = running._replace(phase="mark")
        if world.lost and master.base_number < world.lost:
            raise Violation(f"{index} starts from {master.base_number} although record {world.lost} is lost")
        counted = world._replace(counted=max(world.counted, master.number))
        return f"counts as epoch {master.number}", put_master(counted, index, running)

    def _over_again(self, master: Master) -> Master:
        return Master(attempts=master.attempts) if master.attempts < self.bounds.attempts else STOPPED

    # --- a put and its resolution -------------------------------------------------------------------------------------

    def _put(self, world: World, index: int, master: Master) -> Iterator[tuple[str, World]]:
        assert master.sent is not None
        number, present = master.number, dict(world.records).get(master.number)
        unclear = put_master(world, index, master._replace(phase=master.phase.replace("put", "read")))
        if present is None:
            yield f"puts {number}", self._written(land(world, number, master.sent), index, master)
        else:
            yield self._read_back(world, index, master)
        if world.faults:
            spent = unclear._replace(faults=world.faults - 1)
            if master.phase == "put checkpoint":
                spent = self._assume(spent, index, master)
            if present is None:
                yield f"puts {number}, the answer is lost", land(spent, number, master.sent)
            yield f"puts {number}, late", spent._replace(late_puts=spent.late_puts | {(number, master.sent)})

    def _assume(self, world: World, index: int, master: Master) -> World:
        """Act on an unclear answer as a JobMaster that breaks the rules."""
        assert master.sent is not None
        if self.weakness is Weakness.UNANSWERED_MEANS_WRITTEN:
            return self._written(world, index, master)
        if self.weakness is Weakness.UNANSWERED_MEANS_NOT_WRITTEN:
            gone = world._replace(things=world.things - {Thing(master.epoch, master.turns)})
            return put_master(gone, index, master._replace(phase="running", sent=None))
        return world

    def _read_back(self, world: World, index: int, master: Master) -> tuple[str, World]:
        assert master.sent is not None
        takeover = master.sent.kind == "takeover"
        outcome = rules.outcome(master.sent, dict(world.records).get(master.number))  # type: ignore[arg-type]
        if outcome is rules.PutOutcome.WRITTEN:
            return f"finds its own {master.number}", self._written(world, index, master)
        if outcome is rules.PutOutcome.ABSENT:
            again = master._replace(phase=master.phase.replace("read", "put"))
            return f"finds {master.number} absent", put_master(world, index, again)
        after = self._over_again(master) if takeover else STOPPED
        return f"finds {master.number} taken", put_master(world, index, after)

    def _written(self, world: World, index: int, master: Master) -> World:
        sent = master.sent
        assert sent is not None
        if sent.kind == "takeover":
            return put_master(world, index, master._replace(phase="relist"))
        if dict(world.records).get(master.number) != sent:
            raise Violation(f"{index} believes {master.number} written, which it is not")
        if not master.begun:
            return put_master(world, index, master._replace(phase="mark"))
        return self._completed(world, index, master, sent)

    def _marked(self, world: World, index: int, master: Master) -> World:
        """The mark is put, if absent: it says the same whoever puts it, however late."""
        marked = world._replace(begun=True)
        begun = master._replace(begun=True)
        if master.sent is None:
            return put_master(marked, index, begun._replace(phase="running"))
        return self._completed(marked, index, begun, master.sent)

    def _completed(self, world: World, index: int, master: Master, sent: Rec) -> World:
        old = master.newest.things if master.newest else frozenset()
        after = master._replace(
            phase="running",
            number=master.number + 1,
            sent=None,
            newest=sent,
            known=master.known | {master.number},
            garbage=(master.garbage | old) - sent.things,
            unpublished=merge(master.unpublished, sent.groups),
        )
        return put_master(world, index, after)

    # --- running ------------------------------------------------------------------------------------------------------

    def _run(self, world: World, index: int, master: Master) -> Iterator[tuple[str, World]]:
        if master.turns < self.bounds.turns[index]:
            yield self._checkpoint(world, index, master)
        yield from self._expire(world, index, master)
        if master.unpublished:
            yield self._publish(world, index, master)
        if not master.cleaned:
            things, numbers = plan_of(
                self.weakness, master.epoch, master.base, master.base_number, world.records, world.things
            )
            records = tuple(entry for entry in world.records if entry[0] not in numbers)
            cleaned = put_master(world, index, master._replace(cleaned=True, base=None, base_number=0))
            yield "cleans up", cleaned._replace(things=world.things - things, records=records)

    def _checkpoint(self, world: World, index: int, master: Master) -> tuple[str, World]:
        """Store an object, then send a record that names it and the newest object of the record before."""
        made = Thing(master.epoch, master.turns + 1)
        before = {max(master.newest.things)} if master.newest else set()
        carried = carried_groups(master.unpublished)
        if self.weakness is Weakness.CARRIED_GROUPS_ARE_RENUMBERED:
            carried = tuple((master.number, content) for _, content in carried)
        groups = (*carried, (master.number, made))
        sent = Rec("checkpoint", master.epoch, (index, master.turns + 1), frozenset(before | {made}), groups)
        sending = master._replace(phase="put checkpoint", sent=sent, turns=master.turns + 1)
        if self.weakness is Weakness.PUBLISHES_BEFORE_THE_RECORD:
            sending = sending._replace(unpublished=())
            for group in merge(master.unpublished, groups):
                world = show(world, group)
        stored = world._replace(things=world.things | {made})
        return f"stores {tuple(made)} and makes {master.number}", put_master(stored, index, sending)

    def _expire(self, world: World, index: int, master: Master) -> Iterator[tuple[str, World]]:
        newest = max(master.known, default=None)
        wanted = set(master.known) - {newest}
        known, limit = master.known, newest
        if self.weakness is Weakness.TAKEOVERS_EXPIRE:
            wanted, known = wanted | {master.epoch}, known | {master.epoch}
        if self.weakness is Weakness.NEWEST_EXPIRES:
            wanted, limit = set(known), (newest or 0) + 1
        if not wanted or rules.refused_expiry(wanted, known, limit, resolved=master.sent is None):
            return
        records = tuple(entry for entry in world.records if entry[0] not in wanted)
        rest = put_master(world, index, master._replace(known=master.known - wanted, garbage=frozenset()))
        after = rest._replace(records=records, things=world.things - master.garbage)
        yield f"expires {sorted(wanted)}, then deletes {sorted(map(tuple, master.garbage))}", after
        if world.faults:
            yield (
                f"expires {sorted(wanted)}, twice",
                after._replace(faults=world.faults - 1, late_deletes=world.late_deletes | wanted),
            )

    def _publish(self, world: World, index: int, master: Master) -> tuple[str, World]:
        last = self.weakness is Weakness.PUBLISHES_OUT_OF_ORDER
        group = master.unpublished[-1] if last else head_of(master.unpublished)
        rest = tuple(other for other in master.unpublished if other != group)
        return f"publishes {group[0]}", show(put_master(world, index, master._replace(unpublished=rest)), group)


# --- steps of the store and the sink ----------------------------------------------------------------------------------


def put_master(world: World, index: int, master: Master) -> World:
    """A single JobMaster changes."""
    return world._replace(masters=(*world.masters[:index], master, *world.masters[index + 1 :]))


def land(world: World, number: int, rec: Rec) -> World:
    """A put-if-absent lands where nothing is."""
    if rec.kind == "checkpoint":
        again = set(rec.groups) <= world.landed  # an earlier put of a record that was written, and expired since
        if rec.epoch != world.counted and not again:
            raise Violation(f"epoch {rec.epoch} completes {number} although epoch {world.counted} has taken over")
        lost = world.lost if world.lost >= number else 0
        world = world._replace(landed=world.landed | set(rec.groups), lost=lost)
    return world._replace(records=tuple(sorted((*world.records, (number, rec)))))


def show(world: World, group: tuple[int, Thing]) -> World:
    """Publish as sinks do: a number at or below the last is done already."""
    if world.published and world.published[-1][0] >= group[0]:
        return world
    return world._replace(published=(*world.published, group))


def merge(one: tuple[tuple[int, Thing], ...], other: tuple[tuple[int, Thing], ...]) -> tuple[tuple[int, Thing], ...]:
    return tuple(sorted(set(one) | set(other)))


def _older_things(master: Master) -> frozenset[Thing]:
    """Return the names that would be free if the record that was sent is written."""
    old = master.newest.things if master.newest else frozenset()
    return old - (master.sent.things if master.sent else frozenset())


# --- the real rules, on the model's values ----------------------------------------------------------------------------


def _queue(unpublished: tuple[tuple[int, Thing], ...]) -> tuple[Publication, dict[str, Thing]]:
    publication, things = Publication(), {}
    for number, thing in unpublished:
        name = f"{number}/{thing.epoch}/{thing.turn}"
        things[name] = thing
        publication.add("sink", Group(JournalNumber(number), name))
    return publication, things


@cache
def carried_groups(unpublished: tuple[tuple[int, Thing], ...]) -> tuple[tuple[int, Thing], ...]:
    publication, things = _queue(unpublished)
    return tuple((group.number, things[group.object]) for group in publication.unpublished().get("sink", []))


@cache
def head_of(unpublished: tuple[tuple[int, Thing], ...]) -> tuple[int, Thing]:
    publication, things = _queue(unpublished)
    (command,) = publication.publish(0.0)
    assert isinstance(command, Publish)
    return command.number, things[command.object]


def _name(thing: Thing) -> str:
    return f"shared/{thing.epoch:012d}/{0:012d}/{thing.turn:032x}"


@cache
def plan_of(
    weakness: Weakness | None,
    epoch: int,
    base: Rec | None,
    base_number: int,
    records: tuple[tuple[int, Rec], ...],
    things: frozenset[Thing],
) -> tuple[frozenset[Thing], frozenset[int]]:
    """`plan_cleanup` over the model's records and objects."""
    below = base_number if base else epoch
    older = {number: _stored(rec) for number, rec in records if number < below}
    needed = frozenset(_name(thing) for thing in base.things) if base else frozenset()
    by_name = {_name(thing): thing for thing in things}
    if weakness is Weakness.CLEANS_UP_ALL_EPOCHS:
        epoch = 10**6
    plan = plan_cleanup(StorageSurvey(epoch, needed, older, [ObjectInfo(name, 1, 0.0) for name in by_name]))
    return frozenset(by_name[info.name] for info in plan.deleted), frozenset(int(number) for number in plan.expired)


def _stored(rec: Rec) -> CheckpointRecord | None:
    """A takeover is no checkpoint record, neither to the plan nor to `plan_cleanup`."""
    if rec.kind == "takeover":
        return None
    return CheckpointRecord(
        epoch=rec.epoch,
        checkpoint_id=0,
        batch=0,
        run=0,
        batch_time_us=0,
        offsets={},
        source_objects={},
        manifests=[],
        groups={},
        operators={},
        parallelism=1,
        max_parallelism=1,
    )
