"""Objects of every format, altered by a seed with checksums made right, and the only errors that a reader may raise.

A program of its own, since a reader that is wrong may end its process: `python formats_fuzzing_script.py SECONDS SEED…`
writes each seed to the file descriptor 2 before it is tried, so that the last is the one that ended it, and ends with
the number of seeds that it tried. A single seed is tried again by `python formats_fuzzing_script.py 0 SEED`.

    an object of a kind ──► its payload as plain data, or its bytes ──► altered ──► framed again ──► the kind's reader
"""

import os
import random
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.errors import CorruptObject, JobRefused
from holdfast.formats import base_files, history, leader, log_objects, manifests, snapshots
from holdfast.formats.blocks import Compression
from holdfast.formats.handles import FILE, LogPiece, Manifest, MaterializedPart, TableHandle
from holdfast.journal import codec
from holdfast.journal.records import CheckpointRecord, GroupRef, OperatorIdentity, Takeover
from holdfast.recovery.local import Copy
from holdfast.recovery.restore import read_range
from holdfast.recovery.spans import Span, read_span
from holdfast.sinks import staging
from holdfast.sinks.base import Owner
from holdfast.sources.files import discovery_chunks
from holdfast.sources.postgres.slot_head import SlotHead
from holdfast.sources.spooled import segments
from holdfast.state.changes import stored_schema
from holdfast.state.table import StateTable
from holdfast.storage import checksum, names
from holdfast.storage.copying import CopiedObject
from holdfast.storage.framing import HEADER_BYTES, frame
from holdfast.storage.routing import OtherStorages

