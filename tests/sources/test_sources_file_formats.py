"""FileSource in tasks: every format, divided files, malformed rows, schemas that change."""

import datetime
import decimal
import gzip
import itertools
import json
import random
import re

import cloudpickle
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from sources_kit import (
    SCHEMA,
    enumerator,
    ids,
    place,
    put_text,
    read_all,
    read_one,
    rows_between,
    write,
)

from holdfast.errors import BadRecord, HoldfastError, JobRefused
from holdfast.sources.base import SplitRead
from holdfast.sources.files import lines
from holdfast.sources.files.file_source import FileSource
from holdfast.storage.store import open_store
from sampling import some

SUFFIXES = ["csv", "json", "parquet", "arrow"]


def write_table(path, table, **options):
    hidden = path.with_name("_" + path.name)
    pq.write_table(table, hidden, **options)
    return place(hidden, path)


@pytest.mark.parametrize("suffix", some(SUFFIXES, 0, 2))
def test_a_large_file_is_several_reads_that_together_are_the_file(tmp_path, suffix):
    write(tmp_path / f"large.{suffix}", ids(100_000), group_rows=1_000)
    source = FileSource(str(tmp_path), format=suffix, schema=SCHEMA)
    planner = enumerator(source)
    plan = planner.plan(planner.initial(), planner.latest(), 10**6, 10**9)
    small = planner.plan(planner.initial(), planner.latest(), 40_000, 10**9)
    assert len(plan.reads) >= 2
    assert len(small.reads) >= 2
    assert small.to["next"] == 1
    assert small.to["0"] > 0
    assert [row for read in plan.reads for row in read_one(source, read)[0]] == ids(100_000)
    first = [row for read in small.reads for row in read_one(source, read)[0]]
    assert len(first) < 100_000
    assert first + rows_between(source, small.to, planner.latest(), planner, 40_000)[0] == ids(100_000)


@pytest.mark.parametrize("suffix", some(SUFFIXES, 0, 2))
def test_the_same_read_gives_the_same_rows_whatever_else_was_read(tmp_path, suffix):
    path = write(tmp_path / f"one.{suffix}", ids(50))
    source = FileSource(str(tmp_path), format=suffix, schema=SCHEMA)
    planner = enumerator(source)
    [whole] = planner.plan(planner.initial(), planner.latest(), 10**6, 10**9).reads
    length = whole.stop
    for cut in range(0, length + 1, max(1, length // 60)):
        pieces = [SplitRead(str(path), 0, cut, 1, whole.detail), SplitRead(str(path), cut, length, 1, whole.detail)]
        assert [row for piece in pieces for row in read_one(source, piece)[0]] == ids(50)
        assert read_one(source, pieces[1]) == read_one(source, pieces[1])


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("block_bytes", [1, 7, 64])
def test_any_division_of_a_text_reads_each_line_once(end, block_bytes):
    seed = random.randrange(10**9)
    print("seed", seed)
    draw = random.Random(seed)
    text = ("\n".join("x" * draw.randint(0, 12) for _ in range(60)) + end).encode()
    for _ in range(50):
        cuts = [0, *sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 5))), len(text)]
        found = b""
        for start, stop in itertools.pairwise(cuts):
            for offset, data in lines.blocks(
                lambda offset, length: text[offset : offset + length], len(text), start, stop, block_bytes
            ):
                assert offset == len(found)
                assert start <= offset < stop
                assert offset == 0 or text[offset - 1 : offset] == b"\n"
                found += data
        assert found == text


