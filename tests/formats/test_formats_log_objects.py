"""The changelog's stored format: round trips, ranges, refusals, golden files, damaged bytes."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import CorruptObject
from holdfast.formats.blocks import encode_blocks
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import (
    OBJECT_HEADER,
    VERSION,
    ChangeSet,
    LogId,
    check_object,
    encode_pieces,
    read_piece,
)
from holdfast.state.table import merge_changes, stored_schema
from holdfast.storage.framing import HEADER_BYTES, frame

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = stored_schema(
    pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64()), ("name", pa.string()), ("x", pa.float64())])
)
LOG = LogId("count", "state", 0, 16)


def changes(rows: list[tuple[int, bool, int, int | None, str | None, float | None]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * 6
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def some_changes(seed: int, rows: int, start: int = 0, stop: int = 16) -> pa.RecordBatch:
    rng = random.Random(seed)
    groups = sorted(rng.randrange(start, stop) for _ in range(rows))
    return changes([(g, rng.random() < 0.1, i, rng.randrange(9), "é" * (i % 3), None) for i, g in enumerate(groups)])


def stored(pieces: list, name: str = "dstl/o") -> tuple[bytes, list[LogPiece]]:
    data, handles = bytearray(OBJECT_HEADER), []
    for piece in pieces:
        handles.append(piece.at(name, len(data)))
        data += b"".join(piece.buffers)
    return bytes(data), handles


def read(data: bytes, piece: LogPiece, start: int = 0, stop: int = 16, log: LogId = LOG) -> list[pa.RecordBatch]:
    check_object(piece.object, memoryview(data))
    own = memoryview(data)[piece.offset : piece.offset + piece.length]
    return list(read_piece(own, piece, log.operator, log.table, start, stop))


def rows_of(batches: list[pa.RecordBatch]) -> list[dict]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_rows_that_compression_does_not_make_smaller_are_stored_as_they_are(codec):
    schema = stored_schema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.binary())]))
    rng = random.Random(5)

    def stored_size(value) -> tuple[int, int]:
        columns = [[i // 25 for i in range(400)], [False] * 400, list(range(400)), [value(i) for i in range(400)]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        blocks = list(encode_blocks([rows], 0, 16, codec, 100_000))
        found = [pa.ipc.open_stream(block.data).read_all() for block in blocks]
        assert pa.concat_tables(found).to_pylist() == rows.to_pylist()
        return sum(block.data.size for block in blocks), rows.nbytes

    stored_bytes, plain_bytes = stored_size(lambda i: rng.randbytes(1000))
    assert plain_bytes <= stored_bytes < 1.05 * plain_bytes
    stored_bytes, plain_bytes = stored_size(lambda i: bytes([i % 7]) * 1000)
    assert stored_bytes < 0.2 * plain_bytes


def test_a_piece_gives_back_its_change_sets_in_order_and_its_schema():
    sets = [ChangeSet(i, i + 1, i, i + 1, some_changes(i, 20)) for i in range(3)]
    data, [piece] = stored(list(encode_pieces(LOG, sets)))
    found = read(data, piece)
    assert rows_of(found) == rows_of([each.rows for each in sets])
    assert found[0].schema.equals(SCHEMA, check_metadata=True)
    assert (piece.sqn_start, piece.sqn_stop, piece.key_group_start, piece.key_group_stop) == (0, 3, 0, 16)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize(("start", "stop"), [(0, 16), (0, 1), (5, 9), (15, 16)])
def test_a_reader_gets_exactly_its_key_groups_from_blocks_of_any_size(codec, start, stop):
    rows = some_changes(1, 500)
    pieces = list(encode_pieces(LOG, [ChangeSet(0, 1, 0, 1, rows)], codec=codec, block_bytes=1000))
    data, handles = stored(pieces)
    found = rows_of([batch for piece in handles for batch in read(data, piece, start, stop)])
    assert found == [row for row in rows.to_pylist() if start <= row["__key_group"] < stop]


def test_a_log_that_is_too_large_for_an_object_becomes_pieces_that_divide_the_key_groups():
    rows = some_changes(2, 4000)
    pieces = list(encode_pieces(LOG, [ChangeSet(0, 1, 0, 1, rows)], block_bytes=5000, piece_bytes_max=9000))
    assert len(pieces) > 3
    assert all(piece.length <= 9000 for piece in pieces)
    assert [p.key_group_stop for p in pieces[:-1]] == [p.key_group_start for p in pieces[1:]]
    assert (pieces[0].key_group_start, pieces[-1].key_group_stop) == (0, 16)
    data, handles = stored(pieces)
    assert rows_of([batch for piece in handles for batch in read(data, piece)]) == rows.to_pylist()


@pytest.mark.parametrize("block_bytes", [1, 1000, 10**6])
def test_merged_change_sets_give_the_last_row_of_each_key_in_one_change_set(block_bytes):
    sets = []
    for sqn in range(4):
        group = np.arange(100) // 10
        arrays = [pa.array(group, pa.int32()), pa.array(group == sqn), pa.array(np.arange(100))]
        rest = [pa.array([sqn] * 100), pa.array([str(sqn)] * 100), pa.array([0.5] * 100)]
        chosen = pa.array(np.flatnonzero(np.arange(100) % (sqn + 1) == 0))
        sets.append(
            ChangeSet(sqn, sqn + 1, sqn, sqn + 1, pa.RecordBatch.from_arrays(arrays + rest, schema=SCHEMA).take(chosen))
        )
    data, [piece] = stored(list(encode_pieces(LOG, sets, merge=merge_changes, block_bytes=block_bytes)))
    expected = {row["k"]: row for each in sets for row in each.rows.to_pylist()}
    found = rows_of(read(data, piece))
    assert {row["k"]: row for row in found} == expected
    assert len(found) == len(expected)


def test_change_sets_outside_the_pieces_sqn_range_are_dropped():
    sets = [ChangeSet(i, i + 1, i, i + 1, changes([(0, False, i, i, None, None)])) for i in range(5)]
    data, [piece] = stored(list(encode_pieces(LOG, sets)))
    narrowed = LogPiece(piece.object, piece.offset, piece.length, 1, 3, 0, 16)
    assert [row["k"] for row in rows_of(read(data, narrowed))] == [1, 2]


def test_a_merged_change_set_is_replayed_whole_from_below_and_never_divided_from_above():
    merged = [ChangeSet(1, 3, 7, 9, changes([(0, False, 1, 1, None, None)]))]
    data, [piece] = stored(list(encode_pieces(LOG, merged)))
    assert len(rows_of(read(data, LogPiece(piece.object, piece.offset, piece.length, 2, 3, 0, 16)))) == 1
    with pytest.raises(CorruptObject, match=r"dstl/o.*SQN 2.*1 to 3"):
        read(data, LogPiece(piece.object, piece.offset, piece.length, 1, 2, 0, 16))


def test_key_groups_outside_the_pieces_own_are_dropped_whatever_is_asked_for():
    data, [piece] = stored(list(encode_pieces(LOG, [ChangeSet(0, 1, 0, 1, some_changes(3, 100))])))
    own = LogPiece(piece.object, piece.offset, piece.length, 0, 1, 4, 8)
    assert {row["__key_group"] for row in rows_of(read(data, own))} <= set(range(4, 8))


def test_the_log_of_another_table_is_refused():
    data, [piece] = stored(list(encode_pieces(LOG, [ChangeSet(0, 1, 0, 1, some_changes(4, 5))])))
    with pytest.raises(CorruptObject, match=r"dstl/o.*count\.state.*other\.state"):
        read(data, piece, log=LogId("other", "state", 0, 16))


@pytest.mark.parametrize("groups", [[3, 2], [0, 16], [-1, 3]])
def test_changes_that_are_not_sorted_or_lie_outside_the_log_are_refused_when_written(groups):
    rows = changes([(group, False, 1, 1, None, None) for group in groups])
    with pytest.raises(ValueError, match="key groups"):
        list(encode_blocks([rows], 0, 16, "lz4", 1000))


def object_to_damage() -> tuple[bytes, list[LogPiece]]:
    sets = [ChangeSet(i, i + 1, i, i + 1, some_changes(i, 40)) for i in range(2)]
    other = [ChangeSet(5, 6, 5, 6, some_changes(9, 10))]
    return stored([*encode_pieces(LOG, sets, block_bytes=800), *encode_pieces(LOG, other)])


def test_every_flipped_bit_is_noticed_with_the_objects_name():
    data, pieces = object_to_damage()
    expected = [rows_of(read(data, piece)) for piece in pieces]
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    positions = {
        *range((len(OBJECT_HEADER) + HEADER_BYTES) * 8),
        *(rng.randrange(len(data) * 8) for _ in range(600)),
    }
    for position in positions:
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        noticed = 0
        for piece, rows in zip(pieces, expected, strict=True):
            try:
                assert rows_of(read(bytes(damaged), piece)) == rows
            except CorruptObject as error:
                assert "dstl/o" in str(error)
                noticed += 1
        assert noticed, f"bit {position}"


def test_every_truncation_is_noticed_with_the_objects_name():
    data, pieces = object_to_damage()
    for length in range(0, len(data), 3):
        with pytest.raises(CorruptObject, match="dstl/o"):
            [read(data[:length], piece) for piece in pieces]


def test_a_handle_that_names_other_bytes_is_refused():
    data, pieces = object_to_damage()
    rng = random.Random(7)
    for _ in range(500):
        piece = pieces[rng.randrange(len(pieces))]
        offset, length = rng.randrange(len(data)), rng.randrange(len(data))
        if (offset, length) == (piece.offset, piece.length):
            continue
        with pytest.raises(CorruptObject, match="dstl/o"):
            read(data, LogPiece(piece.object, offset, length, 0, 9, 0, 16))


def test_another_format_version_is_refused_by_number():
    with pytest.raises(CorruptObject, match=rf"dstl/o.*version {VERSION + 1}.*expected {VERSION}"):
        check_object("dstl/o", memoryview(frame(b"HFDS", VERSION + 1, b"")))
    newer = frame(b"HFLP", VERSION + 1, b"?")
    with pytest.raises(CorruptObject, match=rf"dstl/o.*version {VERSION + 1}.*expected {VERSION}"):
        list(read_piece(memoryview(newer), LogPiece("dstl/o", 0, len(newer), 0, 1, 0, 16), "count", "state", 0, 16))


def test_the_golden_object_is_read_as_it_was_written():
    """`golden/changelog-1.bin` was written by format version 1; every later version reads it."""
    data = (GOLDEN / "changelog-1.bin").read_bytes()
    piece = LogPiece("golden", 16, len(data) - 16, 3, 5, 0, 16)
    assert rows_of(read(data, piece)) == rows_of(golden_sets())


def golden_sets() -> list[pa.RecordBatch]:
    return [
        changes([(0, False, 1, 10, "a", 0.5), (7, True, 2, None, None, None)]),
        changes([(7, False, 2, -1, "ü", float("inf")), (15, False, 3, None, "", None)]),
    ]
