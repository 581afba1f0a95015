"""Splits that are behind: in records, in the status of a query, tried again, skipped, and their effect on the rest."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import job_kit
import pyarrow.parquet as pq
import pytest
from regions_kit import QUICK, ROWS, RUNNING, SPLITS, Failing, Timed, broken, copying, files_of, without

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.execution.failing import FailingSplits
from holdfast.jobmaster.batches.planner import BatchLimits, Planner
from holdfast.jobmaster.batches.regional import CATCH_UP_ROWS_MIN, RegionalPlanning
from holdfast.journal.codec import encode_record
from holdfast.journal.fence import list_journal, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.sources.base import EnumeratorContext
from holdfast.storage.store import open_store
from holdfast.testing import start
from waiting import until

__all__ = ["broken"]

PARKING = hf.RegionConfig(max_consecutive_failures=1, on_poison="park")


def records(job: hf.Job) -> list[tuple[int, CheckpointRecord]]:
    """The records of checkpoints, the newest first."""
    store = job_kit.store_of(job)
    found = [(number, read_record(store, number)) for number in sorted(list_journal(store).numbers, reverse=True)]
    return [(number, record) for number, record in found if isinstance(record, CheckpointRecord)]


def newest_record(job: hf.Job) -> tuple[int, CheckpointRecord]:
    found = records(job)
    assert found, "no checkpoint was recorded"
    return found[0]


def output(tmp_path: Path) -> hf.ParquetSink:
    return hf.ParquetSink(f"file://{tmp_path}/out", name="out")


def behind(query: hf.Query) -> list[dict[str, Any]]:
    found = query.status["splitsBehind"]
    assert isinstance(found, list)
    return found


def test_records_name_the_checkpoint_since_which_a_failed_split_stands(tmp_path: Path, broken: set[str]):
    job = copying(output(tmp_path), job_kit.new_storage(), max_rows_per_batch=80)
    broken.add("3@25")
    query = start(job, RUNNING)
    try:
        until(lambda: behind(query) and len(files_of(tmp_path / "out")) > ROWS - ROWS // SPLITS)
        [found] = behind(query)
        assert (found["source"], found["split"], found["parked"]) == ("numbers", "3", False)
        assert "partition 3 is offline" in found["reason"]
        until(lambda: behind(query)[0]["failures"] > 2 and behind(query)[0]["since"])
        query.trigger_checkpoint()
    finally:
        query.stop()
    number, record = newest_record(job)
    standing = record.behind["numbers"]["3"]
    assert record.offsets["numbers"]["3"] == found["position"] < 25
    assert 0 < standing.since < number
    assert standing.failures > 1 and "is offline" in standing.reason
    broken.clear()
    start(job, hf.available_now()).awaitTermination(job_kit.WAIT_S_MAX)
    assert files_of(tmp_path / "out") == list(range(ROWS))
    assert newest_record(job)[1].behind == {}


def test_a_parked_split_is_in_status_metrics_history_and_json_and_a_retry_brings_it_back(
    tmp_path: Path, broken: set[str]
):
    broken.add("3")
    job = copying(output(tmp_path), job_kit.new_storage(), PARKING, ui_port=0)
    query = start(job, RUNNING)
    try:
        until(lambda: any(each["parked"] for each in behind(query)))
        until(lambda: files_of(tmp_path / "out") == without(3))
        assert "split '3' of 'numbers', parked: partition 3 is offline" in query.status["message"]
        assert query.view().metrics.values["parkedSplits"] == 1
        assert query.view().metrics.values["numSplitFailures"] >= 2
        with urllib.request.urlopen(f"{query.uiUrl}api/v1/job") as answer:
            assert [each["split"] for each in json.load(answer)["splits_behind"]] == ["3"]
        query.trigger_checkpoint()
        with pytest.raises(hf.HoldfastError, match=r"split '4' does not fail; failing are: '3' of 'numbers'"):
            query.retry("4")
        broken.clear()
        query.retry("3")
        until(lambda: files_of(tmp_path / "out") == list(range(ROWS)))
        until(lambda: behind(query) == [])
    finally:
        query.stop()


def test_the_history_of_checkpoints_names_parked_splits(tmp_path: Path, broken: set[str]):
    broken.add("3")
    job = copying(output(tmp_path), job_kit.new_storage(), PARKING)
    job.read(Failing(None, splits=1, rows_per_second=1000, name="more")).write(hf.NoopSink(name="nowhere"))
    query = start(job, RUNNING)
    try:
        until(lambda: query.checkpoints and query.checkpoints[-1].parked_splits == ("numbers/3",))
        assert any(each.failing_splits == 1 for each in query.checkpoints)
        assert "without 1 parked splits: numbers/3" in repr(query.checkpoints)
    finally:
        query.stop()


def test_a_parked_split_is_tried_again_by_the_next_start_which_keeps_the_record_since_which_it_stands(
    tmp_path: Path, broken: set[str]
):
    broken.add("3")
    job = copying(output(tmp_path), job_kit.new_storage(), PARKING)
    start(job, hf.available_now()).awaitTermination(job_kit.WAIT_S_MAX)
    _, first = newest_record(job)
    assert first.behind["numbers"]["3"].parked
    Failing.reads.clear()
    start(job, hf.available_now()).awaitTermination(job_kit.WAIT_S_MAX)
    assert Failing.reads.count("3") >= 2
    assert newest_record(job)[1].behind["numbers"]["3"].since == first.behind["numbers"]["3"].since


def test_the_ratio_bounds_all_regions_that_stand_however_many_batches_they_failed_in(tmp_path: Path, broken: set[str]):
    regions = hf.RegionConfig(max_failed_ratio=0.3, max_consecutive_failures=0, on_poison="park")
    broken.update({"0@10", "1@20", "2@30"})
    job = copying(output(tmp_path), job_kit.new_storage(), regions, max_rows_per_batch=8)
    with pytest.raises(hf.QueryFailed, match="partition 2 is offline"):
        start(job, RUNNING).awaitTermination(job_kit.WAIT_S_MAX)
    # The query may end before a checkpoint has recorded both, or any.
    found = records(job)
    standing = found[0][1].behind.get("numbers", {}) if found else {}
    assert all(each.parked for each in standing.values()) and set(standing) <= {"0", "1"}


@pytest.mark.parametrize("most", [0, 2])
def test_no_more_checkpoints_complete_without_a_region_than_may(broken: set[str], most: int):
    broken.add("3")
    job = copying(hf.MemorySink(name="out"), job_kit.new_storage(), hf.RegionConfig(max_consecutive_failures=most))
    with pytest.raises(hf.QueryFailed, match=rf"more than {most} times in a row.*split '3', at 0"):
        start(job, RUNNING).awaitTermination(job_kit.WAIT_S_MAX)
    if most:
        assert newest_record(job)[1].behind["numbers"]["3"].failures <= most - 1
    else:
        with pytest.raises(AssertionError, match="no checkpoint"):
            newest_record(job)


def test_where_only_the_failing_split_has_rows_the_query_ends(broken: set[str]):
    broken.add("0")
    job = job_kit.new_job(regions=hf.RegionConfig(max_failed_ratio=1.0), failover=QUICK, checkpoint=job_kit.SOON)
    job.read(Failing(10, splits=1, name="numbers")).write(hf.NoopSink(name="nowhere"))
    with pytest.raises(hf.QueryFailed, match=r"split '0', at 0: .*offline"):
        start(job, RUNNING).awaitTermination(job_kit.WAIT_S_MAX)


def test_a_row_that_cannot_be_processed_is_skipped_to_the_dead_letters(tmp_path: Path, broken: set[str]):
    broken.add("3@17")
    letters = tmp_path / "letters"
    job = copying(output(tmp_path), job_kit.new_storage(), bad_records="dead_letter", dead_letters=letters.as_uri())
    query = start(job, RUNNING)
    try:
        until(lambda: behind(query))
        query.skip("3", 17)
        skipped = 3 + 17 * SPLITS
        until(lambda: files_of(tmp_path / "out") == [value for value in range(ROWS) if value != skipped])
        until(lambda: behind(query) == [])
    finally:
        query.stop()
    [letter] = [row for file in letters.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert (letter["source"], letter["split"], letter["position"]) == ("numbers", "3", "17")
    assert letter["reason"] == "skipped by query.skip"


def test_a_row_that_was_skipped_before_its_split_reached_it_is_put_aside_by_the_next_start(
    tmp_path: Path, broken: set[str]
):
    broken.add("3")
    letters = (tmp_path / "letters").as_uri()
    job = copying(output(tmp_path), job_kit.new_storage(), bad_records="dead_letter", dead_letters=letters)
    query = start(job, RUNNING)
    until(lambda: behind(query))
    query.skip("3", 17)
    until(lambda: query.trigger_checkpoint() and newest_record(job)[1].behind["numbers"]["3"].skipped == (17,))
    with pytest.raises(hf.HoldfastError, match="split '3' ends at 50: it has no row at 50"):
        query.skip("3", 50)
    query.stop()
    broken.clear()
    broken.add("3@17")
    start(job, hf.available_now()).awaitTermination(job_kit.WAIT_S_MAX)
    assert files_of(tmp_path / "out") == [value for value in range(ROWS) if value != 3 + 17 * SPLITS]
    assert newest_record(job)[1].behind == {}


def test_a_row_is_skipped_only_where_it_can_be_kept(tmp_path: Path, broken: set[str]):
    broken.add("3")
    query = start(copying(output(tmp_path), job_kit.new_storage()), RUNNING)
    try:
        until(lambda: behind(query))
        with pytest.raises(hf.HoldfastError, match=r"start with Job\(bad_records='dead_letter'\)"):
            query.skip("3", 0)
    finally:
        query.stop()


def test_without_regions_no_split_can_be_tried_again(tmp_path: Path):
    query = start(copying(output(tmp_path), job_kit.new_storage(), None), RUNNING)
    try:
        with pytest.raises(hf.HoldfastError, match=r"without Job\(regions=RegionConfig"):
            query.retry("3")
    finally:
        query.stop()


def timed(tmp_path: Path, storage: str, regions: hf.RegionConfig) -> hf.Job:
    """Rows of 50 hours in each split, into folders by hour."""
    job = job_kit.new_job(storage, regions=regions, failover=QUICK, checkpoint=job_kit.SOON, max_rows_per_batch=80)
    rows = job.read(Timed(ROWS, splits=SPLITS, name="numbers")).with_watermark("at", "0s")
    finished = hf.PartitionTime("%Y-%m-%dT%H", "1h")
    rows.write(hf.ParquetSink(f"file://{tmp_path}/out", name="out", partition_by=["hour"], finished=finished))
    return job


def finished_hours(folder: Path) -> set[int]:
    """Numbers of the hours whose folder has a marker."""
    names = [marker.parent.name.removeprefix("hour=") for marker in folder.rglob("_SUCCESS")]
    return {(int(name[8:10]) - 1) * 24 + int(name[11:13]) for name in names}


@pytest.mark.parametrize("holds_watermark", [False, True])
def test_a_failed_split_holds_markers_back_and_the_watermark_by_choice(
    tmp_path: Path, broken: set[str], holds_watermark: bool
):
    broken.add("3@25")
    regions = hf.RegionConfig(max_consecutive_failures=1000, holds_watermark=holds_watermark)
    query = start(timed(tmp_path, job_kit.new_storage(), regions), RUNNING)
    try:
        until(lambda: behind(query) and len(files_of(tmp_path / "out")) >= ROWS - 30)
        stands_at = behind(query)[0]["position"]
        watermark_h = query.view().source_watermarks["numbers"] // 3_600_000_000
        assert watermark_h == (stands_at - 1 if holds_watermark else 49)
        assert finished_hours(tmp_path / "out") <= set(range(stands_at))
        broken.clear()
        query.retry("3")
        query.processAllAvailable()
        assert max(finished_hours(tmp_path / "out"), default=0) <= 48
    finally:
        query.stop()


def planner_of(rows_max: int) -> tuple[Planner, FailingSplits, ManualClock]:
    clock, failing = ManualClock(), FailingSplits(PARKING, QUICK, by_attempt=False)
    source = Failing(80_000, splits=SPLITS, name="numbers")
    enumerator = source.enumerator(EnumeratorContext(open_store(job_kit.new_storage()), "numbers", 1, clock))
    regional = RegionalPlanning(failing, senders=lambda: 2)
    planner = Planner(
        {"numbers": enumerator},
        BatchLimits(rows_max, 1 << 40),
        lambda: 2,
        clock,
        monotonic=clock.monotonic,
        regional=regional,
    )
    planner.begin(None)
    return planner, failing, clock


def test_a_split_that_is_behind_is_a_unit_of_its_own_and_no_larger_than_those_of_the_others():
    planner, failing, clock = planner_of(rows_max=40_000)
    until_now = {"numbers": dict.fromkeys(map(str, range(SPLITS)), 2_000)}
    first = planner.next(until_now)
    assert first is not None
    failed = {("numbers", "3"): "is offline"}
    planner.committed(first.without(failed), {}, {}, failed)
    clock.advance(1.0)
    until_now["numbers"] = dict.fromkeys(map(str, range(SPLITS)), 2_100) | {"3": 9_000}
    second = planner.next(until_now)
    assert second is not None
    alone = [unit for unit in second.reads["numbers"] if any(read.split == "3" for read in unit)]
    assert [(read.start, read.stop) for [read] in alone] == [(0, CATCH_UP_ROWS_MIN)]
    assert sum(read.rows for unit in second.reads["numbers"] for read in unit) == 7 * 100 + CATCH_UP_ROWS_MIN
    planner.committed(second, {}, {})
    assert failing.splits == {} and failing.catching_up == {("numbers", "3")}


def test_a_split_is_forgotten_once_it_has_the_newest_rows_and_reads_all_of_them_where_no_other_split_has_any():
    planner, failing, clock = planner_of(rows_max=40_000)
    until_now = {"numbers": dict.fromkeys(map(str, range(SPLITS)), 5_000)}
    first = planner.next(until_now)
    assert first is not None
    failed = {("numbers", "3"): "is offline"}
    planner.committed(first.without(failed), {}, {}, failed)
    assert planner.behind["numbers"]["3"].reason == "is offline"
    clock.advance(1.0)
    second = planner.next(until_now)
    assert second is not None
    [[read]] = second.reads["numbers"]
    assert (read.start, read.stop) == (0, 5_000)
    planner.committed(second, {}, {})
    assert planner.behind == {} and not failing.names


def test_the_record_of_five_thousand_splits_of_which_half_stand_is_below_a_megabyte():
    failing = FailingSplits(hf.RegionConfig(), QUICK, by_attempt=False)
    splits = [f"a-topic-with-a-rather-long-name/{number}" for number in range(5_000)]
    reasons = {("numbers", split): f"{split} is offline: {'connection reset by peer ' * 40}" for split in splits[::2]}
    failing.committed(reasons, reasons, 0.0)
    offsets = {"numbers": dict.fromkeys(splits, 1 << 40)}
    record = CheckpointRecord(1, 1, 1, 1, 0, offsets, {}, [], {}, {}, 1, 128, behind=failing.behind())
    assert len(encode_record(record)) < 1_000_000
