"""The merge of stored pieces of a log: they are read back, and their rows are stored as one piece.

    run of ranges ─► read ─► the last row of each key ─► stored as a piece of a log, in an object of its own

It runs beside batches and checkpoints, as materializations do. `changelog.merging` chooses the run, and the writer
replaces it by the new piece.
"""

from collections.abc import Sequence

import pyarrow as pa

from holdfast.changelog.merging import MERGED_BYTES_MAX
from holdfast.changelog.ranges import Range, RangePart
from holdfast.formats.blocks import BLOCK_BYTES
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import OBJECT_HEADER, ChangeSet, LogId, encode_pieces, read_piece
from holdfast.state.table import merge_changes
from holdfast.uploads.uploader import Uploader


def store_merged(log: LogId, run: Sequence[Range], schema: pa.Schema, uploader: Uploader) -> list[LogPiece]:
    """Store the changes of neighbouring ranges as one change set; return its pieces, whose objects have one user.

    `schema` is the schema of the table's stored rows. Objects are released again after an error.

    Raises
    ------
    StorageError, CorruptObject
        A piece cannot be read, or the new one cannot be stored.
    CheckpointFailed
        The TaskManager is closing.
    """
    parts = [piece for each in run for piece in RangePart(each, each.sqn_start, each.sqn_stop).pieces()]
    uploader.wait_for_checkpoints(sum(each.length for each in parts))
    groups = log.operator, log.table, log.key_group_start, log.key_group_stop
    rows: list[pa.RecordBatch] = []
    data = uploader.read(parts)[::-1]
    for piece in parts:  # the bytes of a piece go once its rows are there
        rows += read_piece(memoryview(data.pop()), piece, *groups)
    place = run[0].sqn_start, run[-1].sqn_stop, run[0].batch_start, run[-1].batch_stop
    changes = [ChangeSet(*place, each) for each in rows or [pa.RecordBatch.from_pylist([], schema)]]
    stored: list[LogPiece] = []
    try:
        for made in encode_pieces(
            log,
            changes,
            merge=merge_changes,
            codec="zstd",
            block_bytes=min(BLOCK_BYTES, MERGED_BYTES_MAX // 2),
            piece_bytes_max=MERGED_BYTES_MAX,
        ):
            name = uploader.put_merged(b"".join([OBJECT_HEADER, *made.buffers]))
            stored.append(made.at(name, len(OBJECT_HEADER)))
    except BaseException:
        uploader.release(piece.object for piece in stored)
        raise
    return stored
