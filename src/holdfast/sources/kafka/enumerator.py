"""Planning of reads from Kafka, on the driver.

The offsets of the source (`positions.py`) hold positions, ids of topics and epochs of leaders. The ids show if a topic
was deleted and created again since its rows were read; the epochs show if a log was cut short, and perhaps grew again,
since its rows were read (`log_check.py`).

Invariants
- A position is checked if its leader's epoch is not the one under which it was reached, or if the log ends before it.
- A read never goes past the last stable offset of its partition, so all its rows are final.
- A partition that the offsets do not name is read from its earliest offset: it appeared after the start.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.errors import JobRefused, PositionLost
from holdfast.printable import logger
from holdfast.sources.base import Enumerator, Offsets, SourcePlan, SplitRead
from holdfast.sources.kafka.cluster import KafkaCluster, TopicFacts
from holdfast.sources.kafka.positions import (
    EPOCHS,
    UNKNOWN_EPOCH,
    ReachedPosition,
    check_restored,
    epochs,
    offsets_of,
    partition_end,
    partition_of,
    partitions,
    split_name,
    with_epochs,
)
from holdfast.sources.sequence import divide_evenly

log = logger(__name__)

DISCOVERY_PAUSE_S = 1.0
"""Seconds between two looks for new topics, new partitions and rows that retention has deleted. A higher value asks the
cluster less often."""
SHARE_ROWS_MIN = 2_000
"""Least number of rows that a batch reads from a partition, if there are as many. A higher value makes fewer and larger
reads if many partitions lag behind."""
ROW_BYTES = 100
"""Assumed size of a message, for the limit on a batch's bytes."""


class KafkaSettings(Protocol):
    """The declaration of a source, as its planning needs it."""

    topics: tuple[str, ...]
    pattern: str | None
    starting: str | datetime | Mapping[str, int]
    on_lost: str


class GroupCommits(Protocol):
    """Committer of a consumer group's offsets, for tools that show lag."""

    def commit(self, offsets: Mapping[str, int]) -> None: ...

    def close(self) -> None: ...


