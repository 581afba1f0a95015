"""Readers of stored bytes: sizes, nesting, and Arrow data that points elsewhere, with right checksums."""

import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import CorruptObject
from holdfast.formats.base_files import FILES_MAGIC, FileEntry, FilesDirectory, read_files
from holdfast.formats.base_files import VERSION as FILES_VERSION
from holdfast.formats.blocks import KEY_GROUP_COLUMN, BlockEntry
from holdfast.formats.handles import HEADING, LogPiece, MaterializedPart
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
from holdfast.sinks.base import Owner
from holdfast.sinks.staging import (
    StagedDeltaFile,
    StagedParquet,
    StagedRows,
    data_file,
    decode_one,
    decode_owned,
    encode,
)
from holdfast.sources.files.discovery_chunks import decode as decode_chunk
from holdfast.sources.spooled.segments import MAGIC as SEGMENT_MAGIC
from holdfast.sources.spooled.segments import SegmentHead, SegmentPart, decode_head
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


OWNER = Owner("out", "0f" * 16)
RUN = f"staging/{'0f' * 16}/{1:012d}/{1:012d}"
OUTSIDE = [
    "../x",
    f"{RUN}/../../../../../x",
    f"{RUN}/./x",
    f"{RUN}//x",
    "staging/x",
    "job",
    "/etc/passwd",
    "s3://other/x",
    f"staging/{'f0' * 16}/{1:012d}/{1:012d}/out/x",
    f"{RUN}/other/x",
    f"{RUN}/out",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_committable_that_names_a_place_without_staged_output_is_refused(name: str) -> None:
    """Staged files are copied into a table and deleted, with the rights of the job at the sink's target."""
    for one in (
        StagedRows(1, 1, 1, 1, name=name),
        StagedParquet(1, 1, 1, name=f"_{name}", folder=""),
        StagedParquet(1, 1, 1, name=name, folder=""),
    ):
        with pytest.raises(CorruptObject, match=r"expected (an object below staging/ or )?a file that"):
            decode_owned(encode(one), OWNER)


@pytest.mark.parametrize("folder", ["../", "day=1/../../", "/etc/", "./", "a//b/", "s3://other/", "a\0/"])
def test_a_committable_that_names_a_folder_outside_of_its_table_is_refused(folder: str) -> None:
    for one in (
        StagedParquet(1, 1, 1, name=f"_{RUN}/out/x.parquet", folder=folder),
        StagedDeltaFile(1, 1, f"{folder}{data_file(OWNER)}", {}, 0, "{}"),
    ):
        with pytest.raises(CorruptObject, match=r"expected (an object below staging/ or )?a file that"):
            decode_owned(encode(one), OWNER)


def test_a_committable_that_names_a_data_file_of_others_in_a_shared_table_is_refused() -> None:
    for path in (
        data_file(Owner("other", OWNER.job)),
        data_file(Owner("out", "f0" * 16)),
        "part-00000-6e6e7bc5-7e0e-4e37-8f4b-0f7f7f7f7f7f-c000.snappy.parquet",
        "_delta_log/00000000000000000000.json",
        f"part-{'0f' * 16}.snappy.parquet.crc",
    ):
        with pytest.raises(CorruptObject, match="a file that"):
            decode_owned(encode(StagedDeltaFile(1, 1, path, {}, 0, "{}")), OWNER)


def test_committables_of_staged_output_are_taken() -> None:
    for one in (
        StagedRows(1, 1, 1, 1, name=f"{RUN}/out/x.arrow"),
        StagedRows(1, 1, 1, 1, data=b"x"),
        StagedParquet(1, 1, 1, name=f"_{RUN}/out/x.parquet", folder="day=1/hour=%2E%2E/"),
        StagedDeltaFile(1, 1, f"day=a..b/{data_file(OWNER)}", {}, 0, "{}"),
        StagedDeltaFile(1, 1, f"part-{'0f' * 16}.snappy.parquet", {}, 0, "{}"),  # of an earlier release
    ):
        assert decode_owned(encode(one), OWNER) == one


SEGMENT = f"segments/{1:012d}/in/{1:012d}-{'0f' * 16}"


@pytest.mark.parametrize("name", ["job", "../x", f"journal/{1:012d}", SEGMENT, f"{SEGMENT}.{'0f' * 16}"])
def test_a_segment_that_names_other_objects_than_its_parts_is_refused(name: str) -> None:
    """The parts of a segment are deleted with it."""
    head = SegmentHead(number=1, sequences=1, ends=b"", parts={"t": SegmentPart(0, 1, 1, 1, name)})
    framed = frame(SEGMENT_MAGIC, 2, msgspec.msgpack.encode(head))
    with pytest.raises(CorruptObject, match=r"x: its head names .*, expected a part of the segment"):
        decode_head("x", framed + len(framed).to_bytes(4, "little"), SegmentHead)


@pytest.mark.parametrize("name", ["..", "../x", "/x", "a/b", "", "a\0b", "x" * 300, ".hidden", "a\nb"])
def test_files_of_a_base_store_have_names_without_folders(name: str) -> None:
    directory = FilesDirectory("o", "t", b"", [FileEntry(name, 0, 0)], 0, 8, 0)
    made = frame(FILES_MAGIC, FILES_VERSION, msgspec.msgpack.encode(directory))
    with pytest.raises(CorruptObject, match=r"shared/x, part at 0: names .* expected files of a base store"):
        read_files(memoryview(made), MaterializedPart("shared/x", 0, len(made), 0, 8, HEADING), "o", "t")
