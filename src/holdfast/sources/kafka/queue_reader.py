"""The fast way out of Kafka: librdkafka's batch consume, called in the client's own library without the GIL.

The package of the client carries librdkafka. Its functions are called by ctypes, which releases the GIL, and compiled
loops (`gather.py`) copy its messages into Arrow buffers, so no Python object is made for a message. A partition that
was read stays open: librdkafka fetches ahead, and the next read continues with messages that are there already.
"""

import ctypes
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import PositionLost, SettingsError, StorageError
from holdfast.sources.kafka.client import ANSWER_S_MAX, client_package
from holdfast.sources.kafka.gather import (
    KEY,
    PAYLOAD,
    Addresses,
    Int64s,
    binary_array,
    destroy_all,
    facts,
    timestamps_of,
)
from holdfast.sources.kafka.messages import TRIES_MAX, Messages, PartitionReader, Wanted, after_lost, read_headers

MESSAGES_MAX = 20_000
"""Messages that are taken at once. A higher value makes larger Arrow batches."""
OPEN_MAX = 64
"""Partitions that a reader keeps open. A higher value fetches ahead from more of them, and takes more memory."""
WAIT_MS = 200
CONSUMER = 1
PARTITION_EOF, OUT_OF_RANGE, AUTO_OFFSET_RESET = -191, 1, -140
LOST = {OUT_OF_RANGE, AUTO_OFFSET_RESET}
"""Error codes of an offset that does not exist."""
GONE = {3, -188, -190}
"""Error codes of a topic or partition that does not exist."""
NO_MESSAGES: Addresses = np.empty(0, np.uint64)


