"""Records of any length: bytes are looked at a few times, a long record is held within a bound, a longer one is bad."""

import gzip
import itertools
import random

import pytest
from sources_kit import SCHEMA, enumerator, put_text, read_all, read_one

from holdfast.errors import BadRecord, JobRefused, SettingsError
from holdfast.sources.base import SplitRead
from holdfast.sources.files import csv_records, line_streams, lines
from holdfast.sources.files.file_source import FileSource
from holdfast.sources.files.local_tree import LocalTree

HEAD = {"csv": "id,word\n", "json": ""}
RECORD = {"csv": '{id},"{word}"\n', "json": '{{"id":{id},"word":"{word}"}}\n'}


def small_blocks(monkeypatch, block_bytes: int) -> None:
    for module in (lines, line_streams, csv_records):
        monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(lines, "STEP_BYTES", max(2, block_bytes // 2))


def put(path, text: bytes):
    return put_text(path, gzip.compress(text) if path.suffix == ".gz" else text)


def drawn_text(draw: random.Random, suffix: str) -> bytes:
    """Records of all lengths, with quotes, breaks and errors where a format has them; the last may lack its end."""
    words = ["", "a", "x" * 40, "y" * 300, "€" * 30]
    if suffix == "csv":
        odd = [
            '{n},"a\nb"',
            '{n},"a""b\r\n',
            '{n},5" disk',
            '{n},"',
            "{n},a,b",
            '"{n}","c\r"',
            "\n",
            '{n},""',
            '""x,{n}',
        ]
    else:
        odd = ['{{"id":{n}', '{{"id":{n},"more":1}}', "\n", "[]"]
    chosen = [
        draw.choice(odd).format(n=n) + "\n"
        if draw.random() < 0.3
        else RECORD[suffix].format(id=n, word=draw.choice(words))
        for n in range(draw.randint(0, 30))
    ]
    text = HEAD[suffix] + "".join(chosen)
    text = text.replace("\n", draw.choice(["\n", "\r\n", "\r", "\n"]))
    return text[: len(text) - draw.randint(0, 3)].encode()


@pytest.mark.parametrize("multiline", [False, True])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.json", "a.json.gz"])
def test_the_size_of_blocks_changes_no_row_and_no_bad_row(tmp_path, monkeypatch, name, multiline):
    seed = random.randrange(10**9)
    print("seed", seed)
    draw = random.Random(seed)
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = put(folder / name, drawn_text(draw, name.split(".")[1]))
        bound = draw.choice([30, 120, 10**6])
        source = FileSource(str(path), schema=SCHEMA, multiline=multiline, max_record_bytes=bound)
        if not path.stat().st_size:
            continue
        expected = read_all(source, 10**6)
        with monkeypatch.context() as patched:
            small_blocks(patched, draw.choice([13, 64, 200]))
            try:
                found = read_all(source, 10**6)
            except BadRecord as error:
                assert "the header has more than" in str(error)
                continue
        assert found[0] == expected[0]
        assert [(row.position, row.reason) for row in found[1]] == [(row.position, row.reason) for row in expected[1]]
        assert [row.payload[:50] for row in found[1]] == [row.payload[:50] for row in expected[1]]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.json", "a.json.gz"])
@pytest.mark.parametrize("multiline", [False, True])
def test_a_longer_record_is_bad_and_shows_its_place_its_size_and_its_beginning(tmp_path, monkeypatch, name, multiline):
    small_blocks(monkeypatch, 100_000)
    suffix = name.split(".")[1]
    texts = [RECORD[suffix].format(id=n, word="z" * (2_000_000 if n == 1 else 3)) for n in range(3)]
    text = (HEAD[suffix] + "".join(texts)).encode()
    path = put(tmp_path / name, text)
    source = FileSource(str(path), schema=SCHEMA, multiline=multiline, max_record_bytes="1MB")
    rows, [bad] = read_all(source, 10**6)
    assert rows == [(0, "zzz"), (2, "zzz")]
    assert bad.position == f"byte {len(HEAD[suffix]) + len(texts[0])}"
    assert f"{len(texts[1])} bytes, longer than max_record_bytes=1048576" in bad.reason
    assert bad.payload.startswith(texts[1][:1000])
    assert len(bad.payload) <= lines.BEGINNING_BYTES
    within = FileSource(str(path), schema=SCHEMA, multiline=multiline, max_record_bytes="2MB")
    rows, bad = read_all(within, 10**6)
    assert [len(word) for _, word in rows] == [3, 2_000_000, 3]
    assert bad == []


@pytest.mark.parametrize("suffix", ["csv", "json"])
@pytest.mark.parametrize("bound", [10, 10**9])
def test_a_file_that_is_a_single_long_line_is_looked_at_a_few_times_however_it_is_divided(
    tmp_path, monkeypatch, suffix, bound
):
    small_blocks(monkeypatch, 1_000)
    text = (HEAD[suffix] + RECORD[suffix].format(id=1, word="x" * 100_000)).encode()
    path = put(tmp_path / f"a.{suffix}", text)
    source = FileSource(str(path), schema=SCHEMA, max_record_bytes=bound)
    planner = enumerator(source)
    [whole] = planner.plan(planner.initial(), planner.latest(), 10**6, 10**9).reads
    source.schema()
    asked: list[int] = []
    plain = LocalTree.read_range

    def counted(tree, file, offset, length):
        asked.append(length)
        return plain(tree, file, offset, length)

    monkeypatch.setattr(LocalTree, "read_range", counted)
    cuts = [0, *range(2_000, len(text), 2_000), len(text)]
    rows = []
    for start, stop in itertools.pairwise(cuts):
        got, bad = read_one(source, SplitRead(str(path), start, stop, 1, whole.detail))
        rows += got or [row.reason for row in bad]
    assert len(rows) == 1
    assert sum(asked) < 6 * len(text)
    assert len(asked) < 6 * len(text) / 1_000


@pytest.mark.parametrize("multiline", [False, True])
def test_a_compressed_file_is_decompressed_twice_at_most(tmp_path, monkeypatch, multiline):
    small_blocks(monkeypatch, 1_000)
    text = HEAD["csv"] + "".join(RECORD["csv"].format(id=n, word="x" * 5_000) for n in range(40))
    path = put(tmp_path / "a.csv.gz", text.encode())
    read = 0
    plain = line_streams.ForwardStream.read

    def counted(stream, length):
        nonlocal read
        data = plain(stream, length)
        read += len(data)
        return data

    monkeypatch.setattr(line_streams.ForwardStream, "read", counted)
    rows, bad = read_all(FileSource(str(path), schema=SCHEMA, multiline=multiline), 10**6)
    assert len(rows) == 40
    assert bad == []
    assert read <= 2 * len(text)


def test_a_quote_that_is_never_closed_costs_its_line_alone_in_blocks_too(tmp_path, monkeypatch):
    small_blocks(monkeypatch, 50)
    text = 'id,word\n1,a\n2,"open\n' + "".join(f"{n},w\n" for n in range(3, 100))
    for name in ("a.csv", "a.csv.gz"):
        rows, [bad] = read_all(
            FileSource(str(put(tmp_path / name, text.encode())), schema=SCHEMA, multiline=True), 10**6
        )
        assert rows == [(1, "a"), *((n, "w") for n in range(3, 100))]
        assert bad.payload == '2,"open'


def test_a_header_or_a_first_record_without_an_end_is_named(tmp_path):
    path = put(tmp_path / "a.csv", b"x" * (lines.BLOCK_BYTES + 100))
    with pytest.raises(BadRecord, match=r"a\.csv: the header has more than"):
        read_all(FileSource(str(path), schema=SCHEMA))
    path = put(tmp_path / "a.json", b'{"id":"' + b"x" * (lines.BLOCK_BYTES + 100))
    with pytest.raises(JobRefused, match=r"the first record has more than.*give schema="):
        FileSource(str(path)).schema()


@pytest.mark.parametrize("value", [0, "x", -1, "1.5B", "2GB"])
def test_a_bound_that_is_no_size_is_refused(value):
    with pytest.raises(SettingsError, match="max_record_bytes"):
        FileSource("/data", max_record_bytes=value)