class KafkaEnumerator(Enumerator):
    """Knows the partitions, and plans reads from them."""

    def __init__(
        self, whose: str, settings: KafkaSettings, cluster: KafkaCluster, clock: Clock, group: GroupCommits | None
    ) -> None:
        self._whose = whose
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._group = group
        self._topics: dict[str, TopicFacts] = {}
        self._starts: dict[str, int] = {}
        self._latest: Offsets = {}
        self._discovered_s = float("-inf")
        self._told: set[str] = set()
        self._sound: set[tuple[str, ReachedPosition, int]] = set()
        """Positions that were checked, and found valid, under the epoch of a later leader."""

    def initial(self) -> Offsets:
        self._discover()
        splits, starting = list(self._starts), self._settings.starting
        ends = self._cluster.ends(splits)
        first: Mapping[str, int] = self._starts
        if isinstance(starting, datetime):
            first = self._cluster.at_time(splits, round(starting.timestamp() * 1000))
        elif starting == "latest":
            first = offsets_of(ends)
        elif isinstance(starting, Mapping):
            first = {**self._starts, **{split: starting[split] for split in splits if split in starting}}
        return {**self._ids(), **with_epochs(ends), **first}

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        check_restored(self._whose, offsets)
        named = self._settings.topics
        foreign = topics_of(partitions(offsets)).difference(named)
        if self._settings.pattern:
            foreign = {topic for topic in foreign if not re.fullmatch(self._settings.pattern, topic)}
        if foreign and self._settings.on_lost == "fail":
            raise JobRefused(
                f"{self._whose}: the checkpoint has positions of topic {min(foreign)!r}, which is not among the topics "
                f"of this source ({self._settings.pattern or ', '.join(named)}): name it in topics=, give the source "
                "another name, or give on_lost='reset' to leave its messages out from here on"
            )

    @property
    def initial_varies(self) -> bool:
        return self._settings.starting == "latest" or isinstance(self._settings.starting, datetime)

    def latest(self) -> Offsets:
        if self._clock.monotonic() >= self._discovered_s + DISCOVERY_PAUSE_S:
            self._discover()
        ends = self._cluster.ends(self._starts)
        if any(end.offset < partition_end(self._latest, split) for split, end in ends.items()):
            self._discover()  # Offsets went back: the topic was created anew, or its log became shorter.
            ends = self._cluster.ends(self._starts)
        self._latest = {**self._ids(), **with_epochs(ends), **offsets_of(ends)}
        return dict(self._latest)

    def _ids(self) -> Offsets:
        return {topic: facts.topic_id for topic, facts in self._topics.items()}

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        budget = max(1, min(rows_max, bytes_max // ROW_BYTES))
        if until == start:
            return SourcePlan(start, [])
        at = self._begin(start, until)
        left = {split: end - at[split] for split, end in partitions(until).items() if end > at[split]}
        shares = divide_evenly({split: left[split] for split in in_turn(left, sum(at.values()), budget)}, budget)
        reads = [SplitRead(split, at[split], at[split] + rows, rows) for split, rows in shares.items() if rows]
        reads.sort(key=lambda read: partition_of(read.split))
        named = topics_of(at)
        facts = {name: each for name, each in until.items() if "/" not in name and name.removesuffix(EPOCHS) in named}
        kept = {name: place for name, place in start.items() if "/" not in name or name in at}
        to: Offsets = {**kept, **facts, **at, **{read.split: read.stop for read in reads}}
        return SourcePlan(to if reads or has_moved(start, to) else start, reads)

    def open_splits(self, offsets: Offsets) -> Collection[str]:
        return partitions(offsets)

    def completed(self, offsets: Offsets) -> None:
        if self._group is not None:
            self._group.commit(partitions(offsets))

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        at = partitions(offsets)
        return {
            split: max(0, end - at.get(split, self._starts.get(split, 0)))
            for split, end in partitions(self._latest).items()
        }

    def close(self) -> None:
        if self._group is not None:
            self._group.close()

    def _discover(self) -> None:
        """Look for topics, partitions and the earliest offsets. A call that fails changes nothing."""
        settings, cluster = self._settings, self._cluster
        names = cluster.matching(settings.pattern) if settings.pattern else settings.topics
        topics = cluster.topics(names)
        splits = [split_name(topic, number) for topic, facts in topics.items() for number in range(facts.partitions)]
        starts = cluster.starts(splits)
        self._topics, self._starts = topics, starts
        self._discovered_s = self._clock.monotonic()

    def _begin(self, start: Offsets, until: Offsets) -> dict[str, int]:
        """Return the offset from which each partition is read next, and handle positions that are lost."""
        at = partitions(start)
        for topic in topics_of(at):
            if topic in self._topics and start.get(topic, self._topics[topic].topic_id) != self._topics[topic].topic_id:
                self._lost(
                    f"topic {topic!r}: wanted are rows of topic id {start[topic]}, available are those of topic id "
                    f"{self._topics[topic].topic_id}: it was deleted and created again"
                )
                at = {split: offset for split, offset in at.items() if partition_of(split)[0] != topic}
        for split, offset in list(at.items()):
            topic = partition_of(split)[0]
            if topic not in self._topics:
                self._lost(f"topic {topic!r}: it was deleted; wanted are its rows of topic id {start.get(topic)}")
            elif split not in self._starts:
                count = self._topics[topic].partitions
                self._lost(f"{where(split)}: wanted is offset {offset}, but the topic has {count} partitions")
            elif offset < (first := self._starts[split]):
                self._lost(
                    f"{where(split)}: wanted is offset {offset}, available are {first} and later ones: retention has "
                    "deleted the others"
                )
                at[split] = first
        at |= self._cut_back(at, start)
        return {split: self._starts.get(split, 0) for split in partitions(until)} | at

    def _cut_back(self, at: Mapping[str, int], start: Offsets) -> dict[str, int]:
        """Return new positions of the partitions whose logs became shorter than their positions."""
        ends, before, now = partitions(self._latest), epochs(start), epochs(self._latest)
        reached = {split: ReachedPosition(at[split], before.get(split, UNKNOWN_EPOCH)) for split in at if split in ends}
        doubtful = {
            split: one
            for split, one in reached.items()
            if split in self._starts
            and (ends[split] < one.offset or one.epoch not in {UNKNOWN_EPOCH, now.get(split, UNKNOWN_EPOCH)})
        }
        asked = {split: (split, one, now.get(split, UNKNOWN_EPOCH)) for split, one in doubtful.items()}
        cut = self._cluster.cut_logs({split: one for split, one in doubtful.items() if asked[split] not in self._sound})
        self._sound = {facts for split, facts in asked.items() if split not in cut}
        new = {}
        for split, cut_at in cut.items():
            again = max(cut_at or 0, self._starts[split])
            self._lost(f"{where(split)}: wanted is offset {at[split]}, but the log was cut short at {again}", "there")
            new[split] = again
        return new

    def _lost(self, reason: str, new: str = "the earliest offset") -> None:
        if self._settings.on_lost == "fail":
            raise PositionLost(f"{self._whose}: {reason}. Start with on_lost='reset' to go on from {new}")
        if reason not in self._told:
            self._told.add(reason)
            log.warning("%s: %s; going on from %s", self._whose, reason, new)


def topics_of(splits: Iterable[str]) -> set[str]:
    return {partition_of(split)[0] for split in splits}


def has_moved(start: Offsets, to: Offsets) -> bool:
    """Return whether offsets differ by more than newly known facts (ids and epochs)."""
    return len(partitions(to)) != len(partitions(start)) or any(to.get(name) != each for name, each in start.items())


def where(split: str) -> str:
    topic, partition = partition_of(split)
    return f"topic {topic!r}, partition {partition}"


def in_turn(left: Mapping[str, int], read: int, budget: int) -> list[str]:
    """Choose the partitions of a batch: all, or only as many as get a large share, with other partitions in each batch.
    `read` is the sum of all positions. It grows by about `budget` with each batch, so it decides whose turn it is.
    """
    count = max(1, budget // SHARE_ROWS_MIN)
    names = sorted(left, key=partition_of)
    if len(names) <= count:
        return names
    first = (read // budget) * count % len(names)
    return [names[(first + place) % len(names)] for place in range(count)]


def committed_offsets(package: Any, offsets: Mapping[str, int]) -> list[Any]:
    return [package.TopicPartition(*partition_of(split), offset) for split, offset in offsets.items()]
