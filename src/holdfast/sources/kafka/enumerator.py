"""Planning of reads from Kafka, on the driver.

The offsets of the source hold `topic/partition -> next offset` and `topic -> id of the topic`. The ids tell a topic
that was deleted and created again from the topic whose rows were read.

Invariants
- A read never goes past the last stable offset of its partition, so that all its rows are there for good.
- A partition that the offsets do not name is read from its earliest offset: it appeared after the start.
"""

import logging
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.errors import PositionLost
from holdfast.ids import SplitPosition
from holdfast.sources.base import Enumerator, Offsets, SourcePlan, SplitRead
from holdfast.sources.kafka.cluster import KafkaCluster, TopicFacts, partition_of, split_name
from holdfast.sources.sequence import divide_evenly

log = logging.getLogger(__name__)

DISCOVERY_PAUSE_S = 1.0
"""Seconds between two looks for new topics, new partitions and rows that retention has deleted. A higher value asks the
cluster less often."""
SHARE_ROWS_MIN = 2_000
"""Rows of a partition that a batch reads at least, if there are as many. A higher value gives fewer, larger reads where
many partitions lag behind."""
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
    """Knows the partitions and how far they reach."""

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

    def initial(self) -> Offsets:
        self._discover()
        splits, starting = list(self._starts), self._settings.starting
        first: Mapping[str, int] = self._starts
        if isinstance(starting, datetime):
            first = self._cluster.at_time(splits, round(starting.timestamp() * 1000))
        elif starting == "latest":
            first = self._cluster.ends(splits)
        elif isinstance(starting, Mapping):
            first = {**self._starts, **{split: starting[split] for split in splits if split in starting}}
        return {**{topic: facts.topic_id for topic, facts in self._topics.items()}, **first}

    @property
    def initial_varies(self) -> bool:
        return self._settings.starting == "latest" or isinstance(self._settings.starting, datetime)

    def latest(self) -> Offsets:
        if self._clock.monotonic() >= self._discovered_s + DISCOVERY_PAUSE_S:
            self._discover()
        ends = self._cluster.ends(self._starts)
        if any(end < partition_end(self._latest, split) for split, end in ends.items()):
            self._discover()  # Offsets went back: the topic was created anew.
        found: Offsets = {topic: facts.topic_id for topic, facts in self._topics.items()}
        self._latest = {**found, **ends}
        return dict(self._latest)

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        budget = max(1, min(rows_max, bytes_max // ROW_BYTES))
        at = self._begin(start, until)
        left = {split: end - at[split] for split, end in partitions(until).items() if end > at[split]}
        shares = divide_evenly({split: left[split] for split in in_turn(left, sum(at.values()), budget)}, budget)
        reads = [SplitRead(split, at[split], at[split] + rows, rows) for split, rows in shares.items() if rows]
        reads.sort(key=lambda read: partition_of(read.split))
        ids = {topic: until[topic] for topic in {partition_of(split)[0] for split in at} if topic in until}
        to: Offsets = {**start, **ids, **at, **{read.split: read.stop for read in reads}}
        return SourcePlan(to if reads or len(to) != len(start) else start, reads)

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
        for topic in {partition_of(split)[0] for split in at}:
            if until is not start and topic not in self._topics:
                self._lost(f"topic {topic!r}: it was deleted; wanted are its rows of topic id {start.get(topic)}")
            elif (
                topic in self._topics and start.get(topic, self._topics[topic].topic_id) != self._topics[topic].topic_id
            ):
                self._lost(
                    f"topic {topic!r}: wanted are rows of topic id {start[topic]}, available are those of topic id "
                    f"{self._topics[topic].topic_id}: it was deleted and created again"
                )
                at = {split: offset for split, offset in at.items() if partition_of(split)[0] != topic}
        for split, offset in list(at.items()):
            first = self._starts.get(split, offset)
            if offset < first:
                topic, partition = partition_of(split)
                self._lost(
                    f"topic {topic!r}, partition {partition}: wanted is offset {offset}, available are {first} and "
                    "later ones: retention has deleted the others"
                )
                at[split] = first
        return {split: self._starts.get(split, 0) for split in partitions(until)} | at

    def _lost(self, reason: str) -> None:
        if self._settings.on_lost == "fail":
            raise PositionLost(
                f"{self._whose}: {reason}. Start with on_lost='reset' to go on from the earliest offset that is there"
            )
        if reason not in self._told:
            self._told.add(reason)
            log.warning("%s: %s; going on from the earliest offset that is there", self._whose, reason)


def partitions(offsets: Offsets) -> dict[str, int]:
    """Return the offsets of partitions, without the ids of topics."""
    return {name: int(offset) for name, offset in offsets.items() if "/" in name and offset is not None}


def partition_end(offsets: Offsets, split: str) -> int:
    end: SplitPosition = offsets.get(split, 0)
    return int(end or 0)


def in_turn(left: Mapping[str, int], read: int, budget: int) -> list[str]:
    """Choose the partitions of a batch: all, or as many as get a large share, others with each batch.

    `read` is the sum of all positions. It grows by about `budget` with each batch, so that it tells whose turn it is.
    """
    count = max(1, budget // SHARE_ROWS_MIN)
    names = sorted(left, key=partition_of)
    if len(names) <= count:
        return names
    first = (read // budget) * count % len(names)
    return [names[(first + place) % len(names)] for place in range(count)]


def committed_offsets(package: Any, offsets: Mapping[str, int]) -> list[Any]:
    return [package.TopicPartition(*partition_of(split), offset) for split, offset in offsets.items()]
