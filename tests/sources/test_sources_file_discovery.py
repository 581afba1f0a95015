"""FileSource on the driver: which files, in which order, remembered how."""

import logging
import os
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sources_kit import SCHEMA, enumerator, ids, new_store, put_text, read_one, rows_between, write

from holdfast.errors import BadRecord, CorruptObject, JobRefused, SettingsError, StorageError
from holdfast.sources.base import Offsets
from holdfast.sources.files.discovery_chunks import (
    FAN,
    MAGIC,
    VERSION,
    ChunkContent,
    decode,
    encode,
    join,
    replaced_by_next,
)
from holdfast.sources.files.file_source import FileSource
from holdfast.storage.framing import frame
from sampling import some

GOLDEN_CHUNK = (
    "4846534301000000a8983ac45700000078016b59569c5f5a949cba3c2d27333da3a478694e6a596a0ee3d2b4cca2e2120e20"
    "95935a3c69f26afd94c49244fd44bde4e232aef30c6c5c2a12720e0c93d7161b5be9eb27e91f5e099238cfc0c0c8000600bf"
    "321d8a"
)


def source_of(folder, **settings) -> FileSource:
    return FileSource(str(folder), format="csv", schema=SCHEMA, **settings)


def test_files_are_read_in_the_order_of_their_times_then_names(tmp_path):
    for name in ("c", "a", "b"):
        put_text(tmp_path / f"{name}.csv", f"id,word\n1,{name}\n")
    same = (tmp_path / "c.csv").stat().st_mtime
    os.utime(tmp_path / "b.csv", (same, same))
    planner = enumerator(source_of(tmp_path))
    plan = planner.plan(planner.initial(), planner.latest(), 100, 10**9)
    assert [Path(read.split).name for read in plan.reads] == ["b.csv", "c.csv", "a.csv"]
    assert plan.to == {"next": 3}


def test_new_files_are_found_while_the_job_runs(tmp_path):
    source = source_of(tmp_path)
    planner = enumerator(source)
    assert planner.latest() == {"next": 0}
    write(tmp_path / "one.csv", ids(3))
    first = planner.latest()
    write(tmp_path / "two.csv", ids(3, 3))
    assert rows_between(source, first, planner.latest(), planner)[0] == ids(3, 3)


def test_hidden_empty_and_other_files_are_not_seen(tmp_path):
    write(tmp_path / "deep" / "er" / "seen.csv", ids(1))
    write(tmp_path / ".git" / "x.csv", ids(1))
    put_text(tmp_path / "_partial.csv", "id,word\n1,x\n")
    (tmp_path / "empty.csv").touch()
    put_text(tmp_path / "README.txt", "no csv")
    (tmp_path / "_folder").mkdir()
    planner = enumerator(source_of(tmp_path))
    assert planner.latest() == {"next": 1}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", {"a.csv"}),
        ("**/*.csv", {"a.csv", "x/b.csv", "x/y/c.csv"}),
        ("x/?.csv", {"x/b.csv"}),
        ("{x,z}/**", {"x/b.csv", "x/y/c.csv"}),
        ("x/[a-b].csv", {"x/b.csv"}),
        ("x/[!a-b].csv", set()),
        ("a.csv", {"a.csv"}),
        ("x", {"x/b.csv", "x/y/c.csv"}),
    ],
)
def test_a_pattern_matches_as_in_a_shell(tmp_path, pattern, expected):
    for name in ("a.csv", "x/b.csv", "x/y/c.csv"):
        write(tmp_path / name, ids(1))
    planner = enumerator(source_of(tmp_path / pattern))
    plan = planner.plan({"next": 0}, planner.latest(), 100, 10**9)
    assert {os.path.relpath(read.split, tmp_path) for read in plan.reads} == expected


