"""Stored pieces of a log, merged: their number stays bounded although the table is not stored anew.

    oldest                                                      newest
    large │ merged twice │ merged once … once │ small small small … │ left: followers find their place by them
                          └──── the group with the fewest merges that is worth a request ────┘
                                  read ──► last row of each key ──► one piece, in their place

A table that is stored as a whole costs as many bytes as it has, however few of its rows have changed. Merging costs the
bytes of the changes alone. Pieces that were merged equally often are merged together, so that a change is stored once
more for each step in which the log grows by a factor, until it is in a piece that is large. Only changes of a completed
checkpoint are merged: no cut and no rewind divides them. The old pieces are held until a checkpoint completed that was
cut after the merge: those that were cut before name them. A merge that fails changes nothing. This module does not own
the log's entries.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from holdfast.changelog.log_size import LARGE_BYTES
from holdfast.changelog.ranges import Range, RangePart
from holdfast.changelog.writer import ChangelogWriter
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import OBJECT_HEADER, ChangeSet, EncodedPiece, LogId, encode_pieces, read_piece
from holdfast.ids import BatchNumber
from holdfast.state.table import merge_changes
from holdfast.uploads.uploader import Uploader

GROUP_BYTES = 4 * LARGE_BYTES
"""The size of a group from which it is merged, however few pieces it has. A higher value takes more memory, of which a
merge needs several times as much, and makes fewer and larger pieces."""
FULL = 0.625
"""The share of `log_handles_max` at which a group is merged. The rest is room for the pieces that come meanwhile."""
LEAST_DIVISOR = 8
"""Divisor of `log_handles_max` for the fewest pieces that are merged at once, and for the newest pieces, which stay: a
follower that lags behind by no more than these goes on with the log."""


def group_to_merge(stored: Sequence[Range], handles_max: int, late: bool) -> Sequence[Range]:
    """The ranges to merge now; none if there is no need.

    `stored` are ranges in order that follow each other. `late`: a group is merged however small it is.
    """
    least = max(2, handles_max // LEAST_DIVISOR)
    small = _small(stored[: len(stored) - max(1, handles_max // LEAST_DIVISOR)])
    full = len(small) >= FULL * handles_max
    for merges in sorted({each.merges for each in small}):
        start = next(at for at, each in enumerate(small) if all(later.merges <= merges for later in small[at:]))
        group = _within(small[start:], 2 * GROUP_BYTES)
        if len(group) < 2:
            continue
        if late or (full and len(group) >= least) or sum(each.stored_bytes for each in group) >= GROUP_BYTES:
            return group
    return ()


def merge(
    log: LogId, ranges: Sequence[Range], read: Callable[[LogPiece], memoryview]
) -> tuple[bytes, EncodedPiece] | None:
    """Read ranges, and encode an object with their changes: the last row of each key. Returns the object and its piece,
    or None if the ranges have no rows.

    Raises `StorageError` or `CorruptObject`.
    """
    groups = log.key_group_start, log.key_group_stop
    found = [
        ChangeSet(each.sqn_start, each.sqn_stop, each.batch_start, each.batch_stop, rows)
        for each in ranges
        for piece in RangePart(each, each.sqn_start, each.sqn_stop).pieces(each.pieces or ())
        for rows in read_piece(read(piece), piece, log.operator, log.table, *groups)
    ]
    if not found:
        return None
    first, last = ranges[0], ranges[-1]
    found[0] = replace(found[0], sqn_start=first.sqn_start, batch_start=first.batch_start)
    found[-1] = replace(found[-1], sqn_stop=last.sqn_stop, batch_stop=last.batch_stop)
    (piece,) = encode_pieces(log, found, merge=merge_changes, codec="zstd", piece_bytes_max=sys.maxsize)
    return b"".join([OBJECT_HEADER, *piece.buffers]), piece


def _small(stored: Sequence[Range]) -> Sequence[Range]:
    """The newest ranges, back to the last that is large."""
    large = [at for at, each in enumerate(stored) if each.stored_bytes >= LARGE_BYTES]
    return stored[large[-1] + 1 :] if large else stored


def _within(ranges: Sequence[Range], bytes_max: int) -> Sequence[Range]:
    """The first of the ranges that are together no larger than that."""
    size = 0
    for at, each in enumerate(ranges):
        size += each.stored_bytes
        if size > bytes_max:
            return ranges[:at]
    return ranges


class Merger:
    """Merges the pieces of a table's log, one group at a time. The caller holds its lock for all calls but `start`."""

    def __init__(self, log: LogId, writer: ChangelogWriter, uploader: Uploader, handles_max: int) -> None:
        self._id = log
        self._writer = writer
        self._uploader = uploader
        self._handles_max = handles_max
        self._group: Sequence[Range] = ()
        """The ranges that are being merged."""
        self._replaced: list[tuple[BatchNumber, Sequence[Range]]] = []
        """Ranges that were replaced, each with the batch of the last cut before."""

    @property
    def running(self) -> bool:
        """True while a group is being merged."""
        return bool(self._group)

    def choose(self, from_sqn: int, completed: BatchNumber, late: bool) -> bool:
        """Choose the ranges to merge now, from `from_sqn` up to the completed cut; True if the caller is to `start`."""
        if self._group:
            return False
        self._group = group_to_merge(self._writer.stored(from_sqn, completed), self._handles_max, late)
        return bool(self._group)

    def start(self, ended: Callable[[Future[Range]], None]) -> None:
        """Merge the chosen ranges in the background. `ended` is told the range to `put`, or the error."""
        self._uploader.in_background(partial(self._merge, self._group)).add_done_callback(ended)

    def put(self, merged: Range | None, last_cut: BatchNumber) -> Sequence[Range]:
        """Put a merged range into the log, None after an error; return the ranges that the caller releases at once."""
        group, self._group = self._group, ()
        if merged is None:
            return []
        if not self._writer.replace(group, merged):
            return [merged]
        self._replaced.append((last_cut, group))
        return []

    def completed(self, batch: BatchNumber) -> Sequence[Range]:
        """Return the replaced ranges that no checkpoint names any more, now that the one at `batch` completed."""
        done = [each for cut, ranges in self._replaced if cut < batch for each in ranges]
        self._replaced = [each for each in self._replaced if each[0] >= batch]
        return done

    def held(self) -> list[str]:
        """Names of the objects of the ranges that are being merged, and of replaced ranges that are still held."""
        ranges = [self._group, *(replaced for _, replaced in self._replaced)]
        return [piece.object for each in ranges for one in each for piece in one.pieces or ()]

    def close(self) -> Sequence[Range]:
        """Return all ranges that are still held."""
        return self.completed(BatchNumber(sys.maxsize))

    def _merge(self, group: Sequence[Range]) -> Range:
        self._uploader.wait_for_checkpoints(sum(each.stored_bytes for each in group))
        pieces: list[LogPiece] = []
        made = merge(self._id, group, self._uploader.read)
        if made is not None:
            data, piece = made
            pieces = [piece.at(self._uploader.put_merged(data), len(OBJECT_HEADER))]
        self._uploader.count(mergedPieces=len(group))
        return Range.merged_of(group, pieces)
