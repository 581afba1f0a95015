import io

import pyarrow as pa

from holdfast.taskmanager.digest import fold


def rows(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "small": pa.array([i % 100 for i in numbers], pa.int8()),
            "maybe": pa.array([None if i % 2 else i for i in numbers], pa.int64()),
            "text": ["x" * (i % 9) for i in numbers],
            "flag": [i % 3 == 0 for i in numbers],
            "money": pa.array(numbers, pa.decimal128(12, 2)),
            "nested": [[i] for i in numbers],
        }
    )


def through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def test_a_batch_has_the_same_digest_before_and_after_it_travelled_whatever_its_offset():
    for start, count in [(0, 1), (3, 200), (17, 64), (1, 999)]:
        piece = rows(0, 1200).slice(start, count)
        assert fold(0, piece) == fold(0, through_ipc(piece)) == fold(0, rows(start, count))


def test_the_digest_changes_with_missing_doubled_and_reordered_batches():
    first, second = rows(0, 100), rows(100, 100)
    right = fold(fold(0, first), second)
    assert right not in (fold(0, first), fold(fold(0, second), first), fold(right, second))


def test_an_empty_batch_has_a_digest():
    assert isinstance(fold(0, rows(0, 0)), int)
