"""Epochs of Spark's query as segments: each batch id is stored once, whatever Spark or a driver repeats.

    Spark calls, with an id ─► parts, by tasks ─► head: THE EPOCH COUNTS ─► Spark commits the id ─► the next epoch
          id is in the spool: passed over             nothing before it does

Invariants
- The number of a segment is Spark's batch id, and the spool has no gap.
- Epochs are stored in turn, although Spark Connect may repeat a call while the call before still runs.
- Spark commits an id only after its segment's head is stored. So an id that Spark does not repeat is in the storage,
  perhaps by the hand of an older driver that went on for a moment; it is looked for before an error is raised.
"""

import threading
import time

import numpy as np

from holdfast import failpoints
from holdfast.errors import JobRefused
from holdfast.printable import logger
from holdfast.sources.base import EnumeratorContext
from holdfast.sources.spark_stream.epoch_calls import StoreRows
from holdfast.sources.spark_stream.epoch_head import EpochHead
from holdfast.sources.spark_stream.storing import part_of
from holdfast.sources.spooled.chain import follow, number_of, stored_segments
from holdfast.sources.spooled.segments import Segment, encode_segment, new_name
from holdfast.sources.spooled.spool import Spool, SpoolPosition
from holdfast.storage.counted import note
from holdfast.storage.store import ObjectInfo

log = logger(__name__)

ROOM_LOOK_S = 0.1
JAVA_TRACE = "\n\tat "


class EpochNotStored(Exception):
    """Tells Spark that an epoch does not count; Spark then does not commit it."""


class EpochWriter:
    """Writer of the epochs of a source into its spool. `store` runs on a thread that Spark's query waits for.

    `bytes_max` bounds the stored rows that no checkpoint is past; None: no bound.
    """

    def __init__(self, context: EnumeratorContext, spool: Spool[EpochHead], bytes_max: int | None) -> None:
        self._context = context
        self._spool = spool
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._query = ""
        self.passed = SpoolPosition(0, 0)
        """The place of the last completed checkpoint."""
        self.problem: JobRefused | None = None
        """The reason why no epoch can be stored any more."""
        self.message = ""
        """Says why no epoch is taken at the moment; empty while all is well."""
        self.stored_s = time.monotonic()
        """Time of the last epoch, by the machine's clock."""

    def begin(self, query: str) -> None:
        """Let epochs in; `query` is the id that Spark's checkpoint gives its query."""
        self._query = query
        self._ready.set()

    def stop(self) -> None:
        """Let no further epoch in, and end the wait of an epoch."""
        self._stopping.set()
        self._ready.set()

    def store(self, rows: StoreRows, batch_id: int) -> None:
        """Store an epoch that `foreachBatch` gives. Returns once it counts; an error makes Spark repeat it."""
        self._ready.wait()
        try:
            with self._lock:
                self._store(rows, batch_id)
        except Exception as error:
            # Spark's own message would have the traces of both languages in it, some of them twice.
            raise EpochNotStored(first_lines(error)) from None

    def _store(self, rows: StoreRows, batch_id: int) -> None:
        if batch_id > self._spool.end.segment:
            self._adopt()
        expected = self._spool.end.segment
        if batch_id < expected:
            log.info("source %r: epoch %d is stored already, and passed over", self._context.source, batch_id)
            return
        if batch_id > expected:
            self.problem = self._missing(expected, batch_id)
            raise self.problem
        self._wait_for_room()
        self._write(rows, batch_id)
        self.stored_s = time.monotonic()

    def _write(self, rows: StoreRows, batch_id: int) -> None:
        name = new_name(self._context.epoch, self._context.source, batch_id)
        stored = rows(name, batch_id, self._query)
        failpoints.hit("stream.epoch.parts")
        parts = {str(place): part_of(row) for place, row in enumerate(stored)}
        size_bytes = sum(part.offset + part.length for part in parts.values())
        note(self._context.store, {"storePuts": len(parts), "storePutBytes": size_bytes}, by_senders=True)
        count = sum(part.rows for part in parts.values())
        ends = np.array([count], np.int32).tobytes()
        head = EpochHead(number=batch_id, sequences=count, ends=ends, parts=parts, query=self._query, named=name)
        data = encode_segment(head, {})
        if self._stopping.is_set():
            raise EpochNotStored("the reader ends")
        self._context.store.put(name, data)
        failpoints.hit("stream.epoch.stored")
        self._spool.append(Segment(name, head, len(data)))

    def _wait_for_room(self) -> None:
        while self._bytes_max is not None and self._spool.size > self._bytes_max and not self._stopping.is_set():
            self.message = (
                f"the spool is full with {self._spool.size >> 20} MB (spool_bytes_max): Spark's next epoch waits until "
                "a checkpoint completes"
            )
            self._stopping.wait(ROOM_LOOK_S)
        self.message = ""
        if self._stopping.is_set():
            raise EpochNotStored("the reader ends")

    # --- the chain ----------------------------------------------------------------------------------------------------

    def take_up(self, first: int, named: list[str]) -> list[Segment[EpochHead]]:
        """Begin the spool at a number with the stored epochs from there on, and return them.

        `named`: objects of the record from which a start begins; rows of these count, since positions lie in them.
        """
        context = self._context
        listed = stored_segments(context.store, context.source)
        chain = follow(context.store, context.source, listed, first, None, EpochHead, named)
        self._spool.reset(first, chain)
        return chain

    def drop_strays(self) -> None:
        """Delete objects of epochs before the end of the spool that are not in it.

        Objects of the next epoch stay: an older driver that goes on for a moment may be about to make them count.
        """
        listed = stored_segments(self._context.store, self._context.source)
        kept = set(self._spool.names(SpoolPosition(0, 0)))
        end = self._spool.end.segment
        self._context.store.delete([info.name for info in listed if self._is_stray(info, kept, end)])

    def _is_stray(self, info: ObjectInfo, kept: set[str], end: int) -> bool:
        number = number_of(info.name, self._context.source)
        return info.name not in kept and number is not None and number < end

    def _adopt(self) -> None:
        """Take in epochs that an older driver stored after this driver began."""
        context, last = self._context, self._spool.last
        listed = stored_segments(context.store, context.source)
        for segment in follow(context.store, context.source, listed, self._spool.end.segment, last, EpochHead):
            if segment.head.query == self._query:
                self._spool.append(segment)

    def _missing(self, expected: int, found: int) -> JobRefused:
        lost = f"epoch {expected}" if found == expected + 1 else f"epochs {expected} to {found - 1}"
        return JobRefused(
            f"source {self._context.source!r}: Spark's checkpoint goes on with epoch {found}, and {lost} of query "
            f"{self._query} are not in this job's storage: either another job read them, or a newer checkpoint was "
            "past them and they were deleted. Go on from the newest checkpoint (no start_from), or start on a new "
            "storage with a new checkpoint_location"
        )


def first_lines(error: Exception) -> str:
    """Return the message of an error, without a trace of Spark's JVM."""
    return str(error).partition(JAVA_TRACE)[0].strip()[:2_000] or type(error).__name__