def test_a_changed_file_is_refused_by_name(tmp_path):
    path = write(tmp_path / "one.csv", ids(1))
    planner = enumerator(source_of(tmp_path))
    planner.latest()
    write(path, ids(2))
    with pytest.raises(BadRecord, match=r"one\.csv: was discovered with .* must not change"):
        planner.latest()


def test_a_file_that_vanished_or_changed_before_it_was_read_is_named(tmp_path):
    source = source_of(tmp_path)
    path = write(tmp_path / "one.csv", ids(1))
    planner = enumerator(source)
    [read] = planner.plan({"next": 0}, planner.latest(), 100, 10**9).reads
    write(path, ids(2))
    with pytest.raises(StorageError, match=r"one\.csv: .*must not change"):
        list(source.read(read))
    path.unlink()
    with pytest.raises(StorageError, match=r"one\.csv: .*is gone before it was read"):
        list(source.read(read))


def test_a_file_may_go_after_it_was_read(tmp_path):
    path = write(tmp_path / "one.csv", ids(1))
    planner = enumerator(source_of(tmp_path))
    done = planner.latest()
    path.unlink()
    assert planner.latest() == done


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"nowhere.*cannot be listed"):
        enumerator(source_of(tmp_path / "nowhere" / "*.csv")).latest()


def test_a_start_without_the_folder_is_refused_whatever_else_is_known(tmp_path):
    for path in ("nowhere", "nowhere/*.csv", "nowhere/a.csv"):
        for settings in ({"schema": SCHEMA, "format": "csv"}, {"format": "csv"}, {"schema": SCHEMA}, {}):
            with pytest.raises(JobRefused, match=r"nowhere.*cannot be listed.*make the folder, or correct the path"):
                FileSource(str(tmp_path / path), **settings).schema()
    (tmp_path / "nowhere").mkdir()
    assert FileSource(str(tmp_path / "nowhere"), format="csv", schema=SCHEMA).schema() == SCHEMA


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet", "arrow"])
def test_a_name_that_is_not_utf8_is_read_remembered_and_named_by_its_url(tmp_path, suffix):
    folder = tmp_path / "in"
    write(folder / f"a.{suffix}", ids(1))
    write(folder / f"b.{suffix}", ids(1, 1)).rename(
        os.fsdecode(os.fsencode(folder) + f"/caf\udce9 %41.{suffix}".encode("utf-8", "surrogateescape"))
    )
    source = FileSource(str(folder), format=suffix, schema=SCHEMA)
    store = new_store()
    planner = enumerator(source, store)
    until = planner.latest()
    assert rows_between(source, {"next": 0}, until, planner) == (ids(2), [])
    restarted = enumerator(source, store, epoch=2)
    restarted.restore({"next": 1}, planner.objects({"next": 1}))
    assert rows_between(source, {"next": 1}, restarted.latest(), restarted) == (ids(1, 1), [])
    [read] = restarted.plan({"next": 1}, until, 100, 10**9).reads
    assert read.split == f"{folder.as_uri()}/caf%E9%20%2541.{suffix}"
    alone = FileSource(read.split, format=suffix, schema=SCHEMA)
    planner = enumerator(alone)
    assert rows_between(alone, {"next": 0}, planner.latest(), planner) == (ids(1, 1), [])
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9 %41." + suffix.encode())).unlink()
    with pytest.raises(StorageError, match=r"caf%E9.*is gone before it was read"):
        list(source.read(read))


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("in/loop", "in"),
        ("in/loop", "."),
        ("in/deep/loop", "in"),
        ("in/self", "in/self"),
        ("in/gone", "nowhere"),
    ],
)
@pytest.mark.parametrize("pattern", ["in", "in/**/*.csv", "in/**"])
def test_a_link_without_an_end_leads_to_no_file(tmp_path, link, target, pattern):
    write(tmp_path / "in" / "a.csv", ids(1))
    write(tmp_path / "in" / "deep" / "b.csv", ids(1))
    write(tmp_path / "out.csv", ids(1))
    (tmp_path / link).symlink_to(tmp_path / target)
    planner = enumerator(source_of(tmp_path / pattern))
    plan = planner.plan({"next": 0}, planner.latest(), 100, 10**9)
    assert [os.path.relpath(read.split, tmp_path) for read in plan.reads] == ["in/a.csv", "in/deep/b.csv"]