def test_malformed_csv_rows_are_reported_with_their_place_and_the_rest_is_read(tmp_path):
    text = 'id,word\n1,a\n2\n3,c\nx,d\n5,"open\n6,f\n\n7,g,h\n8,\xff\n9,"i,i"\n'.encode("latin-1")
    path = put_text(tmp_path / "bad.csv", text)
    rows, bad = read_all(FileSource(str(path), schema=SCHEMA, name="words"))
    assert rows == [(1, "a"), (3, "c"), (6, "f"), (9, "i,i")]
    assert [(row.position, row.payload) for row in bad] == [
        (f"byte {text.index(line)}", line.decode("utf-8", "replace"))
        for line in (b"2\n", b"x,d\n", b'5,"open\n', b"7,g,h\n", b"8,\xff\n")
        for line in [line[:-1]]
    ]
    assert {(row.source, row.split) for row in bad} == {("words", str(path))}
    reasons = [row.reason for row in bad]
    assert "has 1 fields, expected 2" in reasons[0]
    assert "int64" in reasons[1]
    assert "quote is left open" in reasons[2]
    assert "has 3 fields, expected 2" in reasons[3]
    assert "UTF8" in reasons[4]


def test_malformed_json_lines_are_reported_with_their_place_and_the_rest_is_read(tmp_path):
    lines = [
        '{"id":1,"word":"a"}',
        "null",
        '{"id":2',
        '{"id":"x","word":"b"}',
        "[1]",
        '{"id":1}{"id":2}',
        '{"word":"z"}',
    ]
    text = "\n".join(lines) + "\n"
    path = put_text(tmp_path / "bad.jsonl", text)
    rows, bad = read_all(FileSource(str(path), schema=SCHEMA))
    assert rows == [(1, "a"), (None, "z")]
    assert [row.payload for row in bad] == lines[1:6]
    assert [row.position for row in bad] == [f"byte {text.index(line)}" for line in lines[1:6]]


def test_bad_rows_are_the_same_however_the_file_is_divided(tmp_path):
    seed = random.randrange(10**9)
    print("seed", seed)
    draw = random.Random(seed)
    lines = [
        draw.choice(["{n},ok", "{n}", "x{n},a", '{n},"o', '{n},"a""b"', '{n},q"q', ""]).format(n=n) for n in range(80)
    ]
    path = put_text(tmp_path / "mixed.csv", "id,word\n" + "\n".join(lines))
    source = FileSource(str(path), schema=SCHEMA)
    whole = read_all(source, 10**6)
    planner = enumerator(source)
    [read] = planner.plan(planner.initial(), planner.latest(), 10**6, 10**9).reads
    for _ in range(30):
        cuts = [0, *sorted(draw.randint(0, read.stop) for _ in range(3)), read.stop]
        parts = [
            read_one(source, SplitRead(read.split, start, stop, 1, read.detail))
            for start, stop in itertools.pairwise(cuts)
        ]
        assert ([row for part in parts for row in part[0]], [row for part in parts for row in part[1]]) == whole


