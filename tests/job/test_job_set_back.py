"""A storage that was restored from an older copy, or lost its journal, is refused by the numbers that targets know."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from job_kit import new_job, pairs, script, store_of

import holdfast as hf
from holdfast.jobmaster.starting import set_back, start
from holdfast.journal.fence import Listed, journal_numbers, list_journal
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.testing import run


class Numbered:
    """A user's function that keeps rows with their numbers, as a database would."""

    def __init__(self) -> None:
        self.tables: dict[int, pa.Table] = {}

    def __call__(self, table: pa.Table, number: int) -> None:
        self.tables.setdefault(number, table)

    def last_number(self) -> int:
        return max(self.tables, default=0)


class Place:
    """A job's storage and targets in a folder; each sink with its way of reading what was published."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = hf.MemorySink(name="out")
        self.numbered = Numbered()

    def job(self, kind: str, rows: int, **settings: Any) -> hf.Job:
        url = (self.folder / "target").as_uri()
        sinks: dict[str, Callable[[], Any]] = {
            "parquet": lambda: hf.ParquetSink(url, name="out"),
            "append": lambda: hf.DeltaSink(url, name="out"),
            "upsert": lambda: hf.DeltaSink(url, mode="upsert", name="out"),
            "memory": lambda: self.memory,
            "numbered": lambda: hf.CallbackSink(self.numbered, name="out"),
            "renamed": lambda: hf.ParquetSink(url, name="anew"),
        }
        job = new_job((self.folder / "storage").as_uri(), **settings)
        read = job.read(script(*(pairs((k, k)) for k in range(rows)), name="script"))
        read.key_by("k").aggregate(v=hf.sum("v"), name="sums").write(sinks[kind]())
        return job

    def keys(self, kind: str) -> list[int]:
        if kind == "memory":
            return sorted(row["k"] for row in self.memory.rows())
        if kind == "numbered":
            return sorted(k for table in self.numbered.tables.values() for k in table["k"].to_pylist())
        target = self.folder / "target"
        delta = (target / "_delta_log").exists()
        table = DeltaTable(target).to_pyarrow_table() if delta else ds.dataset(target, format="parquet").to_table()
        return sorted(table["k"].to_pylist())

    def copy(self) -> None:
        shutil.copytree(self.folder / "storage", self.folder / "copy")

    def restore(self) -> None:
        shutil.rmtree(self.folder / "storage")
        shutil.copytree(self.folder / "copy", self.folder / "storage")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The looks after which a start would have waited for a listing that lags."""
    found: list[int] = []
    monkeypatch.setattr(start, "back_off", found.append)
    return found