def test_links_that_lead_to_each_other_end(tmp_path):
    write(tmp_path / "a" / "a.csv", ids(1))
    write(tmp_path / "b" / "b.csv", ids(1))
    (tmp_path / "a" / "to_b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "to_a").symlink_to(tmp_path / "a")
    planner = enumerator(source_of(tmp_path / "a"))
    plan = planner.plan({"next": 0}, planner.latest(), 100, 10**9)
    assert [os.path.relpath(read.split, tmp_path) for read in plan.reads] == ["a/a.csv", "a/to_b/b.csv"]


def test_a_folder_that_may_not_be_read_is_named_with_the_remedy(tmp_path, monkeypatch):
    closed = tmp_path / "in" / "closed"
    closed.mkdir(parents=True)
    scan = os.scandir

    def scandir(folder):
        if folder == str(closed):
            raise PermissionError(13, "Permission denied", folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StorageError, match=r"in/closed'.*let this process read the folder, or .*starts with '_'"):
        enumerator(source_of(tmp_path / "in")).latest()


def test_a_batch_takes_no_longer_when_more_files_wait(tmp_path):
    path = write(tmp_path / "a.csv", ids(1))
    entry = (str(path), path.stat().st_size, path.stat().st_mtime_ns // 1000)

    def batch_s(count: int) -> float:
        """The shortest of several times of planning a batch and asking for the lag."""
        store = new_store()
        store.put("sources/1/all", encode(ChunkContent("files", 0, 0, [entry] * count)))
        planner = enumerator(source_of(tmp_path), store)
        planner.restore({"next": 0}, ["sources/1/all"])
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            assert planner.plan({"next": 10, "3": 5}, {"next": count}, 1, 10**9).reads
            assert planner.lag({"next": 10, "3": 5}) == {"files": count - 9, "bytes": (count - 9) * entry[1]}
            planner.completed({"next": 10, "3": 5})
            times.append(time.perf_counter() - begin)
        return min(times)

    assert batch_s(200_000) < 20 * batch_s(100)


def test_only_the_folders_that_a_pattern_can_match_are_looked_into(tmp_path):
    write(tmp_path / "in" / "a.csv", ids(1))
    closed = tmp_path / "in" / "closed"
    closed.mkdir()
    beside = tmp_path / "beside"
    beside.mkdir()
    looked_into = []
    scan = os.scandir

    def scandir(folder):
        looked_into.append(folder)
        return scan(folder)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        assert enumerator(source_of(tmp_path / "in" / "*.csv")).latest() == {"next": 1}
        assert enumerator(source_of(tmp_path / "in" / "a.csv")).latest() == {"next": 1}
        assert looked_into == [str(tmp_path / "in")]
        assert enumerator(source_of(tmp_path / "in")).latest() == {"next": 1}
        assert looked_into[1:] == [str(tmp_path / "in"), str(closed)]


def test_nothing_is_numbered_when_the_chunk_cannot_be_stored(tmp_path):
    class Refusing:
        url = "memory://refusing"
        refuse = True

        def __init__(self) -> None:
            self.inner = new_store()

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def put(self, name, data):
            if self.refuse:
                raise StorageError("no")
            self.inner.put(name, data)

    store = Refusing()
    write(tmp_path / "one.csv", ids(1))
    planner = enumerator(source_of(tmp_path), store)
    with pytest.raises(StorageError, match="no"):
        planner.latest()
    assert planner.objects({"next": 0}) == []
    store.refuse = False
    assert planner.latest() == {"next": 1}
    assert len(planner.objects({"next": 1})) == 1


def test_starting_latest_skips_what_is_there_at_the_first_start(tmp_path):
    write(tmp_path / "old.csv", ids(1))
    source = source_of(tmp_path, starting="latest")
    planner = enumerator(source)
    at = planner.initial()
    write(tmp_path / "new.csv", ids(1, 1))
    assert rows_between(source, at, planner.latest(), planner)[0] == ids(1, 1)


def test_starting_at_a_moment_skips_what_was_modified_before(tmp_path):
    write(tmp_path / "old.csv", ids(1))
    path = write(tmp_path / "new.csv", ids(1, 1))
    moment = datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(tzinfo=None)
    source = source_of(tmp_path, starting=moment)
    planner = enumerator(source)
    assert rows_between(source, planner.initial(), planner.latest(), planner)[0] == ids(1, 1)


def test_records_stay_small_with_many_discoveries(tmp_path):
    store = new_store()
    planner = enumerator(source_of(tmp_path), store)
    most = 0
    for number in range(300):
        write(tmp_path / f"{number}.csv", ids(1))
        offsets = planner.latest()
        named = planner.objects(offsets)
        most = max(most, len(named))
        assert len(offsets) == 1
    assert most <= (FAN - 1) * 3
    restarted = enumerator(source_of(tmp_path), store, epoch=2)
    restarted.restore(offsets, named)
    assert restarted.latest() == offsets


def test_chunks_that_no_record_could_name_are_deleted(tmp_path):
    store = new_store()
    planner = enumerator(source_of(tmp_path), store)
    for number in range(100):
        write(tmp_path / f"{number}.csv", ids(1))
        planner.latest()
    stored = {info.name for info in store.list("sources/")}
    assert stored == set(planner.objects({"next": 100}))


def test_named_chunks_stay_until_a_checkpoint_further_on_was_recorded(tmp_path):
    store = new_store()
    planner = enumerator(source_of(tmp_path), store)
    positions = []
    for number in range(1, 101):
        write(tmp_path / f"{number}.csv", ids(1))
        positions.append((planner.latest(), planner.objects({"next": number})))
        stored = {info.name for info in store.list("sources/")}
        if number % 5 == 0:
            assert {name for _, named in positions for name in named} <= stored
            offsets, named = positions[-3]
            planner.completed(offsets)
            positions = positions[-3:]
            stored = {info.name for info in store.list("sources/")}
            assert set(named) <= stored
            assert len(stored) <= (FAN - 1) * 3 + 15


def test_the_levels_of_chunks_grow_like_the_digits_of_a_number():
    levels: list[int] = []
    for count in range(1, 1_000):
        kept, level = replaced_by_next(levels)
        levels = [*levels[:kept], level]
        assert sum(FAN**level for level in levels) == count
        assert levels == sorted(levels, reverse=True)


def test_stored_chunks_of_version_1_are_read():
    """Golden bytes: bytes of any release must be readable for ever."""
    stored = bytes.fromhex(GOLDEN_CHUNK)
    content = ChunkContent("flights", 1, 8, [("/data/a.csv", 10, 1_700_000_000_000_000), ("s3://b/é.csv", 2**40, 0)])
    assert decode("golden", stored) == content
    assert decode("again", encode(content)) == content


def test_a_damaged_or_foreign_chunk_is_named():
    content = ChunkContent("files", 0, 0, [("/a", 1, 2)])
    assert decode("x", encode(content)) == content
    with pytest.raises(CorruptObject, match="x: not a discovery chunk"):
        decode("x", frame(MAGIC, VERSION, b"nothing"))
    with pytest.raises(CorruptObject, match="of source 'files', expected source 'others'"):
        join("others", [("x", content)])
    with pytest.raises(CorruptObject, match="starts at file number 0, expected 1"):
        join("files", [("x", content), ("y", msgspec.structs.replace(content, files=[("/b", 1, 2)]))])


def test_chunks_that_do_not_cover_the_offsets_are_refused(tmp_path):
    with pytest.raises(CorruptObject, match="has read 3 files"):
        enumerator(source_of(tmp_path)).restore({"next": 3}, [])


def test_offsets_of_another_kind_of_source_are_refused(tmp_path):
    with pytest.raises(JobRefused, match="is not a FileSource's position"):
        enumerator(source_of(tmp_path)).restore({"0": 3}, [])


def test_lag_counts_files_and_bytes(tmp_path):
    write(tmp_path / "one.csv", ids(1))
    second = write(tmp_path / "two.csv", ids(5))
    planner = enumerator(source_of(tmp_path))
    planner.latest()
    assert planner.lag({"next": 1}) == {"files": 1, "bytes": second.stat().st_size}
    assert planner.lag({"next": 2, "1": 3})["files"] == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "xml"},
        {"starting": "now"},
        {"on_new_column": "add"},
        {"on_missing_column": "ignore"},
        {"delimiter": ""},
        {"header": False},
    ],
)
def test_settings_that_are_not_allowed_are_named(settings):
    with pytest.raises(SettingsError, match=next(iter(settings))):
        FileSource("/data", **settings)


