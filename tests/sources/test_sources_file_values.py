"""Values of Parquet and Arrow files that the declared type cannot hold are bad rows; all others are exact."""

import datetime as dt
import io
import json
import struct

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from sources_kit import put_text, read_all

from holdfast.errors import BadRecord
from holdfast.sources.files.file_source import FileSource

EPOCH_DAY = 2440588
"""The Julian day of 1970-01-01, as INT96 counts days."""
MOMENT = dt.datetime(2026, 1, 1, 1, 2, 3, 456789)


def as_file(table: pa.Table, suffix: str, **options) -> bytes:
    out = io.BytesIO()
    if suffix == "parquet":
        pq.write_table(table, out, **options)
    else:
        with ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()


def test_int96_times_are_read_over_all_years_of_the_calendar(tmp_path):
    written = [
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
        dt.datetime(1, 1, 1),
        MOMENT,
        dt.datetime(1600, 2, 29),
        None,
    ]
    table = pa.table({"at": pa.array(written, pa.timestamp("us")), "all": pa.array([[time] for time in written])})
    put_text(tmp_path / "a.parquet", as_file(table, "parquet", use_deprecated_int96_timestamps=True))
    rows, bad = read_all(FileSource(str(tmp_path), schema="at TIMESTAMP_NTZ, all ARRAY<TIMESTAMP_NTZ>"))
    assert rows == [(time, [time]) for time in written]
    assert bad == []
    [inferred] = {str(field.type) for field in FileSource(str(tmp_path)).schema() if field.name == "at"}
    assert inferred == "timestamp[us]"


def test_an_int96_time_that_microseconds_cannot_hold_makes_its_row_bad(tmp_path):
    count = 5
    columns = {"at": [MOMENT] * count, "all": [[MOMENT]] * count, "one": [{"t": MOMENT, "f": float("nan")}] * count}
    table = pa.table({"id": range(count), **columns})
    data = bytearray(
        as_file(
            table,
            "parquet",
            use_deprecated_int96_timestamps=True,
            use_dictionary=False,
            compression="none",
            write_statistics=False,
        )
    )
    day = struct.pack("<i", (MOMENT.date() - dt.date(1970, 1, 1)).days + EPOCH_DAY)
    places = [place for place in range(len(data)) if data[place : place + 4] == day]
    assert len(places) == 3 * count
    for place in (places[1], places[count + 3], places[2 * count + 4]):  # at of row 1, all of row 3, one of row 4
        data[place : place + 4] = struct.pack("<i", 2**31 - 1)
    put_text(tmp_path / "a.parquet", bytes(data))
    declared = "id BIGINT, at TIMESTAMP_NTZ, all ARRAY<TIMESTAMP_NTZ>, one STRUCT<t: TIMESTAMP_NTZ, f: DOUBLE>"
    rows, bad = read_all(FileSource(str(tmp_path), schema=declared))
    assert [row[:3] for row in rows] == [(number, MOMENT, [MOMENT]) for number in (0, 2)]
    assert [row[3]["t"] for row in rows] == [MOMENT] * 2
    assert [row.position for row in bad] == ["1", "3", "4"]
    assert "column 'at' (timestamp[s]) has a value that timestamp[us] cannot hold" in bad[0].reason
    shown = json.loads(bad[0].payload)
    assert shown["at"].isdigit()
    assert shown["all"] == ["2026-01-01T01:02:03.456789"]


