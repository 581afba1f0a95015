"""Groups of committables that a record holds, per sink: published strictly in order, then discarded.

    queued ──Publish──► publishing ──Published──► published ──no record names it──► discarding ──Discarded──► gone
       ▲                    │ I/O error, after a pause                                  │ failed, after a pause
       └────────────────────┘                                                           └──► published

A group keeps its number in all records that carry it. A record carries the groups that are unpublished when it is sent,
so the first record after the publication no longer has the group. The group's staged files are deleted once every
record that names it was deleted. Does not own: the objects of groups (`registry.py`).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from holdfast.back_off import doubled_s
from holdfast.checkpoint.events import Discard, Group, PausePlanning, Publish, ResumePlanning
from holdfast.ids import JournalNumber

RETRY_PAUSE_S = 1.0
"""Pause in seconds after a first failed publication; it doubles with each further failure in a row. A higher value
retries more seldom."""

RETRY_PAUSE_MAX_S = 30.0

GroupKey = tuple[str, JournalNumber]


@dataclass
class SinkQueue:
    """The groups of a sink. `unpublished` is in order of numbers; only its head is ever being published."""

    sink: str
    unpublished: list[Group] = field(default_factory=list)
    published: dict[JournalNumber, Group] = field(default_factory=dict)
    discarding: dict[JournalNumber, Group] = field(default_factory=dict)
    publishing: bool = False
    refused: bool = False
    paused: bool = False
    failures_in_a_row: int = 0
    not_before_s: float = 0.0
    discard_not_before_s: dict[JournalNumber, float] = field(default_factory=dict)

    def all(self) -> list[Group]:
        return [*self.published.values(), *self.discarding.values(), *self.unpublished]


class Publication:
    """The queues of groups of all sinks."""

    def __init__(self) -> None:
        self._queues: dict[str, SinkQueue] = {}

    def add(self, sink: str, group: Group) -> None:
        """Add a group that a written record holds now; the numbers of a sink's groups grow."""
        self._queues.setdefault(sink, SinkQueue(sink)).unpublished.append(group)

    def add_published(self, sink: str, group: Group) -> None:
        """Add a group that is visible already, and that a retained record of an earlier start names."""
        self._queues.setdefault(sink, SinkQueue(sink)).published[group.number] = group

    def unpublished(self) -> dict[str, list[Group]]:
        """The committables that the next record carries, per sink, in order."""
        return {queue.sink: list(queue.unpublished) for queue in self._sorted() if queue.unpublished}

    def publish(self, now_s: float) -> list[Publish]:
        """Return a command for the head of each queue in which no publication is under way."""
        commands = []
        for queue in self._sorted():
            if queue.unpublished and not queue.publishing and not queue.refused and queue.not_before_s <= now_s:
                queue.publishing = True
                head = queue.unpublished[0]
                commands.append(Publish(queue.sink, head.number, head.object))
        return commands

    def published(self, sink: str, number: JournalNumber) -> None:
        """Note that the head is visible. An answer with another number is old, and ignored."""
        queue = self._publishing(sink, number)
        if queue is not None:
            queue.publishing = False
            queue.failures_in_a_row = 0
            queue.published[number] = queue.unpublished.pop(0)

    def failed(self, sink: str, number: JournalNumber, now_s: float) -> None:
        """Note that the head could not be published; it is tried again after a pause."""
        queue = self._publishing(sink, number)
        if queue is not None:
            queue.publishing = False
            queue.failures_in_a_row += 1
            queue.not_before_s = now_s + doubled_s(RETRY_PAUSE_S, queue.failures_in_a_row, RETRY_PAUSE_MAX_S)

    def refused(self, sink: str, number: JournalNumber) -> bool:
        """Note that the sink will never accept the head, which is not tried again. Returns True if this is new."""
        queue = self._publishing(sink, number)
        if queue is None:
            return False
        queue.publishing = False
        queue.refused = True
        return True

    def discard(self, named: Collection[GroupKey], now_s: float) -> list[Discard]:
        """Discard the published groups that no record names; `named`: the groups that some record names."""
        commands = []
        for queue in self._sorted():
            for number, group in sorted(queue.published.items()):
                if (queue.sink, number) not in named and queue.discard_not_before_s.get(number, 0.0) <= now_s:
                    queue.discarding[number] = queue.published.pop(number)
                    commands.append(Discard(queue.sink, number, group.object))
        return commands

    def discarded(self, sink: str, number: JournalNumber) -> bool:
        """Note that the group's staged files are gone; True if this was not known yet."""
        queue = self._queues.get(sink)
        if queue is None or queue.discarding.pop(number, None) is None:
            return False
        queue.discard_not_before_s.pop(number, None)
        return True

    def discard_failed(self, sink: str, number: JournalNumber, now_s: float) -> None:
        """Note that some staged files of a group may be left; their deletion is tried again after a pause."""
        queue = self._queues.get(sink)
        if queue is not None and number in queue.discarding:
            queue.published[number] = queue.discarding.pop(number)
            queue.discard_not_before_s[number] = now_s + RETRY_PAUSE_MAX_S

    def planning(self, unpublished_max: int, overfull: Collection[str] = ()) -> list[PausePlanning | ResumePlanning]:
        """Pause or resume planning, if that has changed; `overfull` sinks have too much output in memory."""
        for sink in overfull:
            self._queues.setdefault(sink, SinkQueue(sink))
        commands: list[PausePlanning | ResumePlanning] = []
        for queue in self._sorted():
            full = len(queue.unpublished) >= unpublished_max or queue.sink in overfull
            if full != queue.paused:
                queue.paused = full
                commands.append(PausePlanning(queue.sink) if full else ResumePlanning(queue.sink))
        return commands

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Every group whose staged files were not discarded yet."""
        for queue in self._sorted():
            for group in queue.all():
                yield queue.sink, group

    def backlog(self) -> Mapping[str, int]:
        """Number of unpublished groups of each sink that ever had a group."""
        return {queue.sink: len(queue.unpublished) for queue in self._sorted()}

    def validate(self) -> None:
        """Check the invariants; raises AssertionError."""
        for queue in self._sorted():
            numbers = [group.number for group in queue.unpublished]
            assert numbers == sorted(set(numbers)), f"{queue.sink}: out of order: {numbers}"
            assert not queue.publishing or numbers, f"{queue.sink}: publishes nothing"
            done = queue.published.keys() | queue.discarding.keys()
            assert not numbers or all(number < numbers[0] for number in done), f"{queue.sink}: {done} before {numbers}"

    def _sorted(self) -> list[SinkQueue]:
        return [self._queues[sink] for sink in sorted(self._queues)]

    def _publishing(self, sink: str, number: JournalNumber) -> SinkQueue | None:
        queue = self._queues.get(sink)
        if queue is None or not queue.publishing or queue.unpublished[0].number != number:
            return None
        return queue
