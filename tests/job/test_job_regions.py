"""Regions: as `job.explain()` prints them, and splits that fail while the others go on."""

from pathlib import Path
from typing import Any

import job_kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from regions_kit import PATIENT, QUICK, RUNNING, Failing, broken, copying, files_of, without

import holdfast as hf
from holdfast.testing import start
from waiting import until

__all__ = ["broken"]


def new_job() -> hf.Job:
    return hf.Job(None, name="regions", storage="memory://regions")


def test_each_split_is_a_region_where_no_operator_is_on_its_way(capsys: pytest.CaptureFixture[str]):
    job = new_job()
    numbers = job.read(hf.SequenceSource(8, splits=4, name="numbers"))
    numbers.map_batches(lambda batch: batch, pa.schema([("value", pa.int64())])).write(hf.NoopSink(name="nowhere"))
    job.explain()
    assert capsys.readouterr().out == (
        "legs\n"
        "  level 0: sequence source 'numbers' → map_batches(<lambda>) → NoopSink 'nowhere'\n"
        "engines\n"
        "  map_batches(<lambda>): Python in the sender, because it is a function\n"
        "regions\n"
        "  source 'numbers': each split is a region\n"
    )


def test_a_job_with_an_operator_is_one_region_and_the_operator_is_named(capsys: pytest.CaptureFixture[str]):
    job = new_job()
    counts = job.read(hf.SequenceSource(8, splits=4, name="numbers")).key_by("value").aggregate(n=hf.count())
    counts.write(hf.NoopSink(name="nowhere"))
    job.read(hf.SequenceSource(8, splits=4, name="others")).write(hf.NoopSink(name="elsewhere"))
    job.explain()
    regions = capsys.readouterr().out.partition("regions\n")[2]
    assert regions == "  the whole job is one region: rows are divided by key on their way to 'aggregate-1'\n"


def test_a_source_with_a_common_position_is_one_region_beside_the_regions_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pq.write_table(pa.table({"value": [1]}), tmp_path / "a.parquet")
    job = new_job()
    job.read(hf.FileSource(f"{tmp_path}/*.parquet", name="files")).write(hf.NoopSink(name="nowhere"))
    job.read(hf.SequenceSource(8, splits=4, name="numbers")).write(hf.NoopSink(name="elsewhere"))
    job.explain()
    regions = capsys.readouterr().out.partition("regions\n")[2]
    assert regions == (
        "  source 'numbers': each split is a region\n"
        "  source 'files' is one region: one position stands for all of its splits\n"
    )


def test_explain_starts_and_stores_nothing(tmp_path: Path):
    job = hf.Job(None, name="regions", storage=f"file://{tmp_path}/storage")
    job.read(hf.SequenceSource(8)).write(hf.NoopSink())
    job.explain()
    assert job.query is None
    assert not (tmp_path / "storage").exists()


def test_a_failed_split_stays_behind_and_the_others_are_published_once(tmp_path: Path, broken: set[str]):
    broken.add("3")
    query = start(copying(hf.ParquetSink(f"file://{tmp_path}/out", name="out"), job_kit.new_storage()), RUNNING)
    try:
        until(lambda: files_of(tmp_path / "out") == without(3))
        broken.clear()
        until(lambda: files_of(tmp_path / "out") == list(range(400)))
    finally:
        query.stop()


def test_a_start_goes_on_with_the_failed_split_where_the_record_has_it(tmp_path: Path, broken: set[str]):
    broken.update("36")
    sink, storage = hf.ParquetSink(f"file://{tmp_path}/out", name="out"), job_kit.new_storage()
    query = start(copying(sink, storage), RUNNING)
    until(lambda: files_of(tmp_path / "out") == without(3, 6))
    query.stop()
    broken.clear()
    Failing.reads.clear()
    start(copying(sink, storage), hf.available_now()).awaitTermination(job_kit.WAIT_S_MAX)
    assert files_of(tmp_path / "out") == list(range(400))
    assert set(Failing.reads) == {"3", "6"}