@pytest.mark.parametrize("suffix", some(["csv", "json", "parquet", "arrow"], 0))
def test_restarts_at_every_point_read_each_row_once(tmp_path, suffix):
    """Random discoveries, batches, checkpoints, failovers and takeovers, against the list of all rows written."""
    seed = random.randrange(10**9)
    print("seed", seed)
    draw = random.Random(seed)
    store, epoch, written = new_store(), 1, 0
    source = FileSource(str(tmp_path), format=suffix, schema=SCHEMA)
    planner = enumerator(source, store)
    rows: list[tuple] = []
    at: Offsets = {"next": 0}
    record: tuple[Offsets, list[str], int] = (at, [], 0)
    pending = record
    for _ in range(150):
        step = draw.random()
        if step < 0.3:
            count = draw.choice([1, 5, 60])
            write(tmp_path / draw.choice(["", "sub"]) / f"{written}.{suffix}", ids(count, written))
            written += count
        elif step < 0.6:
            until, limits = planner.latest(), (draw.randint(1, 40), draw.choice([200, 10**9]))
            plan = planner.plan(at, until, *limits)
            assert planner.plan(at, until, *limits) == plan
            for read in plan.reads:
                rows += read_one(source, read)[0]
            at = plan.to
            assert len(at) <= 2
            committed = (at, planner.objects(at), len(rows))
            pending = committed if draw.random() < 0.5 else pending
        elif step < 0.8:
            record = pending
            planner.completed(record[0])
        elif step < 0.9:
            at = record[0]
            del rows[record[2] :]
            pending = record
        else:
            epoch += 1
            at = record[0]
            del rows[record[2] :]
            pending = record
            planner = enumerator(source, store, epoch)
            if record[0] != {"next": 0}:
                planner.restore(at, record[1])
    rows += rows_between(source, at, planner.latest(), planner)[0]
    assert sorted(rows) == ids(written)


@pytest.mark.parametrize("found_later", [False, True])
def test_a_pattern_that_matches_nothing_is_said_once_in_the_log_and_in_the_status_until_a_file_comes(
    tmp_path, caplog, found_later
):
    write(tmp_path / "other.json", ids(1))
    source = FileSource(str(tmp_path / "*.csv"), schema=SCHEMA)
    planner = enumerator(source)
    with caplog.at_level(logging.WARNING):
        assert planner.latest() == {"next": 0}
        assert planner.latest() == {"next": 0}
    assert caplog.text.count("no file matches") == 1
    assert f"no file matches {tmp_path}/*.csv (csv)" in planner.message
    if found_later:
        write(tmp_path / "a.csv", ids(1))
        planner.latest()
        assert planner.message == ""
