"""Reading with the client's own `consume`, if the fast way (`queue_reader.py`) cannot be used."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import PositionLost, StorageError
from holdfast.sources.kafka.client import ANSWER_S_MAX, client_package, made, translated
from holdfast.sources.kafka.messages import TRIES_MAX, Messages, PartitionReader, Wanted, after_lost, read_headers

MESSAGES_MAX = 10_000
"""Messages that are taken at once. A higher value makes larger Arrow batches."""


class ClientReader(PartitionReader):
    """A consumer that is assigned a single partition at a time, and continues where its last read ended."""

    def __init__(self, whose: str, settings: Mapping[str, Any]) -> None:
        self._whose = whose
        self._servers = str(settings["bootstrap.servers"])
        self._package = client_package()
        self._consumer = made(whose, self._package.Consumer, {**settings, "group.id": "holdfast-reader"})
        self._place: tuple[str, int, int] | None = None
        self._left: list[Any] = []
        """Messages that came with the last read, but are after its end."""
        self._taken_to = 0
        """All messages of the partition below this offset were taken: they were read, or are left."""
        self._tries = 0
        """Number of errors about a position since messages were last taken or skipped."""

    def read(self, topic: str, partition: int, start: int, stop: int, wanted: Wanted) -> Iterator[Messages]:
        if self._place != (topic, partition, start):
            self._left, self._taken_to, self._tries = [], start, 0
            self._assign(topic, partition)
        self._place = None
        while True:
            found = [message for message in self._left if message.offset() < stop]
            self._left = self._left[len(found) :]
            if found:
                yield as_arrays(found, wanted)
            if self._taken_to >= stop:
                break
            self._take(topic, partition, stop, wanted.passes_lost)
        self._place = (topic, partition, stop)

    def _take(self, topic: str, partition: int, stop: int, passes_lost: bool) -> None:
        """Take messages, in order; wait for the first."""
        deadline_s = time.monotonic() + ANSWER_S_MAX
        while not (taken := self._polled()):
            if self._pass_lost(topic, partition, stop, passes_lost):
                return
            if time.monotonic() > deadline_s:
                raise StorageError(
                    f"{self._whose}: Kafka at {self._servers}: no answer for {topic}/{partition} at {self._taken_to}"
                )
        for message in taken:
            if message.error() is None:
                self._left.append(message)
                self._taken_to, self._tries = message.offset() + 1, 0
            else:
                if self._is_lost(message):
                    if self._pass_lost(topic, partition, stop, passes_lost):
                        return
                    if self._tries < TRIES_MAX:
                        # The error may belong to an earlier position: a fetch from there was under way.
                        self._tries += 1
                        self._assign(topic, partition)
                        return
                self._taken_to = max(self._taken_to, self._end_or_raise(message, topic, partition))

    def _is_lost(self, message: Any) -> bool:
        codes = self._package.KafkaError
        return message.error().code() in {codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE}

    def _pass_lost(self, topic: str, partition: int, stop: int, passes: bool) -> bool:
        """Compare the read with the offsets that the partition's leader has, and skip missing ones. Returns True if the
        leader answered that some are missing. Raises `PositionLost` unless the read may skip them.
        """
        place = self._package.TopicPartition(topic, partition)
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=ANSWER_S_MAX)
        except self._package.KafkaException:
            return False
        where = f"{self._whose}: topic {topic!r}, partition {partition}"
        continues_at = after_lost(where, self._taken_to, stop, low, high, passes)
        if continues_at is None:
            return False
        self._taken_to, self._tries = continues_at, 0
        self._assign(topic, partition)
        return True

    def _assign(self, topic: str, partition: int) -> None:
        """Have the client fetch from the offset up to which messages were taken."""
        self._consumer.assign([self._package.TopicPartition(topic, partition, self._taken_to)])

    def _polled(self) -> list[Any]:
        """Take the messages that are there, or wait for a message: `consume` would wait for as many as it may take."""
        found: list[Any] = self._consumer.consume(MESSAGES_MAX, timeout=0)
        return found or self._consumer.consume(1, timeout=0.2)

    def close(self) -> None:
        self._consumer.close()

    def _end_or_raise(self, message: Any, topic: str, partition: int) -> int:
        """Return the offset up to which the partition was read, if the message says that."""
        error = message.error()
        if error.code() == self._package.KafkaError._PARTITION_EOF:
            return int(message.offset())
        if self._is_lost(message):
            raise PositionLost(
                f"{self._whose}: topic {topic!r}, partition {partition}: wanted is offset {self._taken_to}: {error}"
            )
        raise translated(self._whose, self._servers, error)


def as_arrays(messages: list[Any], wanted: Wanted) -> Messages:
    """Convert the client's messages."""
    headers, bad = read_headers(messages, header_rows) if wanted.headers else (None, {})
    times = (message.timestamp() for message in messages)
    return Messages(
        np.array([message.offset() for message in messages], np.int64),
        keys=pa.array([message.key() for message in messages], pa.binary()) if wanted.keys else None,
        values=pa.array([message.value() for message in messages], pa.binary()) if wanted.values else None,
        headers=headers,
        timestamps_ms=np.array([time if kind else -1 for kind, time in times], np.int64) if wanted.timestamps else None,
        bad_headers=bad,
    )


def header_rows(message: Any) -> list[dict[str, Any]] | None:
    found = message.headers()
    return None if found is None else [{"key": key, "value": value} for key, value in found]
