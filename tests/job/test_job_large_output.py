"""Output far larger than its input comes in pieces, into buffers that spill: its size is bounded by no memory."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from job_kit import new_job

import holdfast as hf
from holdfast.functions.aggregates import table
from holdfast.functions.joins import meeting
from holdfast.functions.process.by_row import row_operator
from holdfast.functions.windows import rows_operator, window_operator
from holdfast.functions.windows.declared import Window
from holdfast.functions.windows.panes import in_time_pieces, windows_of
from holdfast.streams import Stream
from holdfast.taskmanager.buffers import RowBuffer, SpillArea
from holdfast.testing import TestSource, run

PIECE_ROWS = 1_000
_numbers = itertools.count()


class Many(hf.ProcessFunction):
    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        return ((row.k, number) for number in range(20_000))


class ManyByBatch(hf.BatchFunction):
    def process(self, batch: Any, keys: Any, groups: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        for _ in range(20):
            yield pa.record_batch([pa.array(np.arange(1_000)), pa.array(np.arange(1_000))], names=["k", "n"])


def rows(count: int) -> TestSource:
    batch = pa.record_batch(
        [np.zeros(count, "i8"), pa.array(np.arange(count) * 1_000_000, pa.timestamp("us", "UTC"))], names=["k", "at"]
    )
    return TestSource([batch], "k BIGINT, at TIMESTAMP", name=f"rows-{next(_numbers)}")


def joined(job: hf.Job) -> Stream:
    right = job.read(rows(200)).select("k", other=pc.field("at"))
    return job.read(rows(200)).key_by("k").join(right.key_by("k"), name="pairs", ttl="1d")


def windowed(job: hf.Job) -> Any:
    return job.read(rows(200)).with_watermark("at", "0s").key_by("k", hf.window("at", "300s", slide="1s"))


CASES: dict[str, tuple[Callable[[hf.Job], Stream], int]] = {
    "join": (joined, 200 * 200),
    "function by row": (
        lambda job: job.read(rows(2)).key_by("k").process(Many(), "k BIGINT, n BIGINT", name="f"),
        40_000,
    ),
    "function by batch": (
        lambda job: job.read(rows(1)).key_by("k").process(ManyByBatch(), "k BIGINT, n BIGINT", name="f"),
        20_000,
    ),
    "sliding windows": (lambda job: windowed(job).aggregate(n=hf.count(), name="w"), 199),
    "running lists": (
        lambda job: job.read(rows(900)).key_by("k").aggregate("every", all=hf.collect_list("at"), name="a"),
        900,
    ),
    "rows of sliding windows": (lambda job: windowed(job).top(200, by="at", name="t"), 199 * 100),
}


@pytest.mark.parametrize("case", CASES)
def test_output_is_put_out_in_pieces(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "PAIRS_MAX", PIECE_ROWS)
    monkeypatch.setattr(row_operator, "OUT_ROWS_MAX", PIECE_ROWS)
    monkeypatch.setattr(window_operator, "ROWS_AT_ONCE_MAX", PIECE_ROWS)
    monkeypatch.setattr(rows_operator, "ROWS_AT_ONCE_MAX", PIECE_ROWS)
    monkeypatch.setattr(table, "RUNNING_BYTES", 200_000)
    appended: list[int] = []
    original = RowBuffer.append

    def noted(buffer: RowBuffer, piece: pa.RecordBatch) -> None:
        appended.append(piece.num_rows)
        original(buffer, piece)

    make, expected = CASES[case]
    job, sink = new_job(parallelism=1), hf.MemorySink()
    make(job).write(sink)
    monkeypatch.setattr(RowBuffer, "append", noted)
    run(job)
    assert len(sink.rows()) == expected
    assert max(appended) <= PIECE_ROWS
    if case == "running lists":
        assert appended[1:5] == [1, 2, 4, 8] and 20 < appended[-2] < 40, "200 KB of lists that have 7 KB each"


def test_a_buffer_of_output_begins_anew_once_it_was_cleared(tmp_path: Any) -> None:
    area = SpillArea(100, str(tmp_path))
    buffer = RowBuffer(area)
    piece = pa.record_batch([pa.array([1, 2, 3])], names=["n"])
    for _ in range(10):
        buffer.append(piece)
    assert buffer.rows == sum(each.num_rows for each in buffer) == 30 and area.spilled_bytes
    buffer.clear()
    assert not list(buffer) and area.memory_bytes == 0
    buffer.append(piece)
    assert [each.num_rows for each in buffer] == [3]
    buffer.drop()
    assert not list(tmp_path.rglob("*.arrows"))


@pytest.mark.parametrize("emit", ["final", "changes"])
def test_windows_with_lists_are_merged_by_the_number_of_their_values(
    emit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_operator, "ROWS_AT_ONCE_MAX", 200)
    together: list[int] = []
    original = window_operator.WindowOperator._put_out_merged

    def noted(operator: Any, merged: Any, result: Any) -> None:
        together.append(merged.values_kept(merged.table.touched()))
        original(operator, merged, result)

    monkeypatch.setattr(window_operator.WindowOperator, "_put_out_merged", noted)
    job, sink = new_job(parallelism=1), hf.MemorySink()
    stream = job.read(rows(200)).with_watermark("at", "0s").key_by("k", hf.window("at", "200s", slide="20s"))
    stream.aggregate(emit, all=hf.collect_list("at"), name="w").write(sink)
    run(job)
    assert sum(len(row["all"]) for row in sink.rows()) == sum(together) > 800
    assert max(together) <= 200, "windows of a single slide, whose panes have 20 values each"


@pytest.mark.parametrize("after_us", [None, -100, 130])
@pytest.mark.parametrize(("size_us", "slide_us"), [(60, 20), (100, 10), (50, 50), (70, 30)])
def test_pieces_of_time_hold_each_pair_of_pane_and_window_once(
    size_us: int, slide_us: int, after_us: int | None
) -> None:
    window = Window("at", size_us, slide_us, 0)
    panes = np.unique(np.random.default_rng(3).integers(0, 50, 40)) * window.pane_us
    until_us = 250
    if window.tumbles:  # the caller gives panes whose window ends in time
        panes = panes[(panes + size_us <= until_us) & (panes + size_us > (after_us or -1))]
    pairs = set(zip(*(found.tolist() for found in windows_of(window, panes, after_us, until_us)), strict=True))
    found: list[tuple[int, int]] = []
    for piece in in_time_pieces(window, panes, after_us, until_us, 5):
        owners, starts = windows_of(window, panes[piece.panes], piece.after_us, piece.until_us)
        found += zip(piece.panes[owners].tolist(), starts.tolist(), strict=True)
        assert len(owners) <= 5 * 2 + len(panes)
    assert len(found) == len(set(found)) and set(found) == pairs