@pytest.mark.parametrize(("suffix", "unit"), [("parquet", "ms"), ("arrow", "ms"), ("arrow", "s")])
def test_a_time_that_leaves_microseconds_makes_its_row_bad(tmp_path, suffix, unit):
    numbers = [18446744073709557, 1764100000000000000, None, 1764100]
    times = pa.array(numbers, pa.int64()).cast(pa.timestamp(unit))
    nested = [None if number is None else [number, 1] for number in numbers]
    lists = pa.array(nested, pa.list_(pa.int64())).cast(pa.list_(pa.timestamp(unit)))
    put_text(tmp_path / f"a.{suffix}", as_file(pa.table({"id": range(4), "at": times, "all": lists}), suffix))
    for declared in ("id BIGINT, at TIMESTAMP_NTZ", "id BIGINT, all ARRAY<TIMESTAMP_NTZ>"):
        rows, bad = read_all(FileSource(str(tmp_path), schema=declared, on_new_column="ignore"))
        assert [row[0] for row in rows] == [2, 3]
        assert [row.position for row in bad] == ["0", "1"]
        assert "cannot hold" in bad[0].reason
        assert str(numbers[1]) in bad[1].payload


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_nanoseconds_are_cut_by_floor_on_both_sides_of_1970(tmp_path, suffix):
    times = pa.array([-1, -1001, None, 1999], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    put_text(tmp_path / f"a.{suffix}", as_file(pa.table({"at": times, "all": pa.array([[1]] * 4)}), suffix))
    rows, bad = read_all(FileSource(str(tmp_path), schema="at TIMESTAMP", on_new_column="ignore"))
    before = dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    after = dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
    assert [row[0] for row in rows] == [
        before.replace(microsecond=999999),
        before.replace(microsecond=999998),
        None,
        after,
    ]
    assert bad == []


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_bytes_of_another_length_than_declared_make_their_rows_bad(tmp_path, suffix):
    put_text(tmp_path / f"a.{suffix}", as_file(pa.table({"id": [b"ab", b"abc", None]}), suffix))
    rows, bad = read_all(FileSource(str(tmp_path), schema=pa.schema([("id", pa.binary(2))])))
    assert rows == [(b"ab",), (None,)]
    assert [(row.position, "cannot hold" in row.reason) for row in bad] == [("1", True)]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_text_that_is_not_utf8_makes_its_row_bad_nested_too(tmp_path, suffix):
    words = pa.Array.from_buffers(
        pa.string(), 4, [None, pa.py_buffer(struct.pack("<5i", 0, 1, 2, 3, 4)), pa.py_buffer(b"a\xffb\xfe")]
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 2, 2], pa.int32()), words.slice(2, 2))
    table = pa.table({"id": range(4), "word": words, "all": lists})
    put_text(tmp_path / f"a.{suffix}", as_file(table, suffix))
    rows, bad = read_all(FileSource(str(tmp_path), schema="id BIGINT, word STRING, all ARRAY<STRING>"))
    assert rows == [(0, "a", ["b"])]
    assert [row.position for row in bad] == ["1", "2", "3"]
    assert "column 'word' holds a text that is not UTF-8" in bad[0].reason
    assert "column 'all' holds a text that is not UTF-8" in bad[1].reason


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_time_past_the_end_of_the_day_makes_its_row_bad(tmp_path, suffix):
    times = pa.array([1, 86_400_000_000, None, 2]).view(pa.time64("us"))
    put_text(tmp_path / f"a.{suffix}", as_file(pa.table({"at": times}), suffix))
    rows, bad = read_all(FileSource(str(tmp_path), schema=pa.schema([("at", pa.time64("us"))])))
    assert len(rows) == 3
    assert [(row.position, "column 'at' holds no time64" in row.reason) for row in bad] == [("1", True)]


def test_an_arrow_file_whose_offsets_lead_outside_of_its_texts_is_named(tmp_path):
    word = "a text that is found again"
    data = bytearray(as_file(pa.table({"word": [word, "b"]}), "arrow"))
    place = data.find(struct.pack("<3i", 0, len(word), len(word) + 1))
    data[place + 4 : place + 8] = struct.pack("<i", 10**8)
    put_text(tmp_path / "a.arrow", bytes(data))
    with pytest.raises(BadRecord, match=r"a\.arrow: not a readable arrow file"):
        read_all(FileSource(str(tmp_path), schema="word STRING"))
