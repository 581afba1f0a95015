"""Readers of stored bytes: sizes, nesting, and Arrow data that points elsewhere, with right checksums."""

import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import CorruptObject
from holdfast.formats.blocks import KEY_GROUP_COLUMN, BlockEntry
from holdfast.formats.handles import LogPiece
from holdfast.formats.history import HISTORY_MAGIC, HISTORY_VERSION, decode_history
from holdfast.formats.log_objects import PIECE_MAGIC, VERSION, ChangeSetEntry, Directory, read_piece
from holdfast.formats.manifests import decode_manifest
from holdfast.journal.codec import (
    StoredJob,
    StoredSavepoint,
    decode_job,
    decode_record,
    decode_savepoint,
    encode_job,
    encode_savepoint,
)
from holdfast.journal.records import CheckpointRecord
from holdfast.sinks.staging import decode_one
from holdfast.sources.files.discovery_chunks import decode as decode_chunk
from holdfast.storage import checksum, reading
from holdfast.storage.copying import CopiedObject
from holdfast.storage.framing import frame

DEEP = b"\x81\xa1z" + b"\x91" * 100_000 + b"\xc0"


def stream(rows: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


def texts(count: int = 100) -> pa.RecordBatch:
    return pa.record_batch(
        {KEY_GROUP_COLUMN: pa.array([0] * count, pa.int32()), "k": [f"key {n}" for n in range(count)]}
    )


def piece_of(data: bytes, sqns: tuple[int, int] = (0, 1)) -> tuple[memoryview, LogPiece]:
    entry = BlockEntry(0, 8, len(data), checksum.crc32(data))
    directory = Directory("o", "t", 0, 8, [ChangeSetEntry(*sqns, 0, 1)], [entry])
    made = frame(PIECE_MAGIC, VERSION, msgspec.msgpack.encode(directory)) + data
    return memoryview(made), LogPiece("dstl/x", 0, len(made), 0, 1, 0, 8)


def read(data: bytes, **changed: Any) -> list[pa.RecordBatch]:
    return list(read_piece(*piece_of(data, **changed), "o", "t", 0, 8))


def with_offsets(rows: pa.RecordBatch, offsets: list[int]) -> pa.RecordBatch:
    validity, found, data = rows.column(1).buffers()
    changed = np.frombuffer(found, np.int32).copy()
    changed[50 : 50 + len(offsets)] = offsets
    column = pa.Array.from_buffers(pa.string(), len(rows), [validity, pa.py_buffer(changed.tobytes()), data])
    return pa.RecordBatch.from_arrays([rows.column(0), column], schema=rows.schema)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("offsets", [[1_900_000_000, 1_900_000_020], [-5], [10, 5]])
def test_offsets_outside_of_a_column_are_refused(compression: str | None, offsets: list[int]) -> None:
    assert read(stream(texts(), compression))[0].equals(texts())
    with pytest.raises(CorruptObject, match="dstl/x, piece at 0: a block is no Arrow stream"):
        read(stream(with_offsets(texts(), offsets), compression))


@pytest.mark.parametrize("claimed", [1 << 45, 1 << 33, -7])
def test_a_compressed_buffer_that_claims_too_much_is_refused_before_it_is_allocated(claimed: int) -> None:
    data = bytearray(stream(texts(), "zstd"))
    at = data.index(struct.pack("<q", 400) + bytes.fromhex("28b52ffd"))
    data[at : at + 8] = struct.pack("<q", claimed)
    with pytest.raises(CorruptObject, match="a block is no Arrow stream"):
        read(bytes(data))


def test_a_block_that_inflates_to_more_than_is_allowed_is_refused() -> None:
    rows = pa.record_batch({KEY_GROUP_COLUMN: pa.array(np.zeros(20_000_000, np.int32))})
    data = stream(rows, "zstd")
    assert len(data) < 100_000 and reading.inflated_bytes_max(len(data)) < rows.nbytes
    with pytest.raises(CorruptObject, match="inflate to more than"):
        read(data)


@pytest.mark.parametrize(
    "first",
    [
        pa.record_batch({"other": pa.array([0], pa.int32())}),
        pa.record_batch({KEY_GROUP_COLUMN: ["text"]}),
        pa.record_batch({KEY_GROUP_COLUMN: pa.array([None], pa.int32())}),
        pa.record_batch({KEY_GROUP_COLUMN: pa.array([8], pa.int32())}),
        pa.record_batch({KEY_GROUP_COLUMN: pa.array([3, 2], pa.int32())}),
    ],
)
def test_a_block_without_sorted_key_groups_of_its_own_is_refused(first: pa.RecordBatch) -> None:
    with pytest.raises(CorruptObject, match="dstl/x, piece at 0: a block"):
        read(stream(first))


def test_a_piece_of_other_sqns_or_other_bytes_than_its_handle_names_is_refused() -> None:
    with pytest.raises(CorruptObject, match=r"SQNs 0 to 1.*bounds \[5, 6\]"):
        read(stream(texts()), sqns=(5, 6))
    data, piece = piece_of(stream(texts()))
    with pytest.raises(CorruptObject, match="holds other bytes than the checkpoint refers to"):
        list(read_piece(data, msgspec.structs.replace(piece, head_crc=7), "o", "t", 0, 8))


@pytest.mark.parametrize(
    "decoded",
    [
        lambda: decode_manifest("x", frame(b"HFMF", 3, zlib.compress(DEEP))),
        lambda: decode_chunk("x", frame(b"HFSC", 2, zlib.compress(DEEP))),
        lambda: decode_record("x", frame(b"HFJR", 8, b"\x82\xa4kind\xa8takeover" + DEEP[1:])),
        lambda: decode_history("x", frame(HISTORY_MAGIC, HISTORY_VERSION, DEEP)),
        lambda: decode_one(b"\x82\xa4kind\xa6rows-1" + DEEP[1:], "x"),
    ],
)
def test_nesting_without_end_is_refused(decoded: Any) -> None:
    with pytest.raises(CorruptObject):
        decoded()


def test_a_manifest_that_inflates_to_much_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "INFLATED_BYTES", 1 << 20)
    deflated = zlib.compress(bytes(5 << 20), 9)
    with pytest.raises(CorruptObject, match="inflate to more than the 1"):
        decode_manifest("m", frame(b"HFMF", 3, deflated))
    with pytest.raises(CorruptObject, match="ends too early"):
        decode_manifest("m", frame(b"HFMF", 3, zlib.compress(b"some text")[:-5]))


