"""Regions as `job.explain()` prints them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf


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
