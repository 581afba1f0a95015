"""Files whose columns differ from the schema: their rows are bad, with the remedy as the reason, and no other rows."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sources_kit import SCHEMA, ids, put_text, read_all, write

import holdfast as hf
from holdfast.errors import JobRefused, QueryFailed
from holdfast.sources.files.file_source import FileSource
from holdfast.testing import run


def run_job(tmp_path, pattern, **settings):
    sink = hf.MemorySink()
    job = hf.Job(None, name="columns", storage=(tmp_path / "state").as_uri(), **settings)
    job.read(FileSource(str(pattern), schema=SCHEMA, name="f")).write(sink)
    run(job)
    return sorted((row["id"], row["word"]) for row in sink.rows())


def odd_file(folder, suffix):
    """A file of two rows with a column that the schema does not have; a Parquet file has another type instead."""
    if suffix == "csv":
        return put_text(folder / "odd.csv", "id,word,more\n7,x,1\n8,y,2\n")
    if suffix == "json":
        return put_text(folder / "odd.json", '{"id":7,"word":"x","more":1}\n{"id":8,"word":"y","more":2}\n')
    table = pa.table({"id": ["7", "8"], "word": ["x", "y"]})
    pq.write_table(table, folder / "_odd")
    return (folder / "_odd").rename(folder / "odd.parquet")


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_a_file_with_other_columns_is_dead_letters_and_the_files_beside_it_are_read(tmp_path, suffix):
    folder = tmp_path / "in"
    write(folder / f"a.{suffix}", ids(3))
    odd = odd_file(folder, suffix)
    write(folder / f"z.{suffix}", ids(3, 3))
    letters = tmp_path / "letters"
    rows = run_job(tmp_path, folder / f"*.{suffix}", bad_records="dead_letter", dead_letters=letters.as_uri())
    assert rows == ids(6)
    found = [row for path in letters.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert {row["split"] for row in found} == {str(odd)}
    assert [("7" in row["payload"], "8" in row["payload"]) for row in found] == [(True, False), (False, True)]


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_without_dead_letters_a_file_with_other_columns_ends_the_query_and_is_named_with_the_remedy(tmp_path, suffix):
    odd = odd_file(tmp_path, suffix)
    with pytest.raises(QueryFailed) as raised:
        run_job(tmp_path, odd)
    assert str(odd) in str(raised.value)
    assert ("on_new_column='ignore'" if suffix != "parquet" else "expected int64") in str(raised.value)


def test_a_json_row_with_a_new_field_is_bad_alone_and_the_reason_names_the_setting_that_ignores_it(tmp_path):
    path = put_text(tmp_path / "a.json", '{"id":1}\n{"id":2,"more":{"deep":1}}\n{"id":3}\n')
    rows, [bad] = read_all(FileSource(str(path), schema=SCHEMA))
    assert [row[0] for row in rows] == [1, 3]
    assert "new columns ['more']" in bad.reason
    assert "on_new_column='ignore'" in bad.reason
    assert read_all(FileSource(str(path), schema=SCHEMA, on_new_column="ignore"))[0] == [
        (1, None),
        (2, None),
        (3, None),
    ]


def test_rows_that_a_file_holds_with_other_types_are_reported_with_all_their_values(tmp_path):
    pq.write_table(pa.table({"id": ["7"], "word": ["x"], "more": [None]}), tmp_path / "a.parquet")
    [bad] = read_all(FileSource(str(tmp_path), schema=SCHEMA, on_new_column="ignore"))[1]
    assert json.loads(bad.payload) == {"id": "7", "word": "x", "more": None}
    assert bad.position == "0"


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_csv_file_that_another_character_divides_names_the_delimiter(tmp_path, delimiter):
    text = f"id{delimiter}word\n1{delimiter}a,b\n"
    path = put_text(tmp_path / "a.csv", text)
    lenient = {"on_new_column": "ignore", "on_missing_column": "null"}
    for policy in ({}, lenient):
        rows, [bad] = read_all(FileSource(str(path), schema=SCHEMA, **policy))
        assert rows == []
        assert f"use delimiter={delimiter!r}" in bad.reason
    with pytest.raises(JobRefused, match="delimiter="):
        FileSource(str(path)).schema()
    assert read_all(FileSource(str(path), delimiter=delimiter))[0] == [(1, "a,b")]
    headless = put_text(tmp_path / "b.csv", f"1{delimiter}a\n")
    [bad] = read_all(FileSource(str(headless), schema=SCHEMA, header=False))[1]
    assert f"use delimiter={delimiter!r}" in bad.reason


def test_a_csv_file_without_a_header_names_the_setting(tmp_path):
    path = put_text(tmp_path / "a.csv", "1,a\n2,b\n")
    rows, [bad] = read_all(FileSource(str(path), schema=SCHEMA))
    assert rows == []
    assert "header=False" in bad.reason


def test_a_csv_file_that_truly_has_one_column_is_read(tmp_path):
    path = put_text(tmp_path / "a.csv", "word\na;b\n")
    assert read_all(FileSource(str(path)))[0] == [("a;b",)]
    odd = put_text(tmp_path / "b.csv", "a;b\nx\n")
    assert read_all(FileSource(str(odd), schema="`a;b` STRING"))[0] == [("x",)]
