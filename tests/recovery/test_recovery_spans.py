"""A recovery asks the store for the bytes that it needs: after a rescale these are parts of objects."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.formats.handles import FILE, LogPiece, MaterializedPart, TableHandle
from holdfast.formats.log_objects import OBJECT_HEADER, ChangeSet, LogId, encode_pieces
from holdfast.formats.snapshots import encode_part
from holdfast.recovery import spans
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import read_range, select
from holdfast.recovery.spans import SPAN_BYTES_MAX, Span, bounds_of, shared_objects, spans_of
from holdfast.state.table import stored_schema
from holdfast.storage import names
from holdfast.storage.obstore_store import ObstoreStore

GROUPS, ROWS, VALUE_BYTES = 64, 3000, 1000
SCHEMA = stored_schema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.binary())]))
RNG = np.random.default_rng(3)


class ReadBytes:
    """A store in memory that counts the bytes it is asked for."""

    def __init__(self) -> None:
        self.inner = ObstoreStore("memory://", MemoryStore())
        self.read = 0

    def get(self, name: str) -> bytes:
        data = self.inner.get(name)
        self.read += len(data)
        return data

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.read += length
        return self.inner.get_range(name, offset, length)


def rows_of(start: int, stop: int, count: int) -> pa.RecordBatch:
    """Rows that cannot be compressed, spread over these key groups."""
    groups = np.sort(RNG.integers(start, stop, count)).astype(np.int32)
    values = pa.array([RNG.bytes(VALUE_BYTES) for _ in range(count)], pa.binary())
    return pa.RecordBatch.from_arrays(
        [pa.array(groups), pa.array(np.zeros(count, bool)), pa.array(np.arange(count)), values], schema=SCHEMA
    )


def log_handles(store: ReadBytes, subtasks: int, rows: int = ROWS, block_bytes: int = 1 << 17) -> list[TableHandle]:
    """Subtasks whose logs share an object, as those of a TaskManager do."""
    edges = [subtask * GROUPS // subtasks for subtask in range(subtasks + 1)]
    name, data, handles = names.changelog_object(1, 1), bytearray(OBJECT_HEADER), []
    for start, stop in pairwise(edges):
        sets = [ChangeSet(at, at + 1, at, at + 1, rows_of(start, stop, rows // subtasks // 2)) for at in range(2)]
        [piece] = encode_pieces(LogId("op", "state", start, stop), sets, block_bytes=block_bytes)
        log = [piece.at(name, len(data))]
        handles.append(TableHandle("op", "state", start, stop, SCHEMA.serialize().to_pybytes(), [], log, 1))
        data += b"".join(bytes(each) for each in piece.buffers)
    store.inner.put(name, data)
    return handles


def part_handles(store: ReadBytes, rows: int = ROWS, block_bytes: int = 1 << 17) -> list[TableHandle]:
    """A subtask whose table was materialized in memory."""
    name = names.shared_object(1, 1)
    data, part = encode_part(LogId("op", "state", 0, GROUPS), rows_of(0, GROUPS, rows), 1, 1, block_bytes=block_bytes)
    store.inner.put(name, data)
    part = MaterializedPart(name, 0, part.length, part.key_group_start, part.key_group_stop, head_crc=part.head_crc)
    return [TableHandle("op", "state", 0, GROUPS, SCHEMA.serialize().to_pybytes(), [part], [], rows)]


def restored(
    store: ReadBytes, handles: Sequence[TableHandle], start: int, stop: int, *, shared: bool = True
) -> tuple[list[tuple[int, int, bytes]], int]:
    """The rows of these key groups, and the bytes that were asked for."""
    store.read = 0
    own = select(handles, "op", "state", start, stop)
    objects = shared_objects(own, bounds_of(handles), start, stop) if shared else []
    found = []
    with ObjectCache(store, shared=objects) as cache:  # type: ignore[arg-type]
        cache.expect(each for handle in own for each in handle.ranges())
        for handle in own:
            for batches in cache.ahead(
                handle.ranges(), lambda each, copy, handle=handle: read_range(handle, each, copy)
            ):
                found += [tuple(row.values()) for rows in batches for row in rows.to_pylist()]
        assert cache.fetched.bytes_from_store == store.read
    return [(row[0], row[2], row[3]) for row in found], store.read


@pytest.mark.parametrize("made", [lambda s: log_handles(s, 1), lambda s: log_handles(s, 4), part_handles])
@pytest.mark.parametrize("parallelism", [2, 3, 8])
def test_a_rescaled_job_reads_its_key_groups_and_little_else(made, parallelism):
    store = ReadBytes()
    handles = made(store)
    every, whole_bytes = restored(store, handles, 0, GROUPS)
    assert whole_bytes == sum(handle.stored_bytes() for handle in handles) + (handles[0].ranges()[0].offset)
    together, read_bytes = [], 0
    for start, stop in pairwise([GROUPS * at // parallelism for at in range(parallelism + 1)]):
        rows, some_bytes = restored(store, handles, start, stop)
        assert some_bytes < whole_bytes * (stop - start) / GROUPS + whole_bytes * 0.1, (
            "its share, and half a block more"
        )
        together += rows
        read_bytes += some_bytes
    assert sorted(together) == sorted(every)
    assert read_bytes < whole_bytes * (1.0 + 0.05 * parallelism)


def test_any_key_groups_are_read_alike_in_spans_and_whole(monkeypatch):
    monkeypatch.setattr(spans, "DIVIDED_BYTES_MIN", 3000)
    monkeypatch.setattr(spans, "DIRECTORY_BYTES", 300)
    monkeypatch.setattr(spans, "GAP_BYTES_MAX", 2000)
    rng = random.Random(7)
    for _ in range(12):
        store = ReadBytes()
        rows, block_bytes = rng.choice([8, 40, 120]), rng.choice([1000, 5000])
        handles = log_handles(store, rng.choice([1, 2, 3, 5]), rows, block_bytes)
        if rng.random() < 0.4:
            handles = part_handles(store, rows, block_bytes)
        start = rng.randrange(GROUPS)
        stop = rng.randrange(start, GROUPS) + 1
        assert restored(store, handles, start, stop)[0] == restored(store, handles, start, stop, shared=False)[0]


def test_the_logs_of_others_in_the_same_object_are_not_read_though_nothing_was_rescaled():
    store = ReadBytes()
    handles = log_handles(store, 4)
    for handle in handles:
        assert restored(store, handles, handle.key_group_start, handle.key_group_stop)[1] <= handle.stored_bytes()


@pytest.mark.parametrize("made", [lambda s: log_handles(s, 2), part_handles])
def test_a_short_altered_or_lost_object_is_refused_by_name(made):
    store = ReadBytes()
    handles = made(store)
    [name] = {each.object for handle in handles for each in handle.ranges()}
    data = store.inner.get(name)
    place = handles[-1].ranges()[0].offset
    for altered in (
        data[:-1],
        data[: place + 100],
        data[:place] + b"x" + data[place + 1 :],  # the directory's magic
        data[: place + 12] + b"\xff\xff\xff\xff" + data[place + 16 :],  # its length
        data[: place + 40] + bytes([data[place + 40] ^ 1]) + data[place + 41 :],
        data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    ):
        store.inner.put(name, altered)
        with pytest.raises(CorruptObject, match=name):
            restored(store, handles, GROUPS // 2 + 1, GROUPS)
    store.inner.delete([name])
    with pytest.raises(ObjectNotFound, match=name):
        restored(store, handles, 0, GROUPS // 2)


def test_ranges_near_each_other_are_one_request_and_files_are_whole():
    def piece(offset: int, length: int, groups: tuple[int, int] = (0, 8)) -> LogPiece:
        return LogPiece("o", offset, length, 0, 1, *groups)

    gap, large = spans.GAP_BYTES_MAX, spans.DIVIDED_BYTES_MIN
    assert spans_of([piece(16, 10), piece(26 + gap, 5)], divide=True) == [Span("o", 0, 31 + gap)]
    assert spans_of([piece(17 + gap, 5), piece(24 + 2 * gap, 2)], divide=True) == [
        Span("o", 17 + gap, 22 + gap),
        Span("o", 24 + 2 * gap, 26 + 2 * gap),
    ]
    halves = [piece(16, large, (0, 3)), piece(16, large, (3, 5))]
    assert spans_of(halves, divide=True) == [Span("o", 16, 16 + large, piece(16, large, (0, 5)))]
    assert spans_of(halves, divide=False) == [Span("o", 0, 16 + large)]
    assert spans_of([piece(0, SPAN_BYTES_MAX + 1)], divide=False) == [Span("o", 0, None)]
    assert spans_of([MaterializedPart("o", 0, 9, 0, 8, FILE)], divide=True) == [Span("o", 0, None)]
