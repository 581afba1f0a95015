"""Text files as they are found in the wild: line ends, quotes, blank lines, encodings, times without a zone."""

import datetime as dt
import gzip
import io
import itertools
import random
import re

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from sources_kit import SCHEMA, enumerator, ids, put_text, read_all, read_one

from holdfast.errors import BadRecord, JobRefused
from holdfast.sources.base import SplitRead
from holdfast.sources.files.file_source import FileSource

HEAD = {"csv": "id,word\n", "json": ""}
LINES = {"csv": "{n},word {n}\n", "json": '{{"id":{n},"word":"word {n}"}}\n'}
WORDS = pa.schema([("id", pa.string()), ("word", pa.string())])


def text_of(suffix: str, count: int, line_end: str) -> bytes:
    text = HEAD[suffix] + "".join(LINES[suffix].format(n=n) for n in range(count))
    return text.replace("\n", line_end).encode()


@pytest.mark.parametrize("multiline", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\n\r", "\n\n", "\r\r\n"])
@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_every_line_end_ends_a_row(tmp_path, suffix, line_end, packed, multiline):
    text = text_of(suffix, 300, line_end)
    path = put_text(tmp_path / f"a.{suffix}{'.gz' if packed else ''}", gzip.compress(text) if packed else text)
    source = FileSource(str(path), schema=SCHEMA, multiline=multiline)
    assert read_all(source) == (ids(300), [])
    assert FileSource(str(path), multiline=multiline).schema() == SCHEMA


@pytest.mark.parametrize("suffix", ["csv", "json"])
@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_any_division_reads_each_line_once_whatever_ends_it(tmp_path, suffix, line_end):
    path = put_text(tmp_path / f"a.{suffix}", text_of(suffix, 12, line_end))
    source = FileSource(str(path), format=suffix, schema=SCHEMA)
    planner = enumerator(source)
    [whole] = planner.plan(planner.initial(), planner.latest(), 10**6, 10**9).reads
    for cut in range(whole.stop + 1):
        parts = [SplitRead(whole.split, *ends, 1, whole.detail) for ends in ((0, cut), (cut, whole.stop))]
        assert [row for part in parts for row in read_one(source, part)[0]] == ids(12)


def random_csv(draw: random.Random) -> bytes:
    """Mostly rows of two values, with quotes, line ends and delimiters anywhere."""
    values = ["a", "", '"b"', '"c,c"', '"d\nd"', '"e""e"', 'f"f', '"g"g', '"', '""', '"h\r\nh"', 'i""i']
    rows = (",".join(draw.choices(values, k=draw.choice([2, 2, 2, 2, 1, 3]))) for _ in range(draw.randint(1, 8)))
    return "".join(row + draw.choice(["\n", "\n", "\r\n", "\r", "\n\n"]) for row in rows).encode()


def by_pyarrow(data: bytes, multiline: bool) -> tuple[list[tuple], list[str]]:
    """Rows, and the rows of another width, as PyArrow reads them without any help."""
    wrong: list[str] = []

    def note(row: pa_csv.InvalidRow) -> str:
        wrong.append(row.text)
        return "skip"

    table = pa_csv.read_csv(
        io.BytesIO(data),
        pa_csv.ReadOptions(use_threads=False, column_names=WORDS.names),
        pa_csv.ParseOptions(newlines_in_values=multiline, invalid_row_handler=note),
        pa_csv.ConvertOptions(
            column_types=WORDS, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
        ),
    )
    return [tuple(row.values()) for row in table.to_pylist()], wrong


def test_csv_is_read_as_pyarrow_reads_it_unless_a_quote_stays_open(tmp_path):
    seed = random.randrange(10**9)
    print("seed", seed)
    draw = random.Random(seed)
    compared = 0
    for number in range(400):
        data = random_csv(draw)
        fenced_rows, fenced_wrong = by_pyarrow(data + b"fence,fence,fence\n", multiline=True)
        if not fenced_wrong or fenced_wrong[-1] != "fence,fence,fence":
            continue  # A quote is open at the end.
        path = put_text(tmp_path / f"{number}.csv", data)
        rows, bad = read_all(FileSource(str(path), schema=WORDS, header=False, multiline=True))
        assert rows == fenced_rows, data
        assert [row.payload for row in bad] == [text.rstrip("\r\n") for text in fenced_wrong[:-1]], data
        compared += 1
    assert compared > 100


def test_without_multiline_each_line_is_read_as_if_it_stood_alone(tmp_path):
    seed = random.randrange(10**9)
    print("seed", seed)
    draw = random.Random(seed)
    for number in range(200):
        data = random_csv(draw)
        path = put_text(tmp_path / f"{number}.csv", data)
        rows, bad = read_all(FileSource(str(path), schema=WORDS, header=False), 10**6)
        expected: list[tuple] = []
        for line in filter(None, data.replace(b"\r", b"\n").split(b"\n")):
            alone, _ = by_pyarrow(line + b"\n", multiline=False)
            expected += [] if any("\n" in (value or "") for row in alone for value in row) else alone
        assert rows == expected, data
        assert len(rows) + len(bad) == len(list(filter(None, data.replace(b"\r", b"\n").split(b"\n")))), data


@pytest.mark.parametrize("multiline", [False, True])
def test_a_stray_quote_costs_at_most_the_row_that_it_stands_in(tmp_path, multiline):
    rows = [f"{n},word {n}\n" for n in range(1_000)]
    inside, opening = list(rows), list(rows)
    inside[10] = '10,5" disk\n'
    opening[10] = '10,"word 10\n'
    path = put_text(tmp_path / "inside.csv", "id,word\n" + "".join(inside))
    expected = ids(1_000)
    expected[10] = (10, '5" disk')
    assert read_all(FileSource(str(path), schema=SCHEMA, multiline=multiline)) == (expected, [])
    path = put_text(tmp_path / "opening.csv", "id,word\n" + "".join(opening))
    read, bad = read_all(FileSource(str(path), schema=SCHEMA, multiline=multiline), 10**6)
    assert read == ids(10) + ids(989, 11)
    assert [(row.payload, row.reason) for row in bad] == [('10,"word 10', "a quote is left open")]


def test_a_quote_left_open_in_the_last_row_of_a_multi_line_file_is_a_bad_row(tmp_path):
    path = put_text(tmp_path / "a.csv", 'id,word\n1,"a\nb"\n,,\n2,"c')
    rows, bad = read_all(FileSource(str(path), schema=SCHEMA, multiline=True))
    assert rows == [(1, "a\nb")]
    assert [row.payload for row in bad] == [",,", '2,"c']


def test_a_row_that_is_not_utf8_is_bad_unless_its_column_takes_bytes(tmp_path, recwarn):
    text = 'id,word\n1,a\n2,\xff\n3\xff\n4,"\xff\n5,e\n'.encode("latin-1")
    path = put_text(tmp_path / "a.csv", text)
    rows, bad = read_all(FileSource(str(path), schema=SCHEMA))
    assert rows == [(1, "a"), (5, "e")]
    assert [row.position for row in bad] == [f"byte {text.index(part)}" for part in (b"2,", b"3\xff", b"4,")]
    rows, bad = read_all(FileSource(str(path), schema="id BIGINT, word BINARY"))
    assert rows == [(1, b"a"), (2, b"\xff"), (5, b"e")]
    assert len(bad) == 2
    assert not recwarn.list


@pytest.mark.parametrize("multiline", [False, True])
@pytest.mark.parametrize("blank", ["\n", "\r", "\n\r\n\n", "  \n\t\n", "\ufeff\n", " "])
def test_a_file_of_blank_lines_has_no_rows(tmp_path, blank, multiline):
    put_text(tmp_path / "blank.csv", blank)
    source = FileSource(str(tmp_path), format="csv", schema=SCHEMA, multiline=multiline)
    assert read_all(source) == ([], [])
    put_text(tmp_path / "blank.json", blank)
    assert read_all(FileSource(str(tmp_path), format="json", schema=SCHEMA)) == ([], [])


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_blank_lines_around_the_rows_are_not_rows(tmp_path, suffix):
    text = "\n \r\n" + HEAD[suffix] + LINES[suffix].format(n=0) + "\n\r\n" + LINES[suffix].format(n=1) + "\n"
    path = put_text(tmp_path / f"a.{suffix}", text)
    source = FileSource(str(path), schema=SCHEMA)
    assert read_all(source) == (ids(2), [])
    assert FileSource(str(path)).schema() == SCHEMA
    planner = enumerator(source)
    [whole] = planner.plan(planner.initial(), planner.latest(), 10**6, 10**9).reads
    for cut in range(whole.stop + 1):
        parts = [SplitRead(whole.split, *ends, 1, whole.detail) for ends in itertools.pairwise((0, cut, whole.stop))]
        assert [row for part in parts for row in read_one(source, part)[0]] == ids(2)


@pytest.mark.parametrize("text", ["\n\n", "id,word\n"])
def test_a_schema_is_inferred_from_the_first_file_that_has_a_row(tmp_path, text):
    put_text(tmp_path / "a.csv", text)
    with pytest.raises(JobRefused, match="no file has a row yet, so the schema cannot be inferred: give schema="):
        FileSource(str(tmp_path)).schema()
    put_text(tmp_path / "b.csv", "id,word\n1,a\n")
    source = FileSource(str(tmp_path))
    assert source.schema() == SCHEMA
    assert read_all(source) == ([(1, "a")], [])


@pytest.mark.parametrize(
    ("declared", "value", "advice"),
    [
        ("TIMESTAMP", "2026-01-31 12:00:00", "needs a zone: declare the column as TIMESTAMP_NTZ, or write a zone"),
        ("TIMESTAMP_NTZ", "2026-01-31T12:00:00Z", "takes none: declare the column as TIMESTAMP"),
    ],
)
def test_a_time_that_does_not_fit_its_type_says_which_type_does(tmp_path, declared, value, advice):
    for path in (
        put_text(tmp_path / "a.csv", f"at\n{value}\n"),
        put_text(tmp_path / "a.json", f'{{"at":"{value}"}}\n'),
    ):
        [bad] = read_all(FileSource(str(path), schema=f"at {declared}"))[1]
        assert "column 'at'" in bad.reason
        assert value in bad.payload
        assert bad.reason.partition(advice)[1]
        assert "assume_timezone" not in bad.reason


def test_a_column_of_times_that_does_not_fit_says_which_type_does(tmp_path):
    pq.write_table(pa.table({"at": pa.array([0], pa.timestamp("us"))}), tmp_path / "a.parquet")
    rows, [bad] = read_all(FileSource(str(tmp_path / "a.parquet"), schema="at TIMESTAMP"))
    assert rows == []
    assert re.search(r"column 'at' is timestamp.*TIMESTAMP_NTZ for times without a zone", bad.reason)


@pytest.mark.parametrize("end", ["", "\n", "\r", "\r\n"])
def test_a_csv_file_that_is_a_header_alone_has_no_rows(tmp_path, end):
    for multiline in (False, True):
        path = put_text(tmp_path / f"{multiline}.csv", f"id,word{end}")
        assert read_all(FileSource(str(path), schema=SCHEMA, multiline=multiline)) == ([], [])


def test_a_csv_header_with_an_open_quote_is_named(tmp_path):
    path = put_text(tmp_path / "a.csv", 'id,"wo\nrd"\n1,a\n')
    with pytest.raises(BadRecord, match=r"a\.csv: the header 'id,\"wo\\n' cannot be divided.*multiline=True"):
        read_all(FileSource(str(path), schema=SCHEMA))
    [bad] = read_all(FileSource(str(path), schema=SCHEMA, multiline=True))[1]
    assert "['wo\\nrd']" in bad.reason


@pytest.mark.parametrize(
    ("unit", "written", "read"),
    [
        ("us", "2026-01-31 12:00:00.123456789", dt.datetime(2026, 1, 31, 12, 0, 0, 123456)),
        ("us", "1969-12-31 23:59:59.9999999", dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("ms", "2026-01-31 12:00:00.1239", dt.datetime(2026, 1, 31, 12, 0, 0, 123000)),
        ("s", "2026-01-31 12:00:00.9", dt.datetime(2026, 1, 31, 12)),
    ],
)
def test_digits_beyond_the_unit_of_a_time_are_cut_and_the_rows_beside_it_are_as_they_were(
    tmp_path, unit, written, read
):
    text = f'id,at,word\n1,2026-01-01 00:00:00,a.123456789\n2,{written},\n3,nonsense,\n4\n5,,"x\n'
    path = put_text(tmp_path / "a.csv", text)
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp(unit)), ("word", pa.string())])
    rows, bad = read_all(FileSource(str(path), schema=schema))
    assert rows == [(1, dt.datetime(2026, 1, 1), "a.123456789"), (2, read, None)]
    assert [row.payload for row in bad] == ["3,nonsense,", "4", '5,,"x']
    assert "column 'at'" in bad[0].reason
    zoned = put_text(tmp_path / "b.csv", f"at\n{written}Z\n{written}+01:00\n")
    rows, bad = read_all(FileSource(str(zoned), schema=pa.schema([("at", pa.timestamp(unit, "UTC"))])))
    assert [row[0].replace(tzinfo=None) for row in rows] == [read, read - dt.timedelta(hours=1)]
    assert bad == []


