"""Materialized parts: round trips, key groups, damaged bytes, the golden file."""

import random
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from holdfast.errors import CorruptObject
from holdfast.formats.handles import MaterializedPart
from holdfast.formats.log_objects import LogId
from holdfast.formats.snapshots import VERSION, encode_part, in_parts, read_part
from holdfast.state.table import stored_schema
from holdfast.storage.framing import frame

GOLDEN = Path(__file__).parent / "golden" / "materialized-1.bin"
SCHEMA = stored_schema(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64()), ("name", pa.string())]))
LOG = LogId("count", "state", 2, 10)


def snapshot(rows: int, seed: int = 0) -> pa.RecordBatch:
    rng = random.Random(seed)
    groups = sorted(rng.randrange(2, 10) for _ in range(rows))
    values = [
        {"__key_group": g, "__deleted": False, "k": i, "n": rng.randrange(99), "name": "ü"}
        for i, g in enumerate(groups)
    ]
    return pa.RecordBatch.from_pylist(values, schema=SCHEMA)


def read(data: bytes, part: MaterializedPart, start: int = 0, stop: int = 99, table: str = "state") -> list[dict]:
    found = read_part(memoryview(data), part, "count", table, start, stop)
    return [row for rows in found for row in rows.to_pylist()]


def test_a_snapshot_comes_back_by_key_groups_whatever_the_sizes_of_parts_and_blocks():
    rows = snapshot(500)
    pieces = [rows.slice(start, 70) for start in range(0, 500, 70)]
    parts = [encode_part(LOG, some, 5, 7, block_bytes=700) for some in in_parts(pieces, part_bytes=4000)]
    assert len(parts) > 2
    assert all(before.key_group_stop <= after.key_group_start + 1 for (_, before), (_, after) in pairwise(parts))
    assert (parts[0][1].key_group_start, parts[-1][1].key_group_stop) == (2, 10)
    assert [row for data, part in parts for row in read(data, part)] == rows.to_pylist()
    some = [row for data, part in parts for row in read(data, part, 4, 6)]
    assert some == [row for row in rows.to_pylist() if row["__key_group"] in (4, 5)]


def test_an_empty_table_has_no_parts():
    assert list(in_parts([snapshot(0)])) == []


@pytest.mark.parametrize("piece_rows", [1, 7, 300])
def test_pieces_are_put_together_or_divided_to_parts_of_about_the_size_wanted(piece_rows):
    rows = snapshot(300)
    target = rows.nbytes // 10
    parts = list(in_parts([rows.slice(start, piece_rows) for start in range(0, 300, piece_rows)], target))
    assert pa.Table.from_batches(parts).combine_chunks().to_batches() == [rows]
    assert 7 <= len(parts) <= 15
    assert all(part.nbytes < 2 * target for part in parts)


def test_the_part_of_another_table_is_refused():
    data, part = encode_part(LOG, snapshot(3), 5, 7)
    with pytest.raises(CorruptObject, match=r"count\.state.*count\.other"):
        read(data, part, table="other")


def test_every_flipped_bit_and_every_truncation_is_noticed_with_the_objects_name():
    data, part = encode_part(LOG, snapshot(50), 5, 7, block_bytes=400)
    part = msgspec.structs.replace(part, object="shared/o")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for position in {*range(128), *(rng.randrange(len(data) * 8) for _ in range(500))}:
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptObject, match="shared/o"):
            read(bytes(damaged), part)
    for length in range(0, len(data), 3):
        with pytest.raises(CorruptObject, match="shared/o"):
            read(data[:length], part)


def test_another_format_version_is_refused_by_number():
    newer = frame(b"HFMP", VERSION + 1, b"?")
    with pytest.raises(CorruptObject, match=rf"version {VERSION + 1}.*expected {VERSION}"):
        read(newer, MaterializedPart("shared/o", 0, len(newer), 0, 9))


def test_the_golden_part_is_read_as_it_was_written():
    """`golden/materialized-1.bin` was written by format version 1; every later version reads it."""
    data = GOLDEN.read_bytes()
    assert read(data, MaterializedPart("golden", 0, len(data), 2, 10)) == snapshot(5).to_pylist()
