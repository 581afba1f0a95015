"""Positions in partitions, and the offsets in which the enumerator keeps them.

    topic/partition -> next offset          the position of a split
    topic           -> id of the topic      a topic that was deleted and created again has another id
    topic:epochs    -> "0,3,,3"             the epoch of each partition's leader when the positions were reached, in the
                                            order of the partitions; empty if the broker does not report it

Kafka allows neither a slash nor a colon in the name of a topic.
"""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.errors import JobRefused
from holdfast.ids import SplitPosition
from holdfast.sources.base import Offsets

EPOCHS = ":epochs"
UNKNOWN_EPOCH = -1
OFFSET_MAX = 2**63 - 1


class ReachedPosition(NamedTuple):
    """An offset, and the epoch of the partition's leader at the time when this offset was known to exist.

    The epoch grows with each change of leaders; -1: the broker does not tell it.
    """

    offset: int
    epoch: int = UNKNOWN_EPOCH


def split_name(topic: str, partition: int) -> str:
    """Name a partition as a split; names of topics have no slash."""
    return f"{topic}/{partition}"


def partition_of(split: str) -> tuple[str, int]:
    topic, _, partition = split.rpartition("/")
    return topic, int(partition)


def partitions(offsets: Offsets) -> dict[str, int]:
    """Return the offsets of partitions, without the facts of topics."""
    return {name: int(offset) for name, offset in offsets.items() if "/" in name and offset is not None}


def partition_end(offsets: Offsets, split: str) -> int:
    end: SplitPosition = offsets.get(split, 0)
    return int(end or 0)


def offsets_of(positions: Mapping[str, ReachedPosition]) -> dict[str, int]:
    return {split: reached.offset for split, reached in positions.items()}


def with_epochs(positions: Mapping[str, ReachedPosition]) -> Offsets:
    """Return the entries of the leaders' epochs, of a text for each topic."""
    by_topic: dict[str, dict[int, int]] = {}
    for split, reached in positions.items():
        topic, partition = partition_of(split)
        by_topic.setdefault(topic, {})[partition] = reached.epoch
    return {
        topic + EPOCHS: ",".join(
            "" if (epoch := found.get(number, UNKNOWN_EPOCH)) == UNKNOWN_EPOCH else str(epoch)
            for number in range(max(found) + 1)
        )
        for topic, found in by_topic.items()
    }


def epochs(offsets: Offsets) -> dict[str, int]:
    """Return the known epochs of partitions' leaders."""
    return {
        split_name(name.removesuffix(EPOCHS), number): int(epoch)
        for name, listed in offsets.items()
        if name.endswith(EPOCHS)
        for number, epoch in enumerate(str(listed).split(","))
        if epoch
    }


def check_restored(whose: str, offsets: Offsets) -> None:
    """Raise `JobRefused`, naming the entry, if a checkpoint's offsets do not have the form of this module."""
    for name, found in offsets.items():
        topic, slash, partition = name.rpartition("/")
        if slash:
            is_right = topic and partition.isascii() and partition.isdigit() and _is_offset(found)
        elif name.endswith(EPOCHS):
            is_right = isinstance(found, str) and all(
                not each or (each.isascii() and each.isdigit()) for each in found.split(",")
            )
        else:
            is_right = isinstance(found, str)
        if not is_right:
            raise JobRefused(
                f"{whose}: the checkpoint has {name!r}: {found!r}, expected offsets of partitions by 'topic/partition' "
                "and facts of topics as text. It is of another kind of source, or damaged: give the source another "
                "name, or start on a new storage"
            )


def _is_offset(found: SplitPosition) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= OFFSET_MAX