def test_a_null_where_the_schema_allows_none_is_a_bad_row_of_any_format(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
    for suffix in SUFFIXES:
        path = write(tmp_path / f"{suffix}.{suffix}", [(1, "a"), (None, "b"), (3, "c")])
        if suffix == "csv":
            put_text(path, "id,word\n1,a\n,b\n3,c\n")
        rows, bad = read_all(FileSource(str(path), schema=schema))
        assert rows == [(1, "a"), (3, "c")], suffix
        assert ["is null" in row.reason and "b" in row.payload for row in bad] == [True]


def test_rows_around_a_bad_one_keep_their_positions(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
    path = write(tmp_path / "a.parquet", [(0, "a"), (None, "b"), (2, "c"), (3, "d")])
    source = FileSource(str(path), schema=schema)
    planner = enumerator(source)
    [read] = planner.plan(planner.initial(), planner.latest(), 100, 10**9).reads
    for batch in source.read(read):
        assert [batch.position + i for i in range(batch.rows.num_rows)] == batch.rows["id"].to_pylist()


@pytest.mark.parametrize("damage", ["truncated", "foreign"])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_damaged_columnar_file_is_named(tmp_path, suffix, damage):
    path = write(tmp_path / f"good.{suffix}", ids(100))
    data = path.read_bytes()
    broken = put_text(tmp_path / f"broken.{suffix}", data[: len(data) // 2] if damage == "truncated" else b"hello")
    source = FileSource(str(broken), schema=SCHEMA)
    planner = enumerator(source)
    with pytest.raises(BadRecord, match=rf"broken\.{suffix}: not a readable"):
        planner.plan(planner.initial(), planner.latest(), 100, 10**9)


def test_a_damaged_row_group_is_named(tmp_path):
    path = write(tmp_path / "good.parquet", ids(1000))
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    broken = put_text(tmp_path / "broken.parquet", bytes(data))
    with pytest.raises(BadRecord, match=r"broken\.parquet: not a readable Parquet file"):
        read_all(FileSource(str(broken), schema=SCHEMA))


def assert_all_rows_are_bad(source, reason):
    rows, bad = read_all(source)
    assert rows == []
    assert bad
    for row in bad:
        assert re.search(reason, row.reason), row.reason
        assert row.payload


def with_columns(path, columns):
    """A file of a single row with these columns, in the format of its suffix."""
    if path.suffix == ".csv":
        return put_text(path, ",".join(columns) + "\n" + ",".join(str(value) for value in columns.values()) + "\n")
    if path.suffix == ".json":
        return put_text(path, json.dumps(columns) + "\n")
    table = pa.table({name: [value] for name, value in columns.items()})
    if path.suffix == ".parquet":
        return write_table(path, table)
    hidden = path.with_name("_" + path.name)
    with ipc.new_file(hidden, table.schema) as writer:
        writer.write_table(table)
    return place(hidden, path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_new_column_fails_or_is_ignored_by_policy(tmp_path, suffix):
    path = with_columns(tmp_path / f"new.{suffix}", {"word": "a", "extra": 5, "id": 1})
    assert_all_rows_are_bad(
        FileSource(str(path), schema=SCHEMA), r"has new columns \['extra'\].*on_new_column='ignore'"
    )
    assert read_all(FileSource(str(path), schema=SCHEMA, on_new_column="ignore")) == ([(1, "a")], [])


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_a_missing_column_fails_or_is_null_by_policy(tmp_path, suffix):
    path = with_columns(tmp_path / f"less.{suffix}", {"word": "a"})
    assert_all_rows_are_bad(
        FileSource(str(path), schema=SCHEMA), r"has no column 'id' \(int64\).*on_missing_column='null'"
    )
    assert read_all(FileSource(str(path), schema=SCHEMA, on_missing_column="null")) == ([(None, "a")], [])
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
    assert_all_rows_are_bad(FileSource(str(path), schema=required, on_missing_column="null"), "never null")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_another_type_is_refused_with_file_column_and_both_types(tmp_path, suffix):
    path = with_columns(tmp_path / f"other.{suffix}", {"id": "text", "word": "a"})
    assert_all_rows_are_bad(FileSource(str(path), schema=SCHEMA), "column 'id' is string, expected int64")


@pytest.mark.parametrize(
    ("written", "declared", "value", "read"),
    [
        (pa.int32(), pa.int64(), 5, 5),
        (pa.uint32(), pa.int64(), 5, 5),
        (pa.int32(), pa.float64(), 5, 5.0),
        (pa.float32(), pa.float64(), 0.5, 0.5),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), "a", "a"),
        (pa.large_string(), pa.string(), "a", "a"),
        (pa.decimal128(5, 2), pa.decimal128(10, 3), decimal.Decimal("1.25"), decimal.Decimal("1.250")),
        (pa.timestamp("ns"), pa.timestamp("us"), datetime.datetime(2020, 1, 2), datetime.datetime(2020, 1, 2)),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), [1], [1]),
    ],
)
def test_a_narrower_type_is_widened(tmp_path, written, declared, value, read):
    path = write_table(tmp_path / "a.parquet", pa.table({"x": pa.array([value], written)}))
    assert read_all(FileSource(str(path), schema=pa.schema([("x", declared)])))[0] == [(read,)]


@pytest.mark.parametrize(
    ("written", "declared"),
    [
        (pa.int64(), pa.int32()),
        (pa.uint64(), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.decimal128(10, 3), pa.decimal128(10, 2)),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
    ],
)
def test_a_type_that_might_lose_values_is_refused(tmp_path, written, declared):
    path = write_table(tmp_path / "a.parquet", pa.table({"x": pa.array([None], written)}))
    assert_all_rows_are_bad(FileSource(str(path), schema=pa.schema([("x", declared)])), "column 'x' is")


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_compressed_text_file_is_one_read(tmp_path, suffix):
    plain = write(tmp_path / f"a.{suffix}", ids(20_000))
    path = put_text(tmp_path / f"packed.{suffix}.gz", gzip.compress(plain.read_bytes()))
    source = FileSource(str(path), schema=SCHEMA)
    planner = enumerator(source)
    assert len(planner.plan(planner.initial(), planner.latest(), 10, 10**9).reads) == 1
    assert read_all(source)[0] == ids(20_000)


@pytest.mark.parametrize("cut", [40, None])
def test_a_damaged_compressed_file_is_named(tmp_path, cut):
    packed = gzip.compress("".join(f"{n},word\n" for n in range(1000)).encode()) if cut else b"no gzip at all"
    path = put_text(tmp_path / "packed.csv.gz", packed[:cut])
    with pytest.raises(BadRecord, match=r"packed\.csv\.gz: not a readable csv file"):
        read_all(FileSource(str(path), schema="id BIGINT, word STRING", header=False))


def test_a_multi_line_csv_file_is_one_read_with_line_breaks_in_values(tmp_path):
    path = put_text(tmp_path / "a.csv", 'id,word\r\n1,"a\nb"\r\nx,"c\nd"\r\n2,"e ""f""\r\ng"\r\n')
    source = FileSource(str(path), schema=SCHEMA, multiline=True)
    rows, bad = read_all(source, 1)
    assert rows == [(1, "a\nb"), (2, 'e "f"\r\ng')]
    assert [(row.position, row.payload) for row in bad] == [("byte 18", 'x,"c\nd"')]


def test_nulls_in_csv_are_what_the_source_says(tmp_path):
    path = put_text(tmp_path / "a.csv", 'id,word\n,\n1,""\n2,NA\n')
    assert read_all(FileSource(str(path), schema=SCHEMA))[0] == [(None, None), (1, ""), (2, "NA")]
    assert read_all(FileSource(str(path), schema=SCHEMA, null_values=("", "NA")))[0][2] == (2, None)


def test_a_csv_file_without_a_header_has_the_columns_of_the_schema(tmp_path):
    path = put_text(tmp_path / "a.csv", "1;a\n2;b")
    source = FileSource(str(path), schema="id BIGINT, word STRING", header=False, delimiter=";")
    assert read_all(source)[0] == [(1, "a"), (2, "b")]


def test_decimals_of_csv_are_exact_or_their_rows_are_bad(tmp_path):
    path = put_text(
        tmp_path / "a.csv", f"n,d\n1, 1.50 \n2,{'1' * 20}\n3,9e37\n4,\n5,{'9' * 400}\n6,-{'1' * 18}.{'2' * 20}\n"
    )
    rows, bad = read_all(FileSource(str(path), schema="n INT, d DECIMAL(38,20)"))
    assert rows == [(1, decimal.Decimal("1.5")), (4, None), (6, decimal.Decimal(f"-{'1' * 18}.{'2' * 20}"))]
    assert [one.payload.partition(",")[0] for one in bad] == ["2", "3", "5"] and all("'d'" in one.reason for one in bad)


def test_json_values_take_the_declared_types(tmp_path):
    schema = pa.schema(
        [
            ("at", pa.timestamp("us")),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("inner", pa.struct([("when", pa.timestamp("us")), ("n", pa.int32())])),
        ]
    )
    row = {
        "at": "2020-01-02T03:04:05",
        "day": "2020-01-02",
        "price": "1.25",
        "tags": ["a", None],
        "inner": {"when": "2020-01-01 00:00:00", "n": 1},
    }
    path = put_text(tmp_path / "a.json", json.dumps(row) + "\n" + json.dumps(row | {"day": "soon"}) + "\n{}\n")
    rows, bad = read_all(FileSource(str(path), schema=schema))
    assert rows[0] == (
        datetime.datetime(2020, 1, 2, 3, 4, 5),
        datetime.date(2020, 1, 2),
        decimal.Decimal("1.25"),
        ["a", None],
        {"when": datetime.datetime(2020, 1, 1), "n": 1},
    )
    assert rows[1:] == [(None,) * 5]
    assert ["'day'" in one.reason for one in bad] == [True]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_schema_is_inferred_from_the_first_file(tmp_path, suffix):
    write(tmp_path / f"first.{suffix}", ids(3))
    with_columns(tmp_path / f"second.{suffix}", {"id": 1, "word": "x", "more": 1})
    source = FileSource(str(tmp_path))
    assert source.schema() == SCHEMA
    rows, [bad] = read_all(source)
    assert rows == ids(3)
    assert "has new columns ['more']" in bad.reason


def test_a_schema_that_cannot_be_known_is_refused(tmp_path):
    with pytest.raises(JobRefused, match="no file with a known suffix: give format="):
        FileSource(str(tmp_path)).schema()
    with pytest.raises(JobRefused, match=r"no file matches yet.*give schema="):
        FileSource(str(tmp_path), format="csv").schema()
    write(tmp_path / "a.csv", ids(1))
    write(tmp_path / "b.json", ids(1))
    with pytest.raises(JobRefused, match=r"\['csv', 'json'\]: give format="):
        FileSource(str(tmp_path)).schema()


def test_a_csv_schema_that_no_csv_file_can_have_is_refused():
    with pytest.raises(JobRefused, match="column 'tags': a CSV file cannot hold list"):
        FileSource("/data/*.csv", schema="id INT, tags ARRAY<INT>").schema()


def test_a_source_travels_to_tasks_with_what_the_driver_knows(tmp_path):
    write(tmp_path / "a.csv", ids(5))
    for schema in (None, SCHEMA):
        source = FileSource(str(tmp_path), schema=schema)
        source.schema()
        shipped = cloudpickle.loads(cloudpickle.dumps(source))
        planner = enumerator(source)
        [read] = planner.plan(planner.initial(), planner.latest(), 10, 10**9).reads
        write(tmp_path / "b.json", ids(1))
        assert read_one(shipped, read)[0] == ids(5)
        (tmp_path / "b.json").unlink()


def test_a_source_that_was_not_resolved_on_the_driver_says_so(tmp_path):
    with pytest.raises(HoldfastError, match=r"schema\(\) must have been called"):
        list(FileSource(str(tmp_path)).read(SplitRead("x", 0, 1)))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_in_an_object_store_are_read_like_local_ones(tmp_path, suffix):
    bucket = open_store(f"memory://bucket-{suffix}")
    for number in range(20):
        path = write(tmp_path / f"{number}.{suffix}", ids(30, number * 30))
        bucket.put(f"in/day={number}/x.{suffix}", path.read_bytes())
    bucket.put(f"in/_temporary/x.{suffix}", b"partial")
    bucket.put(f"other/x.{suffix}", b"other")
    source = FileSource(f"memory://bucket-{suffix}/in/**/*.{suffix}", schema=SCHEMA)
    rows, bad = read_all(source, 25)
    assert (sorted(rows), bad) == (ids(600), [])
    planner = enumerator(source)
    [read, *_] = planner.plan(planner.initial(), planner.latest(), 25, 10**9).reads
    assert read.split.startswith(f"memory://bucket-{suffix}/in/day=")
    bucket.delete([read.split.partition(f"bucket-{suffix}/")[2]])
    with pytest.raises(HoldfastError, match="is gone before it was read"):
        list(source.read(read))


def test_credentials_never_show(tmp_path):
    source = FileSource("s3://bucket/x", schema=SCHEMA, storage_options={"aws_secret_access_key": "hush"})
    assert "hush" not in repr(source)
