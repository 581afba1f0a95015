"""How requests are encoded."""

import pyarrow as pa
import pytest

from holdfast.formats.blocks import Compression
from holdfast.formats.log_objects import ChangeSet, LogId, encode_pieces
from holdfast.state.table import stored_schema
from holdfast.uploads.packing import DENSE_BYTES_MAX, PersistRequest

LOG = LogId("op", "state", 0, 4)
SCHEMA = stored_schema(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))


@pytest.mark.parametrize(("rows_max", "codec", "other"), [(1_000, "zstd", "lz4"), (10_000, "lz4", "zstd")])
def test_small_requests_are_compressed_by_zstandard_and_large_ones_by_lz4(
    rows_max: int, codec: Compression, other: Compression
):
    columns = [[0] * rows_max, [False] * rows_max, range(rows_max), range(rows_max)]
    arrays = [pa.array(each, kind) for each, kind in zip(columns, SCHEMA.types, strict=True)]
    rows = pa.record_batch(arrays, schema=SCHEMA)
    assert (rows.nbytes <= DENSE_BYTES_MAX) == (codec == "zstd")
    changes = [ChangeSet(0, 1, 0, 1, rows)]
    (made,) = PersistRequest(LOG, changes, None, is_of_cut=True).encode(1 << 20)
    lengths = {each: next(encode_pieces(LOG, changes, codec=each)).length for each in (codec, other)}
    assert made.length == lengths[codec] != lengths[other]