GROWTH_BYTES_MAX = 400 << 20
"""Growth of the process that an object of some kilobytes may not cause."""
SECONDS_MAX = 5.0
"""Time of a processor that a reader may take for an object of some kilobytes."""
JOB = "0123456789abcdef" * 2
KEYS = pa.schema([("k", pa.string())])
VALUES = pa.schema(
    [("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32())), ("at", pa.timestamp("us"))]
)
LOG = log_objects.LogId("o", "t", 0, 16)
NUMBERS = (
    0,
    1,
    -1,
    7,
    127,
    255,
    2**15,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32 - 1,
    2**40,
    2**45,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
VALUES_OF_OTHER_KINDS: tuple[Any, ...] = (
    None, True, 1.5, float("nan"), "", "../../etc", "journal/000000000001", "a\0b", b"", b"\xff" * 9,
    [], {}, [[]], {"": {}},
)  # fmt: skip


class Kind(NamedTuple):
    """A format: an object as it is written, and its reader."""

    make: Callable[[random.Random], bytes]
    """Make an object, altered."""
    read: Callable[[bytes], object]


def main(seed: int, seconds: float) -> int:
    compile_kernels()
    begun_s, tried = time.monotonic(), 0
    while True:
        os.write(2, f"{seed}\n".encode())
        attempt(seed)
        seed, tried = seed + 1, tried + 1
        if time.monotonic() - begun_s >= seconds:
            return tried


def attempt(seed: int) -> None:
    """Try a seed. Raises whatever no reader may raise."""
    rng = random.Random(seed)
    name = rng.choice(list(KINDS))
    data = KINDS[name].make(rng)
    begun_s, before = time.process_time(), _peak_bytes()
    try:
        KINDS[name].read(data)
    except (CorruptObject, JobRefused):
        pass
    except Exception as error:
        raise AssertionError(f"seed {seed}: an object of kind {name!r} is not refused by name") from error
    taken_s, grown = time.process_time() - begun_s, _peak_bytes() - before
    assert taken_s < SECONDS_MAX, f"seed {seed}: an object of kind {name!r} took {taken_s:.1f} s"
    assert grown < GROWTH_BYTES_MAX, f"seed {seed}: an object of kind {name!r} took {grown >> 20} MB"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- altering ---------------------------------------------------------------------------------------------------------


def altered_data(rng: random.Random, data: Any) -> bytes:
    """Plain data with a few values that are others, too many, too few or too deep, as msgpack."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = _altered(rng, data)
    try:
        packed = msgspec.msgpack.encode(data)
    except (OverflowError, RecursionError, ValueError):
        return b"\xc1"
    return altered_bytes(rng, packed) if rng.random() < 0.2 else packed


def _altered(rng: random.Random, data: Any) -> Any:
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(list(data))
        if rng.random() < 0.1:
            return {name: value for name, value in data.items() if name != key}
        if rng.random() < 0.1:
            return data | {"unknown": _other(rng)}
        return data | {key: _altered(rng, data[key])}
    if isinstance(data, list) and data and rng.random() < 0.9:
        at, choice = rng.randrange(len(data)), rng.random()
        if choice < 0.1:
            return data[:at] + data[at + 1 :]
        if choice < 0.2:
            return data[:at] + [data[at]] * rng.choice((2, 50)) + data[at:]
        return [*data[:at], _altered(rng, data[at]), *data[at + 1 :]]
    if isinstance(data, bytes) and data and rng.random() < 0.8:
        return altered_bytes(rng, data)
    if isinstance(data, int) and rng.random() < 0.5:
        return rng.choice((data + 1, data - 1, -data, data * 2))
    return _other(rng)


def _other(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        deep: Any = 1
        for _ in range(rng.choice((3, 500))):
            deep = [deep] if rng.random() < 0.5 else {"x": deep}
        return deep
    return rng.choice(NUMBERS if rng.random() < 0.5 else VALUES_OF_OTHER_KINDS)


def altered_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes with bits, numbers or pieces that are others."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        if not changed:
            break
        at, choice = rng.randrange(len(changed)), rng.random()
        if choice < 0.4:
            form = rng.choice(("<i", "<q", "<h", "<B"))
            size = struct.calcsize(form)
            at -= at % size
            if at + size <= len(changed):
                number = rng.choice(NUMBERS) % 256**size
                changed[at : at + size] = number.to_bytes(size, "little")
        elif choice < 0.7:
            changed[at] ^= 1 << rng.randrange(8)
        elif choice < 0.8:
            del changed[at : at + rng.choice((1, 4, 8, 100))]
        elif choice < 0.9:
            changed[at:at] = changed[at : at + rng.choice((1, 8, 64))]
        else:
            other = rng.randrange(len(changed))
            changed[at : at + 8] = changed[other : other + 8]
    return bytes(changed)


# --- objects ----------------------------------------------------------------------------------------------------------


def framed(magic: bytes, version: int, stored: Any, wrap: Callable[[bytes], bytes] = bytes) -> Callable[..., bytes]:
    """Make an object that is a frame around msgpack."""
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(stored))
    return lambda rng: frame(magic, version, wrap(altered_data(rng, plain)))


def deflated(payload: bytes) -> bytes:
    return zlib.compress(payload * (1 if len(payload) % 5 else 200_000 // max(1, len(payload))), 1)


def changes(count: int = 60) -> pa.RecordBatch:
    """Rows of a state table."""
    values = [
        pa.array([n if n % 7 else None for n in range(count)], pa.int64()),
        pa.array([f"text {n}" * (n % 5) if n % 3 else None for n in range(count)]),
        pa.array([list(range(n % 4)) if n % 5 else None for n in range(count)], pa.list_(pa.int32())),
        pa.array(range(count), pa.timestamp("us")),
    ]
    groups, deleted = pa.array([n * 16 // count for n in range(count)], pa.int32()), pa.array([False] * count)
    schema = stored_schema(KEYS, VALUES)
    keys = pa.array([f"key {n}" for n in range(count)])
    return pa.RecordBatch.from_arrays([groups, deleted, keys, *values], schema=schema)


def stream(rng: random.Random) -> bytes:
    """Make an Arrow stream, altered."""
    rows = changes()
    if rng.random() < 0.2:
        rows = rows.append_column("d", pa.array(["a", "b", None] * 20).dictionary_encode())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=rng.choice((None, "lz4", "zstd")))
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    return altered_bytes(rng, sink.getvalue().to_pybytes())


def with_block(magic: bytes, version: int, made: bytes, blocks_field: int) -> Callable[[random.Random], bytes]:
    """Make an object with a directory in front of blocks: the directory, or the only block's bytes, are altered."""
    stop = HEADER_BYTES + int.from_bytes(made[12:HEADER_BYTES], "little")
    directory = msgspec.msgpack.decode(made[HEADER_BYTES:stop])

    def make(rng: random.Random) -> bytes:
        body = made[stop:]
        if rng.random() < 0.3:
            return frame(magic, version, altered_data(rng, directory)) + body
        body = stream(rng)
        entry = [0, 16, len(body), checksum.crc32(body)]
        changed = [*directory[:blocks_field], [entry], *directory[blocks_field + 1 :]]
        return frame(magic, version, msgspec.msgpack.encode(changed)) + body

    return make


def piece_bytes() -> bytes:
    [piece] = log_objects.encode_pieces(LOG, [log_objects.ChangeSet(0, 1, 0, 1, changes())])
    return b"".join(bytes(each) for each in piece.buffers)


def restored(part_of: Callable[[int], LogPiece | MaterializedPart], header: bytes) -> Callable[[bytes], object]:
    """Read a range as a restore does, and apply its rows to a table."""
    handle = TableHandle("o", "t", 0, 16, stored_schema(KEYS, VALUES).serialize().to_pybytes(), [], [])

    def read(data: bytes) -> None:
        each = part_of(len(data))
        span = Span(each.object, each.offset, each.offset + each.length, each)
        for copy in (read_span(OneObject(header + data), span, int), Copy(header + data, len(header) + len(data))):
            table = StateTable(KEYS, VALUES, 16)
            for rows in read_range(handle, each, copy):
                table.apply(rows, 0, 16)

    return read


def compile_kernels() -> None:
    """Read a sound object, since compiling takes longer than any object may."""
    restored(lambda length: LogPiece("dstl/x", 16, length, 0, 1, 0, 16), log_objects.OBJECT_HEADER)(piece_bytes())


def file_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "000001.sst"
        path.write_bytes(b"rows of a base store" * 20)
        return bytes(base_files.encode_lasting(LOG, path)[0])


def read_file(data: bytes) -> None:
    part = MaterializedPart("shared/x", 0, len(data), 0, 16, FILE)
    _, files = base_files.read_files(memoryview(data), part, "o", "t")
    assert all("/" not in name for name, _ in files)
    base_files.read_files_head(part, data[: HEADER_BYTES + int.from_bytes(data[12:16], "little")], "o", "t")


def segment(rng: random.Random) -> bytes:
    rows = stream(rng)
    part = segments.SegmentPart(0, len(rows), checksum.crc32(rows), 60)
    head = SlotHead(
        number=3, sequences=60, ends=b"\0" * 8, parts={"t": part}, previous="x", system="s", slot="s", end_lsn=1,
        open_xid=0, open_changes=0, chunks={"t": 3}, named=SEGMENT,
    )  # fmt: skip
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(head))
    payload = msgspec.msgpack.encode(plain) if rng.random() < 0.7 else altered_data(rng, plain)
    framed_head = frame(segments.MAGIC, segments.VERSION, payload)
    return rows + framed_head + len(framed_head).to_bytes(4, "little")


class OneObject:
    """A store with a single object, of which a range is read."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def get(self, name: str) -> bytes:
        return self.data

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


def read_segment(data: bytes) -> None:
    head = segments.decode_head(SEGMENT, data[-segments.TAIL_BYTES :], SlotHead)
    found = segments.Segment(SEGMENT, head, len(data))
    assert found.refusal_at(3) or True
    for table, part in head.parts.items():
        segments._cached.clear()
        segments.read_part(OneObject(data), SEGMENT, table, part)  # type: ignore[arg-type]


def staged(rng: random.Random) -> bytes:
    rows = stream(rng)
    committable = staging.StagedRows(60, len(rows), checksum.crc32(rows), 1000, data=rows)
    packed = staging.encode(committable)
    return packed if rng.random() < 0.6 else altered_data(rng, msgspec.msgpack.decode(packed))


def read_staged(data: bytes) -> None:
    one = staging.decode_owned(data, Owner("s", JOB))
    if isinstance(one, staging.StagedRows):
        staging.open_rows(one.data, one, "x")


SEGMENT = "segments/000000000001/s/000000000003-" + "0" * 32
MANIFEST, GROUP = names.manifest(1, 2, 3), names.committables(1, 2, "s")
RECORD = CheckpointRecord(
    epoch=17, checkpoint_id=3, batch=41, run=2, batch_time_us=1, offsets={"f": {"0": 12, "x": "y"}}, nonce=JOB,
    source_objects={"f": [names.source_chunk(1)]}, manifests=[MANIFEST], groups={"s": [GroupRef(15, GROUP)]},
    operators={"o": OperatorIdentity(("k",), {"t": stored_schema(KEYS, VALUES).serialize().to_pybytes()})},
    parallelism=4, max_parallelism=128, job=JOB, number=18,
)  # fmt: skip
HANDLE = TableHandle(
    "o",
    "t",
    0,
    8,
    b"schema",
    [MaterializedPart(names.shared_object(1, 1), 0, 9, 0, 8, head_crc=5)],
    [LogPiece(names.changelog_object(1, 1), 1, 2, 3, 4, 0, 8)],
)
CODEC: Compression = "zstd"
KINDS = {
    "job": Kind(framed(b"HFJB", 1, codec.StoredJob(JOB, 1, 128, "j")), lambda data: codec.decode_job("job", data)),
    "record": Kind(
        framed(b"HFJR", codec.RECORD_VERSION, RECORD), lambda data: codec.decode_record(names.journal(18), data)
    ),
    "takeover": Kind(
        framed(b"HFJR", codec.RECORD_VERSION, Takeover(17, "x", JOB, OtherStorages("s3://q", ("s3://a",)))),
        lambda data: codec.decode_record(names.journal(17), data),
    ),
    "owner": Kind(framed(b"HFOW", 1, codec.StoredOwner(JOB, "s3://b/x")), lambda data: codec.decode_owner("o", data)),
    "begun": Kind(framed(b"HFJM", 1, codec.StoredBegun(2)), lambda data: codec.decode_begun("journal/begun", data)),
    "committables": Kind(
        framed(b"HFCM", codec.COMMITTABLES_VERSION, codec.StoredCommittables("s", [b"x"], b"y", 3, JOB, 1, 2)),
        lambda data: codec.decode_committables(GROUP, data),
    ),
    "savepoint": Kind(
        framed(
            b"HFSP",
            codec.SAVEPOINT_VERSION,
            codec.StoredSavepoint(JOB, codec.StoredJob(JOB, 1, 8), "x", 18, RECORD, [CopiedObject(MANIFEST, 1, 2)]),
        ),
        lambda data: codec.decode_savepoint("savepoint", data),
    ),
    "manifest": Kind(
        framed(b"HFMF", manifests.VERSION, Manifest(1, 2, 3, 4, 5, [HANDLE] * 3, JOB), deflated),
        lambda data: manifests.decode_manifest(MANIFEST, data),
    ),
    "history": Kind(
        framed(
            b"HFCH", history.HISTORY_VERSION, history.StoredHistory([history.CheckpointStats(1, 2, 3, 0.1, 5, 6)], [])
        ),
        lambda data: history.decode_history("history/000000000001", data),
    ),
    "beat": Kind(
        framed(b"HFLB", 1, leader.StoredBeat(JOB, 1, 2, leader.LeaderState.LEADS, "a:1", 3)),
        lambda data: leader.decode_beat("leader/000000000001", data),
    ),
    "waiting": Kind(
        framed(b"HFSW", 1, leader.StoredWaiting(JOB, "w", 2, 3.0)),
        lambda data: leader.decode_waiting("standby", data),
    ),
    "chunk": Kind(
        framed(b"HFSC", 2, discovery_chunks.ChunkContent("s", 0, 0, [("/a", 1, 2), ("/b", 3, 4)], "x"), deflated),
        lambda data: discovery_chunks.join("s", [("x", discovery_chunks.decode("x", data))]),
    ),
    "piece": Kind(
        with_block(log_objects.PIECE_MAGIC, log_objects.VERSION, piece_bytes(), 5),
        restored(lambda length: LogPiece("dstl/x", 16, length, 0, 1, 0, 16), log_objects.OBJECT_HEADER),
    ),
    "part": Kind(
        with_block(
            snapshots.PART_MAGIC, snapshots.VERSION, snapshots.encode_part(LOG, changes(), 0, 0, codec=CODEC)[0], 6
        ),
        restored(lambda length: MaterializedPart("shared/x", 0, length, 0, 16), b""),
    ),
    "files": Kind(with_block(base_files.FILES_MAGIC, base_files.VERSION, file_bytes(), 3), read_file),
    "segment": Kind(segment, read_segment),
    "staged": Kind(staged, read_staged),
}

if __name__ == "__main__":
    print(sum(main(int(seed), float(sys.argv[1])) for seed in sys.argv[2:]))