@cache
def library() -> ctypes.CDLL | None:
    """Load librdkafka from the client's package; None if the package does not contain it, or lacks a function."""
    package = Path(client_package().__file__).parent
    paths = sorted(package.with_name("confluent_kafka.libs").glob("librdkafka*.so*"))
    if len(paths) != 1:
        return None
    found = ctypes.CDLL(str(paths[0]))
    word, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (word, []),
        "rd_kafka_conf_set": (number, [word, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (word, [number, word, text, ctypes.c_size_t]),
        "rd_kafka_destroy": (None, [word]),
        "rd_kafka_topic_new": (word, [word, text, word]),
        "rd_kafka_topic_destroy": (None, [word]),
        "rd_kafka_consume_start": (number, [word, ctypes.c_int32, ctypes.c_int64]),
        "rd_kafka_consume_stop": (number, [word, ctypes.c_int32]),
        "rd_kafka_consume_batch": (ctypes.c_ssize_t, [word, ctypes.c_int32, number, word, ctypes.c_size_t]),
        "rd_kafka_query_watermark_offsets": (
            number,
            [word, text, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64), number],
        ),
        "rd_kafka_poll": (number, [word, number]),
        "rd_kafka_err2str": (text, [number]),
        "rd_kafka_message_timestamp": (ctypes.c_int64, [word, word]),
        "rd_kafka_message_destroy": (None, [word]),
        "rd_kafka_message_headers": (number, [word, ctypes.POINTER(word)]),
        "rd_kafka_header_get_all": (
            number,
            [word, ctypes.c_size_t, ctypes.POINTER(text), ctypes.POINTER(word), ctypes.POINTER(ctypes.c_size_t)],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(found, name, None)
        if function is None:
            return None
        function.restype, function.argtypes = result, arguments
    return found


def address_of(function: Any) -> np.uint64:
    return np.uint64(ctypes.cast(function, ctypes.c_void_p).value or 0)


@dataclass
class OpenPartition:
    """A partition that is being fetched, and messages that were taken but are after the end of the last read."""

    topic: int
    number: int
    position: int
    """Offset at which the last read ended; -1 within a read."""
    taken_to: int
    """All messages below this offset were taken out of the queue: they were read, or are `left`."""
    stop: int = -1
    """Offset at which the read under way ends."""
    passes_lost: bool = False
    """True if the current read continues after messages that are gone."""
    begun_again: bool = False
    """True if its position was tried a second time, or messages were skipped; the next read opens it again."""
    tries: int = 0
    """Number of errors about a position since messages were last skipped."""
    left: Addresses = field(default_factory=lambda: NO_MESSAGES)


class QueueReader(PartitionReader):
    """A consumer without a group, and a queue for each partition that it has open."""

    def __init__(self, whose: str, settings: Mapping[str, Any], lib: ctypes.CDLL) -> None:
        self._whose = whose
        self._servers = str(settings["bootstrap.servers"])
        self._lib = lib
        self._timestamp = address_of(lib.rd_kafka_message_timestamp)
        self._destroy = address_of(lib.rd_kafka_message_destroy)
        self._open: dict[tuple[str, int], OpenPartition] = {}
        self._client = self._made(settings)

    def read(self, topic: str, partition: int, start: int, stop: int, wanted: Wanted) -> Iterator[Messages]:
        opened = self._opened(topic, partition, start)
        opened.position, opened.stop, opened.passes_lost = -1, stop, wanted.passes_lost
        while True:
            taken, offsets = opened.left, facts(opened.left)[1]
            opened.left = taken[offsets >= stop]
            usable = offsets < stop
            try:
                found = self._messages(taken[usable], offsets[usable], wanted) if usable.any() else None
            finally:
                self._drop(taken[usable])
            if found is not None:
                yield found
            if opened.taken_to >= stop:
                break
            self._take(opened, topic)
        opened.position = -1 if opened.begun_again else stop

    def close(self) -> None:
        for key in list(self._open):
            self._shut(key)
        if self._client:
            self._lib.rd_kafka_destroy(self._client)
            self._client = None

    def _made(self, settings: Mapping[str, Any]) -> int | None:
        """Make the client. Raises `SettingsError` in librdkafka's words, which hold no values."""
        lib, reason = self._lib, ctypes.create_string_buffer(512)
        conf = lib.rd_kafka_conf_new()
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if lib.rd_kafka_conf_set(conf, name.encode(), text.encode(), reason, 512) != 0:
                raise SettingsError(f"{self._whose}: Kafka's client refuses option {name!r}")
        client: int | None = lib.rd_kafka_new(CONSUMER, conf, reason, 512)
        if not client:
            raise SettingsError(f"{self._whose}: Kafka's client refuses its options: {reason.value.decode()}")
        return client

    def _opened(self, topic: str, partition: int, start: int) -> OpenPartition:
        """Return the partition at this position: still open after the last read, or opened again."""
        key = (topic, partition)
        opened = self._open.pop(key, None)
        if opened is not None and opened.position != start:
            self._open[key] = opened
            self._shut(key)
            opened = None
        if opened is None:
            while len(self._open) >= OPEN_MAX:
                self._shut(next(iter(self._open)))
            handle = self._lib.rd_kafka_topic_new(self._client, topic.encode(), None)
            opened = self._open[key] = OpenPartition(handle, partition, start, start)
            self._begin(opened, topic)
        self._open[key] = opened
        return opened

    def _begin(self, opened: OpenPartition, topic: str) -> None:
        """Have librdkafka fetch from the offset up to which messages were taken."""
        if self._lib.rd_kafka_consume_start(opened.topic, opened.number, opened.taken_to) != 0:
            raise StorageError(f"{self._whose}: Kafka at {self._servers}: {topic}/{opened.number} cannot be opened")

    def _shut(self, key: tuple[str, int]) -> None:
        opened = self._open.pop(key)
        self._drop(opened.left)
        self._lib.rd_kafka_consume_stop(opened.topic, opened.number)
        self._lib.rd_kafka_topic_destroy(opened.topic)

    def _take(self, opened: OpenPartition, topic: str) -> None:
        """Take messages from the queue, in order; wait for the first."""
        deadline_s = time.monotonic() + ANSWER_S_MAX
        while not len(taken := self._polled(opened)):
            if self._pass_lost(opened, topic, max(0.1, deadline_s - time.monotonic())):
                return
            if time.monotonic() > deadline_s:
                raise StorageError(
                    f"{self._whose}: Kafka at {self._servers}: no answer for {topic}/{opened.number} from offset "
                    f"{opened.taken_to}"
                )
        errors, offsets = facts(taken)
        opened.left = taken[errors == 0]
        self._drop(taken[errors != 0])
        well = np.flatnonzero((errors == 0) | (errors == PARTITION_EOF))
        if len(well):
            opened.taken_to = max(opened.taken_to, int(offsets[well[-1]]) + int(errors[well[-1]] == 0))
        failed = errors[(errors != 0) & (errors != PARTITION_EOF)]
        if len(failed):
            self._begin_again_or_fail(opened, topic, int(failed[0]))

    def _begin_again_or_fail(self, opened: OpenPartition, topic: str, code: int) -> None:
        """Try a position a second time before it counts as lost.

        An error may belong to an earlier position, from which librdkafka still fetched ahead: if the topic was created
        anew since, that position does not exist.
        """
        if code not in LOST:
            self._fail(topic, opened.number, opened.taken_to, code)
        passed = opened.tries > 0 and self._pass_lost(opened, topic, ANSWER_S_MAX)
        opened.tries = 0 if passed else opened.tries + 1
        if opened.tries > TRIES_MAX:
            self._fail(topic, opened.number, opened.taken_to, code)
        opened.begun_again = True
        self._lib.rd_kafka_consume_stop(opened.topic, opened.number)
        self._begin(opened, topic)

    def _pass_lost(self, opened: OpenPartition, topic: str, timeout_s: float) -> bool:
        """Compare the read with the offsets that the partition's leader has, and skip missing ones. Returns True if the
        leader answered that some are missing. Raises `PositionLost` unless the read may skip them.
        """
        low, high = ctypes.c_int64(), ctypes.c_int64()
        place = (topic.encode(), opened.number, ctypes.byref(low), ctypes.byref(high))
        if self._lib.rd_kafka_query_watermark_offsets(self._client, *place, round(timeout_s * 1000)) != 0:
            return False
        where = f"{self._whose}: topic {topic!r}, partition {opened.number}"
        passes = opened.passes_lost
        continues_at = after_lost(where, opened.taken_to, opened.stop, low.value, high.value, passes)
        if continues_at is None:
            return False
        opened.taken_to = continues_at
        opened.begun_again = True
        return True

    def _polled(self, opened: OpenPartition) -> Addresses:
        """Take the messages that are there, or wait for a message: a batch consume waits until the batch is full."""
        self._lib.rd_kafka_poll(self._client, 0)
        found = np.empty(MESSAGES_MAX, np.uint64)
        for wait_ms, most in ((0, MESSAGES_MAX), (WAIT_MS, 1)):
            count = self._lib.rd_kafka_consume_batch(opened.topic, opened.number, wait_ms, found.ctypes.data, most)
            if count > 0:
                return found[:count]
        return NO_MESSAGES

    def _messages(self, taken: Addresses, offsets: Any, wanted: Wanted) -> Messages:
        headers, bad = read_headers(taken.tolist(), self._headers) if wanted.headers else (None, {})
        return Messages(
            offsets,
            keys=binary_array(taken, KEY) if wanted.keys else None,
            values=binary_array(taken, PAYLOAD) if wanted.values else None,
            headers=headers,
            timestamps_ms=self._times(taken) if wanted.timestamps else None,
            bad_headers=bad,
        )

    def _times(self, taken: Addresses) -> Int64s:
        times, scratch = np.empty(len(taken), np.int64), np.empty(1, np.int64)
        timestamps_of(taken, self._timestamp, np.uint64(scratch.ctypes.data), times)
        return times

    def _headers(self, message: int) -> list[dict[str, Any]] | None:
        lib, handle = self._lib, ctypes.c_void_p()
        if lib.rd_kafka_message_headers(message, ctypes.byref(handle)) != 0:
            return None
        found: list[dict[str, Any]] = []
        name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        place = (ctypes.byref(name), ctypes.byref(value), ctypes.byref(size))
        while lib.rd_kafka_header_get_all(handle, len(found), *place) == 0:
            content = ctypes.string_at(value.value, size.value) if value.value else None
            found.append({"key": (name.value or b"").decode(), "value": content})
        return found

    def _drop(self, taken: Addresses) -> None:
        if len(taken):
            destroy_all(taken, self._destroy)

    def _fail(self, topic: str, partition: int, at: int, code: int) -> None:
        reason = (self._lib.rd_kafka_err2str(code) or b"").decode()
        where = f"{self._whose}: topic {topic!r}, partition {partition}"
        if code in LOST:
            raise PositionLost(f"{where}: wanted is offset {at}, which is not available: {reason}")
        if code in GONE:
            raise PositionLost(f"{where}: wanted is offset {at}: {reason}: the topic or partition was deleted")
        raise StorageError(f"{where}: Kafka at {self._servers}: {reason}")