KINDS = ["parquet", "append", "upsert", "memory", "numbered"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_copy_of_the_storage_is_refused_and_goes_on_above_all_numbers_if_agreed(
    place: Place, kind: str
) -> None:
    run(place.job(kind, 1))
    place.copy()
    for rows in (2, 3, 4):
        run(place.job(kind, rows))
    before, numbers = place.keys(kind), journal_numbers(store_of(place.job(kind, 4)))
    place.restore()
    kept = journal_numbers(store_of(place.job(kind, 4)))
    for _ in range(2):
        refusal = rf"ends with checkpoint {kept[-1]}, but sink 'out' has published number {numbers[-1] - 1}"
        with pytest.raises(hf.JobRefused, match=refusal):
            run(place.job(kind, 5))
    assert place.keys(kind) == before == [0, 1, 2, 3]
    assert journal_numbers(store_of(place.job(kind, 4))) == kept

    run(place.job(kind, 5, publish_again=True))
    twice = [] if kind == "upsert" else [1, 2, 3]
    assert place.keys(kind) == sorted([0, 1, 2, 3, 4, *twice])
    run(place.job(kind, 6))
    assert place.keys(kind) == sorted([0, 1, 2, 3, 4, 5, *twice])


@pytest.mark.parametrize("kind", KINDS)
def test_a_storage_without_its_journal_is_refused(place: Place, kind: str) -> None:
    for rows in (1, 2, 3):
        run(place.job(kind, rows))
    shutil.rmtree(place.folder / "storage" / "journal")
    with pytest.raises(hf.JobRefused, match=r"has no checkpoint, but sink 'out' has published number \d"):
        run(place.job(kind, 3))
    assert place.keys(kind) == [0, 1, 2]


def test_a_lost_journal_is_seen_by_the_objects_of_its_epochs_where_no_sink_can_say(place: Place) -> None:
    rows: list[int] = []

    def job() -> hf.Job:
        made = new_job((place.folder / "storage").as_uri())
        stream = made.read(script(pairs((1, 1)), name="script")).key_by("k").aggregate(n=hf.count(), name="counts")
        stream.write(hf.CallbackSink(lambda table, number: rows.append(number), name="out"))
        return made

    run(job())
    shutil.rmtree(place.folder / "storage" / "journal")
    with pytest.raises(hf.JobRefused, match=r"the storage holds objects of epoch 1: .*records of its journal were"):
        run(job())
    assert len(set(rows)) == 1


def test_a_renamed_sink_begins_anew_on_an_older_copy(place: Place) -> None:
    run(place.job("parquet", 1))
    place.copy()
    run(place.job("parquet", 3))
    place.restore()
    run(place.job("renamed", 4))
    assert place.keys("parquet") == [0, 1, 1, 2, 2, 3]


def test_published_files_tell_the_number_where_an_earlier_release_noted_none(place: Place) -> None:
    run(place.job("parquet", 1))
    place.copy()
    run(place.job("parquet", 3))
    place.restore()
    shutil.rmtree(place.folder / "target" / "_published")
    with pytest.raises(hf.JobRefused, match="has published number"):
        run(place.job("parquet", 4))
    assert place.keys("parquet") == [0, 1, 2]


def test_a_copy_that_is_too_old_to_pass_over_is_refused_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_back, "PASSED_OVER_MAX", 2)
    run(place.job("parquet", 1))
    place.copy()
    run(place.job("parquet", 2))
    run(place.job("parquet", 3))
    place.restore()
    with pytest.raises(hf.JobRefused, match="at most 2 numbers, found"):
        run(place.job("parquet", 4, publish_again=True))


def test_a_sink_that_cannot_say_is_warned_of_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    def job() -> hf.Job:
        made = new_job((place.folder / "storage").as_uri())
        made.read(script(pairs((1, 1)), name="script")).write(hf.CallbackSink(lambda table, number: None, name="out"))
        return made

    with caplog.at_level(logging.WARNING):
        run(job())
        run(job())
    assert caplog.text.count("cannot say which number it published last") == 1


@pytest.mark.parametrize("answer", [None, -1, "6"])
def test_a_function_whose_last_number_is_no_number_is_refused(place: Place, answer: Any) -> None:
    place.numbered.last_number = lambda: answer  # type: ignore[method-assign]
    with pytest.raises(hf.JobRefused, match=r"last_number\(\) returned .*, expected the highest number"):
        run(place.job("numbered", 1))


def test_a_listing_that_lags_behind_the_end_of_a_job_is_no_older_copy(
    place: Place, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(rows: int) -> hf.Job:
        return place.job("parquet", rows, checkpoint=hf.CheckpointConfig(trigger=hf.every("1s"), retained=3))

    for rows in (1, 2, 3):
        run(job(rows))
    store = store_of(job(3))
    *_, older, newest = journal_numbers(store)
    store.delete([names.journal(older)])  # as the end of a job deletes a record that a newer one has replaced

    def lagging(store: ObjectStore) -> Listed:
        listed = list_journal(store)
        shown = listed.numbers if len(looks) == start.BEHIND_SEEN else [n for n in listed.numbers if n < newest]
        return listed._replace(numbers=shown)

    monkeypatch.setattr(start, "list_journal", lagging)
    run(job(4))
    assert looks == [1, 2, 3, 4, 5]
    assert place.keys("parquet") == [0, 1, 2, 3]