def test_hexadecimal_digits_are_no_integer(tmp_path):
    path = put_text(tmp_path / "a.csv", 'n,s\n16,0x10\n0x10,a\n"0XfF",b\n7,c\n')
    rows, bad = read_all(FileSource(str(path), schema="n BIGINT, s STRING"))
    assert rows == [(16, "0x10"), (7, "c")]
    assert [row.reason.split("; ")[-1] for row in bad] == ["expected decimal digits"] * 2
    assert "column 'n': '0x10' is no int64" in bad[0].reason


def test_a_column_with_hexadecimal_digits_is_inferred_as_text(tmp_path):
    path = put_text(tmp_path / "a.csv", 'n,m\n16,1\n0x10,2\n"0XfF",3\n7,4\n')
    rows, bad = read_all(FileSource(str(path)))
    assert rows == [("16", 1), ("0x10", 2), ("0XfF", 3), ("7", 4)]
    assert bad == []


def test_a_number_that_a_float_cannot_hold_is_a_bad_row_and_infinity_is_not(tmp_path):
    path = put_text(tmp_path / "a.csv", "id,x,y\n1,1e39,0\n2,inf,1\n3,-1e400,1e39\n4\n5,-Infinity,1e400\n6,,\n")
    rows, bad = read_all(FileSource(str(path), schema="id INT, x FLOAT, y DOUBLE"))
    assert rows == [(2, float("inf"), 1.0), (6, None, None)]
    assert [row.payload.split(",")[0] for row in bad] == ["1", "3", "4", "5"]
    assert "column 'x': '1e39' is beyond the range of float" in bad[0].reason


def test_a_compressed_csv_file_whose_name_does_not_say_so_is_named(tmp_path):
    path = put_text(tmp_path / "a.csv", gzip.compress(b"id,word\n1,a\n"))
    with pytest.raises(
        BadRecord, match=r"a\.csv: is compressed, and its name does not say so: end it with one of \.gz"
    ):
        read_all(FileSource(str(path), schema=SCHEMA))
