"""Partition columns in the names of folders are read back as they were written, or make their rows bad."""

import datetime as dt
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sources_kit import put_text, read_all

import holdfast as hf
from holdfast.errors import BadRecord, SettingsError
from holdfast.sources.files.file_source import FileSource
from holdfast.sources.files.hive import NULL_PARTITION
from holdfast.storage.store import open_store
from holdfast.testing import run

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("small", pa.int8()),
        ("large", pa.uint64()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("_own name=%/", pa.string()),
    ]
)
ROWS = [
    (0, "a b/c=d%41?*[x]", -128, 2**64 - 1, True, dt.date(1, 1, 1), "São Paulo"),
    (1, "+", 127, 0, False, dt.date(9999, 12, 31), "日本"),
    (2, None, None, None, None, None, None),
    (3, "%2F", 5, 5, True, dt.date(2026, 1, 31), "..\\'\"\x01\x7f"),
    (4, "01", 5, 5, True, dt.date(2026, 1, 31), "true"),
]


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    return put_text(path, text)


def in_types(schema, rows):
    return [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), schema.types, strict=True)]


@pytest.mark.parametrize("where", ["local", "store"])
def test_the_folders_of_a_parquet_sink_are_read_back_as_they_were_written(tmp_path, where):
    pq.write_table(pa.Table.from_arrays(in_types(SCHEMA, ROWS), schema=SCHEMA), tmp_path / "in.parquet")
    out = (tmp_path / "out").as_uri() if where == "local" else "memory://hive-of-a-sink"
    job = hf.Job(None, name="hive", storage=f"memory://hive-job-{where}")
    rows = job.read(FileSource(str(tmp_path / "in.parquet"), schema=SCHEMA, name="f"))
    rows.write(hf.ParquetSink(out, partition_by=SCHEMA.names[1:]))
    run(job)
    back = FileSource(
        str(tmp_path / "out") if where == "local" else out, format="parquet", schema=SCHEMA, partitioning="hive"
    )
    found, bad = read_all(back)
    assert bad == []
    assert sorted(found) == ROWS
    inferred = FileSource(str(tmp_path / "out") if where == "local" else out, partitioning="hive").schema()
    assert sorted(inferred.names) == sorted(SCHEMA.names)
    assert {str(field.type) for field in inferred if field.name != "n"} == {"string"}


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_partition_columns_are_read_with_any_format_in_the_order_of_the_schema(tmp_path, suffix):
    path = tmp_path / f"day=2026-01-31/a.{suffix}"
    if suffix == "parquet":
        path.parent.mkdir()
        pq.write_table(pa.table({"n": [1, 2]}), path)
    else:
        put(path, "n\n1\n2\n" if suffix == "csv" else '{"n":1}\n{"n":2}\n')
    source = FileSource(str(tmp_path), schema="day DATE, n BIGINT", partitioning="hive")
    day = dt.date(2026, 1, 31)
    assert read_all(source) == ([(day, 1), (day, 2)], [])
    one = FileSource(f"{tmp_path}/day=2026-01-31/*", format=suffix, schema="day DATE, n BIGINT", partitioning="hive")
    assert read_all(one)[0] == [(day, 1), (day, 2)]


def test_columns_can_be_read_without_those_of_the_file(tmp_path):
    put(tmp_path / "day=1/a.csv", "n\n1\n2\n")
    sink = hf.MemorySink()
    job = hf.Job(None, name="days", storage="memory://hive-days")
    rows = job.read(FileSource(str(tmp_path), schema="n BIGINT, day INT", partitioning="hive", name="f"))
    rows.select("day").write(sink)
    run(job)
    assert sink.rows() == [{"day": 1}, {"day": 1}]


