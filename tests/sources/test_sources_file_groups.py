"""Row groups of Parquet that are larger than a batch are decoded once, however many pieces they are read in."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sources_kit import enumerator, place, read_one

from holdfast.sources.base import SplitRead
from holdfast.sources.files import group_decoders, parquet_format
from holdfast.sources.files.file_source import FileSource

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    decoders = group_decoders.KeptDecoders()
    monkeypatch.setattr(parquet_format, "kept_decoders", decoders)
    monkeypatch.setattr(parquet_format, "BATCH_ROWS", 64)
    yield decoders
    for decoder in decoders._kept.values():
        decoder.close()


@pytest.fixture
def decoded(monkeypatch):
    """The number of rows that were decoded, in a list."""
    counted = [0]
    plain = pq.ParquetFile.iter_batches

    def batches(*given, **settings):
        for batch in plain(*given, **settings):
            counted[0] += batch.num_rows
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", batches)
    return counted


def put_groups(path, rows: int, group_rows: int):
    hidden = path.with_name("_" + path.name)
    ids = np.arange(rows)
    pq.write_table(pa.table({"id": ids, "word": [f"w{n}" for n in ids]}, SCHEMA), hidden, row_group_size=group_rows)
    return place(hidden, path)


def reader_of(path):
    source = FileSource(str(path), schema=SCHEMA)
    source.schema()
    planner = enumerator(source)
    [whole] = planner.plan(planner.initial(), planner.latest(), 10**6, 10**9).reads

    def read(start, stop):
        rows, bad = read_one(source, SplitRead(str(path), start, stop, 1, whole.detail))
        assert bad == []
        return rows

    return read


def expected(start, stop):
    return [(n, f"w{n}") for n in range(start, stop)]


def test_a_group_is_decoded_once_by_reads_that_follow_each_other(tmp_path, decoded, kept):
    read = reader_of(put_groups(tmp_path / "a.parquet", 3_000, 1_000))
    for start in range(0, 3_000, 70):
        stop = min(start + 70, 3_000)
        assert read(start, stop) == expected(start, stop)
    assert decoded[0] <= 3_000 + 3 * 64
    assert kept._kept == {}


def test_any_reads_in_any_order_give_their_rows_and_keep_a_bounded_number_of_decoders(tmp_path, kept):
    seed = random.randrange(10**9)
    print("seed", seed)
    draw = random.Random(seed)
    readers = [reader_of(put_groups(tmp_path / f"{n}.parquet", 1_000, 300)) for n in range(3)]
    for _ in range(60):
        start = draw.randint(0, 999)
        stop = draw.randint(start + 1, 1_000)
        assert draw.choice(readers)(start, stop) == expected(start, stop)
        assert len(kept._kept) <= group_decoders.DECODERS_MAX


def test_the_reads_of_two_processes_decode_a_group_once_each(tmp_path, decoded, monkeypatch):
    read = reader_of(put_groups(tmp_path / "a.parquet", 2_000, 2_000))
    for number, start in enumerate(range(0, 2_000, 100)):
        monkeypatch.setattr(group_decoders.os, "getpid", lambda number=number: number % 2)
        assert read(start, start + 100) == expected(start, start + 100)
    assert decoded[0] <= 2 * 2_000


def test_a_read_that_is_given_up_closes_its_decoder_and_the_next_begins_anew(tmp_path, kept):
    path = put_groups(tmp_path / "a.parquet", 1_000, 1_000)
    source = FileSource(str(path), schema=SCHEMA)
    read = reader_of(path)
    source.schema()
    planner = enumerator(source)
    [whole] = planner.plan(planner.initial(), planner.latest(), 10**6, 10**9).reads
    given_up = source.read(SplitRead(str(path), 0, 500, 1, whole.detail))
    assert next(given_up).rows.num_rows == 64
    given_up.close()
    assert kept._kept == {}
    assert read(0, 500) == expected(0, 500)
    assert len(kept._kept) == 1
    assert read(0, 500) == expected(0, 500)