@pytest.mark.parametrize("job_id", ["../../../victim", "/victim", "", "x" * 5000, "a\0b", "A" * 32, "0f" * 16 + "\n"])
def test_a_job_id_of_another_form_is_refused(job_id: str) -> None:
    with pytest.raises(CorruptObject, match="job id"):
        decode_job("job", encode_job(StoredJob(job_id, 1, 128, "j")))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["journal/000000000009", "job", "../victim", "/etc/passwd"])
def test_a_savepoint_copies_nothing_but_state_and_positions_into_a_storage(name: str) -> None:
    record = CheckpointRecord(1, 1, 1, 1, 1, {}, {}, [], {}, {}, 1, 8)
    stored = StoredSavepoint("0f" * 16, StoredJob("0f" * 16, 1, 8), "x", 2, record, [CopiedObject(name, 1, 2)])
    with pytest.raises(CorruptObject, match=r"savepoint: lists .* among its copies"):
        decode_savepoint("savepoint", encode_savepoint(stored))


@pytest.mark.parametrize("epoch", [-1, 10**12])
def test_an_epoch_that_no_name_has_room_for_is_refused(epoch: int) -> None:
    payload = msgspec.msgpack.encode({"kind": "takeover", "epoch": epoch, "nonce": "x"})
    with pytest.raises(CorruptObject, match=r"epoch"):
        decode_record("x", frame(b"HFJR", 8, payload))
