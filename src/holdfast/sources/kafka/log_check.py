"""The check that a partition's log still reaches a position, and still has the messages that were read before it.

A log becomes shorter when a replica that lacked its last messages becomes leader, or when a broker loses its disk. New
messages then get offsets that were read before. The leader's epoch, which grows with each change of leaders, tells them
apart: the broker knows at which offset the messages of an epoch end (Kafka's proposal KIP-320). Only consumers may
request that, so a consumer is set to each position, with the epoch under which it was reached.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

from holdfast.errors import StorageError
from holdfast.sources.kafka.client import ANSWER_S_MAX, client_package, made
from holdfast.sources.kafka.positions import UNKNOWN_EPOCH, ReachedPosition, partition_of, split_name

CHECKING = {
    "group.id": "holdfast-check",
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 20,
    "fetch.message.max.bytes": 65_536,
    "queued.min.messages": 1,
}
"""Options of the consumer that checks; it needs a single message of each partition, or its end."""
_ENDS_AT = re.compile(r"broker end offset is (\d+) ")
"""The place in the client's message at which the log was cut."""


def cut_logs(
    whose: str, settings: Mapping[str, Any], positions: Mapping[str, ReachedPosition]
) -> dict[str, int | None]:
    """Return the partitions whose logs were cut before their positions, each with the offset of the cut if it is known.

    Raises `StorageError` if brokers do not answer in time.
    """
    package, servers = client_package(), settings["bootstrap.servers"]
    consumer = made(whose, package.Consumer, {**settings, **CHECKING})
    waiting = set(positions)
    found: dict[str, int | None] = {}
    deadline_s = time.monotonic() + ANSWER_S_MAX
    try:
        consumer.assign([_place(package, split, reached) for split, reached in positions.items()])
        while waiting:
            if time.monotonic() > deadline_s:
                raise StorageError(f"{whose}: Kafka at {servers}: no answer about positions in {sorted(waiting)}")
            message = consumer.poll(0.2)
            if message is None or message.topic() is None:
                continue
            split = split_name(message.topic(), message.partition())
            if split not in waiting:
                continue
            found |= _told(f"{whose}: Kafka at {servers}", package, split, message.error())
            waiting.remove(split)
            consumer.incremental_unassign([_place(package, split, positions[split])])
    finally:
        consumer.close()
    return found


def _place(package: Any, split: str, reached: ReachedPosition) -> Any:
    topic, partition = partition_of(split)
    if reached.epoch == UNKNOWN_EPOCH:
        return package.TopicPartition(topic, partition, reached.offset)
    return package.TopicPartition(topic, partition, reached.offset, leader_epoch=reached.epoch)


def _told(who: str, package: Any, split: str, error: Any) -> dict[str, int | None]:
    """Return the offset at which a log was cut, from a broker's answer; empty if it was not cut."""
    codes = package.KafkaError
    if error is None or error.code() == codes._PARTITION_EOF:
        return {}
    if error.code() in {codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE, codes._LOG_TRUNCATION}:
        at = _ENDS_AT.search(error.str())
        return {split: int(at[1]) if at else None}
    raise StorageError(f"{who}: {split}: {error}")  # the next look will tell if the topic is gone