def test_a_split_that_fails_on_one_branch_is_taken_out_of_the_others(tmp_path: Path, broken: set[str]):
    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        if "refused" in broken and 5 in batch["value"].to_pylist():
            raise ValueError("five")
        return batch

    broken.add("refused")
    job = job_kit.new_job(checkpoint=job_kit.SOON, failover=QUICK, regions=PATIENT)
    numbers = job.read(Failing(400, splits=8, name="numbers"))
    numbers.write(hf.ParquetSink(f"file://{tmp_path}/all", name="all"))
    numbers.map_batches(refuse, pa.schema([("value", pa.int64())])).write(
        hf.ParquetSink(f"file://{tmp_path}/mapped", name="mapped")
    )
    query = start(job, RUNNING)
    try:
        until(lambda: files_of(tmp_path / "all") == files_of(tmp_path / "mapped") == without(5))
        broken.clear()
        until(lambda: files_of(tmp_path / "all") == files_of(tmp_path / "mapped") == list(range(400)))
    finally:
        query.stop()


def test_more_failed_regions_than_the_ratio_fail_the_batch(broken: set[str]):
    broken.update("01234")
    query = start(copying(hf.MemorySink(name="out"), job_kit.new_storage()), RUNNING)
    with pytest.raises(hf.QueryFailed, match="is offline"):
        query.awaitTermination(job_kit.WAIT_S_MAX)


def test_without_regions_a_failed_split_fails_the_batch(broken: set[str]):
    broken.add("3")
    query = start(copying(hf.MemorySink(name="out"), job_kit.new_storage(), regions=None), RUNNING)
    with pytest.raises(hf.QueryFailed, match="partition 3 is offline"):
        query.awaitTermination(job_kit.WAIT_S_MAX)


def test_a_poisoned_split_ends_the_query_and_is_named(broken: set[str]):
    broken.add("3")
    query = start(copying(hf.MemorySink(name="out"), job_kit.new_storage(), hf.RegionConfig()), hf.available_now())
    with pytest.raises(hf.QueryFailed, match=r"more than 2 times in a row.*'numbers', split '3', at 0: .*offline"):
        query.awaitTermination(job_kit.WAIT_S_MAX)


def test_a_parked_split_is_left_out_until_the_next_start(
    tmp_path: Path, broken: set[str], caplog: pytest.LogCaptureFixture
):
    broken.add("3")
    sink, storage = hf.ParquetSink(f"file://{tmp_path}/out", name="out"), job_kit.new_storage()
    parking = hf.RegionConfig(on_poison="park")
    start(copying(sink, storage, parking), hf.available_now()).awaitTermination(job_kit.WAIT_S_MAX)
    assert files_of(tmp_path / "out") == without(3)
    assert Failing.reads.count("3") > 2
    assert "test: ended without 1 parked splits (numbers/3), which the next start tries again" in caplog.messages
    broken.clear()
    start(copying(sink, storage, parking), hf.available_now()).awaitTermination(job_kit.WAIT_S_MAX)
    assert files_of(tmp_path / "out") == list(range(400))


def test_regions_are_refused_where_the_job_has_none():
    job = job_kit.new_job(regions=hf.RegionConfig())
    job.read(hf.SequenceSource(8)).key_by("value").aggregate(n=hf.count()).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match=r"no split of this job is a region.*'aggregate-1'"):
        start(job, RUNNING)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"unit_timeout": "10min"}, r"unit_timeout='10min' is not allowed: below process_timeout='10min'"),
        ({"unit_timeout": 0}, r"unit_timeout"),
        ({"holds_watermark": "yes"}, r"holds_watermark='yes' is not allowed: True or False"),
    ],
)
def test_settings_of_regions_that_cannot_hold_are_refused(settings: dict[str, Any], says: str):
    with pytest.raises(hf.errors.SettingsError, match=says):
        job_kit.new_job(regions=hf.RegionConfig(**settings))