@pytest.mark.parametrize(
    ("folder", "declared", "reason"),
    [
        ("day=x", "n BIGINT, day INT", "partition column 'day' is no int32, but 'x'"),
        ("day=0x10", "n BIGINT, day INT", "partition column 'day' is no int32, but '0x10'"),
        ("day=-0X1", "n BIGINT, day BIGINT", "partition column 'day' is no int64, but '-0X1'"),
        ("day=300", "n BIGINT, day TINYINT", "partition column 'day' is no int8, but '300'"),
        (f"day={NULL_PARTITION}", "n BIGINT, day INT NOT NULL", "is null, which schema= forbids"),
        ("day=1/more=2", "n BIGINT, day INT", "on_new_column='ignore'"),
        ("other=1", "n BIGINT, day INT", "on_"),
    ],
)
def test_a_folder_that_does_not_fit_the_schema_makes_the_rows_of_its_files_bad(tmp_path, folder, declared, reason):
    put(tmp_path / folder / "a.csv", "n\n1\n2\n")
    rows, bad = read_all(FileSource(str(tmp_path), schema=declared, partitioning="hive"))
    assert rows == []
    assert len(bad) == 2
    assert {reason in row.reason for row in bad} == {True}


def test_a_folder_whose_name_is_not_utf8_makes_the_rows_of_its_files_bad(tmp_path):
    folder = tmp_path / "in" / b"day=caf\xe9".decode("utf-8", "surrogateescape")
    put(folder / "a.csv", "n\n1\n")
    rows, bad = read_all(FileSource(str(tmp_path / "in"), schema="n BIGINT, day STRING", partitioning="hive"))
    assert rows == []
    assert "partition column 'day' is no string" in bad[0].reason


def test_without_the_setting_a_column_in_the_folders_is_missed_and_the_setting_is_named(tmp_path, caplog):
    put(tmp_path / "day=1/a.csv", "n\n1\n")
    for policy in ("fail", "null"):
        rows, [bad] = read_all(FileSource(str(tmp_path), schema="n BIGINT, day INT", on_missing_column=policy))
        assert rows == []
        assert "partitioning='hive'" in bad.reason
    with caplog.at_level(logging.WARNING):
        assert FileSource(str(tmp_path)).schema().names == ["n"]
    assert "partitioning='hive'" in caplog.text
    with pytest.raises(SettingsError, match="partitioning='Hive'"):
        FileSource(str(tmp_path), partitioning="Hive")


def test_json_rows_that_lack_a_column_of_their_folder_are_bad_and_the_setting_is_named(tmp_path):
    put(tmp_path / "day=1/a.json", '{"n": 1}\n{"n": 2, "day": 7}\n{"n": "x"}\n{"n": 3}\n{"n": 4, "day": 8}\n')
    put(tmp_path / "b.json", '{"n": 5}\n')
    rows, bad = read_all(FileSource(str(tmp_path), schema="n BIGINT, day INT"))
    assert sorted(rows, key=str) == [(2, 7), (4, 8), (5, None)]
    assert [(row.position, "partitioning='hive'" in row.reason) for row in bad] == [
        ("byte 0", True), ("byte 28", False), ("byte 39", True)
    ]  # fmt: skip
    hive = read_all(FileSource(str(tmp_path / "day=*" / "*.json"), schema="n BIGINT, day INT", partitioning="hive"))
    assert (3, 1) in hive[0]


def test_a_schema_of_partition_columns_alone_is_refused(tmp_path):
    put(tmp_path / "day=1/a.csv", "n\n1\n")
    with pytest.raises(BadRecord, match="at least one column that the file holds"):
        read_all(FileSource(str(tmp_path), schema="day INT", partitioning="hive"))


def test_a_folder_of_a_partition_column_that_starts_with_an_underscore_is_not_hidden(tmp_path):
    put(tmp_path / "_day=1/a.csv", "n\n1\n")
    put(tmp_path / "_staging/b.csv", "n\n2\n")
    put(tmp_path / "_day=1/_day=2.csv", "n\n3\n")
    assert read_all(FileSource(str(tmp_path), schema="n BIGINT, _day INT", partitioning="hive"))[0] == [(1, 1)]
    store = open_store("memory://hive-hidden")
    for name in ("t/_day=1/a.csv", "t/_staging/b.csv", "t/_day=1/_day=2.csv"):
        store.put(name, b"n\n1\n")
    source = FileSource("memory://hive-hidden/t", format="csv", schema="n BIGINT, _day INT", partitioning="hive")
    assert read_all(source)[0] == [(1, 1)]
