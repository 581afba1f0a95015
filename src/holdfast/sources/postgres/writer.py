"""Writing segments: from decoded rows to stored, chained objects. Only the reader's thread uses it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import StorageError
from holdfast.ids import Epoch
from holdfast.printable import logger
from holdfast.sources.postgres.slot_head import SlotHead
from holdfast.sources.spooled.segments import Segment, decode_head, encode_segment, new_name
from holdfast.sources.spooled.spool import Spool
from holdfast.storage.store import ObjectStore

log = logger(__name__)

RETRY_S = 1.0
"""Pause in seconds before a segment that could not be stored is tried again."""


@dataclass(frozen=True)
class SegmentContent:
    """Content of a segment to be written; fields as in `SlotHead`. `end_lsn` None: the end of the segment before."""

    sequences: int
    ends: list[int]
    tables: Mapping[str, list[pa.RecordBatch]] = field(default_factory=dict)
    end_lsn: int | None = None
    open_xid: int = 0
    open_changes: int = 0
    snapshot: str = ""
    chunks: Mapping[str, int | str | None] | None = None


class SegmentWriter:
    """Writer of a source's segments in an epoch.

    `wait(seconds)` pauses, and returns True if the reader shall end; `trouble` is called with every failure of the
    store, and with None when the failure has ended.
    """

    def __init__(
        self,
        store: ObjectStore,
        epoch: Epoch,
        source: str,
        spool: Spool[SlotHead],
        wait: Callable[[float], bool],
        trouble: Callable[[StorageError | None], None],
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._source = source
        self._spool = spool
        self._wait = wait
        self._trouble = trouble
        self.system = ""
        self.slot = ""

    def write(self, piece: SegmentContent) -> bool:
        """Store a piece as the next segment; return False if the reader shall end before that is possible."""
        before = self._spool.last
        head = SlotHead(
            number=self._spool.end.segment,
            previous="" if before is None else before.uuid,
            system=self.system,
            slot=self.slot,
            sequences=piece.sequences,
            ends=np.array(piece.ends, np.int32).tobytes(),
            end_lsn=_end_lsn(piece, before),
            open_xid=piece.open_xid,
            open_changes=piece.open_changes,
            snapshot=piece.snapshot,
            parts={},
            chunks=dict(piece.chunks if piece.chunks is not None else {} if before is None else before.head.chunks),
        )
        tables = {table: pa.Table.from_batches(batches) for table, batches in piece.tables.items() if batches}
        while True:
            # A new name for each attempt, because a put that was reported as failed may land later.
            name = new_name(self._epoch, self._source, head.number)
            data = encode_segment(msgspec.structs.replace(head, named=name), tables)
            try:
                self._store.put(name, data)
                break
            except StorageError as error:
                log.warning("source %r: segment %d could not be stored: %s", self._source, head.number, error)
                self._trouble(error)
                if self._wait(RETRY_S):
                    return False
        self._trouble(None)
        self._spool.append(Segment(name, decode_head(name, data, SlotHead), len(data)))
        return True


def _end_lsn(piece: SegmentContent, before: Segment[SlotHead] | None) -> int:
    if piece.end_lsn is not None:
        return piece.end_lsn
    return 0 if before is None else before.head.end_lsn
