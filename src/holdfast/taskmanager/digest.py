"""The digest of a section of a stream, which a sender claims and a TaskManager compares before it processes.

It finds batches that are missing, doubled, reordered, or from another attempt. It is not a checksum of every byte (the
transport has one). From each record batch it takes the number of rows, each column's null count and about 64 evenly
spaced values (for variable-width columns their lengths), so that its cost does not grow with the rows: a few
microseconds a column. Batches arrive as they were sent, so both sides see the same batches.
"""

import struct
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SAMPLES = 64
_ROWS = struct.Struct("<qq")
_SECTION = struct.Struct("<qqqI")

Section = tuple[str, int, int]
"""Operator, input number, subtask: rows of the same section share a digest."""


def fold(digest: int, rows: pa.RecordBatch) -> int:
    """Return the digest after `rows`; the first digest is 0. It does not depend on the memory layout of rows (offsets,
    padding)."""
    step = max(1, rows.num_rows // SAMPLES)
    for column in rows.columns:
        digest = zlib.crc32(_ROWS.pack(rows.num_rows, column.null_count), digest)
        sample = _sample(column, step)
        if sample is not None:
            digest = zlib.crc32(sample.tobytes(), digest)
    return digest


def of_sections(sections: Mapping[Section, tuple[int, int]]) -> tuple[int, int]:
    """Rows and digest of a whole stream, from the rows and digest of each of its sections."""
    digest = 0
    for (operator, number, subtask), (rows, value) in sorted(sections.items()):
        digest = zlib.crc32(_SECTION.pack(number, subtask, rows, value), zlib.crc32(operator.encode(), digest))
    return sum(rows for rows, _ in sections.values()), digest


def _sample(column: pa.Array, step: int) -> npt.NDArray[np.generic] | None:
    kind = column.type
    if len(column) == 0:
        return None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _lengths(column, np.dtype(np.int32), step)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _lengths(column, np.dtype(np.int64), step)
    if not pa.types.is_primitive(kind) or pa.types.is_boolean(kind) or column.null_count:
        return None
    width = kind.bit_width // 8
    values = np.frombuffer(column.buffers()[1], dtype=f"V{width}", count=column.offset + len(column))
    return values[column.offset :: step]


def _lengths(column: pa.Array, offset_type: np.dtype[np.signedinteger], step: int) -> npt.NDArray[np.generic]:
    first, stop = column.offset, column.offset + len(column)
    offsets = np.frombuffer(column.buffers()[1], dtype=offset_type, count=stop + 1)
    lengths: npt.NDArray[np.generic] = offsets[first + 1 : stop + 1 : step] - offsets[first:stop:step]
    return lengths.astype(np.int64)
