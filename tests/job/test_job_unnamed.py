"""Sources, operators and sinks without names: a restart that would exchange what they keep is refused."""

import itertools
import logging
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from job_kit import new_job, new_storage, pairs, script, store_of, tuples

import holdfast as hf
from holdfast.journal.codec import decode_record, encode_record
from holdfast.journal.records import CheckpointRecord
from holdfast.testing import run

ROWS = pairs((1, 10), (2, 20), (1, 5))
OTHER = pairs((1, 1000), (3, 3000))


def two(storage: str, order: str, *, names: dict[str, str] | None = None, sources=True, sinks=True, **settings):
    """A job of two like branches, declared in this order, without names but for those that are given."""
    job, rows = new_job(storage, **settings), {"a": ROWS, "b": OTHER}
    for each in order:
        stream = job.read(script(rows[each], name=f"in-{each}" if sources else None))
        counted = stream.key_by("k").aggregate(n=hf.sum("v"), name=(names or {}).get(each))
        counted.write(hf.MemorySink(name=f"out-{each}" if sinks else None))
    return job


def refused(job: hf.Job, *matches: str) -> None:
    store = store_of(job)
    before = {info.name: store.get(info.name) for info in store.list("")}
    with pytest.raises(hf.JobRefused) as caught:
        run(job)
    for match in matches:
        assert match in str(caught.value)
    assert {info.name: store.get(info.name) for info in store.list("")} == before


@pytest.mark.parametrize("sources", [True, False])
@pytest.mark.parametrize("sinks", [True, False])
def test_branches_in_another_order_are_refused_with_the_names_to_give(sources, sinks):
    storage, there = new_storage(), {"sources": sources, "sinks": sinks}
    run(two(storage, "ab", **there))
    run(two(storage, "ab", **there))
    role, kind = ("operator", "aggregate") if sources else ("source", "test")
    refused(two(storage, "ba", **there), f"{role} '{kind}-1' is not the {role}", f"name='{kind}-2'", f"name='{kind}-1'")


def test_the_names_that_the_refusal_gives_bring_each_state_to_its_operator():
    storage = new_storage()
    run(two(storage, "ab"))
    job = two(storage, "ba", names={"b": "aggregate-2"})
    job.declared.sources["in-a"] = script(ROWS, pairs((1, 1)), name="in-a")
    sink = job.declared.sinks["out-a"].sink
    run(job)
    assert tuples(sink) == [(1, 16)]


def test_an_operator_before_the_others_moves_their_numbers_and_is_refused_until_it_has_a_name():
    def job(first: bool, name: str | None = None):
        made = new_job(storage)
        stream = made.read(script(ROWS, name="in")).key_by("k")
        if first:
            stream.aggregate(most=hf.max("v"), name=name).write(hf.NoopSink(name="most"))
        stream.aggregate(n=hf.sum("v")).write(hf.NoopSink(name="sums"))
        return made

    storage = new_storage()
    run(job(first=False))
    refused(job(first=True), "operator 'aggregate-1' is not the operator that it was")
    run(job(first=True, name="most-per-key"))


def test_an_operator_behind_the_others_and_a_change_of_one_of_them_go_on():
    def job(*, more: bool, total: bool):
        made = new_job(storage)
        keyed = made.read(script(ROWS, *[OTHER] * total, name="in")).key_by("k")
        keyed.aggregate(n=hf.sum("v")).write(hf.NoopSink(name="sums"))
        keyed.aggregate(least=hf.min("v"), **({"most": hf.max("v")} if total else {})).write(hf.NoopSink(name="least"))
        if more:
            keyed.aggregate(n=hf.count()).write(hf.NoopSink(name="counts"))
        return made

    storage = new_storage()
    run(job(more=False, total=False))
    run(job(more=False, total=True))
    run(job(more=True, total=True))


def test_a_lone_operator_may_change_but_not_read_from_elsewhere():
    def job(source: str, *, limit: int | None = None, **settings):
        made = new_job(storage, **settings)
        stream = made.read(script(ROWS, name=source))
        stream = stream if limit is None else stream.where(pc.field("v") < limit)
        stream.key_by("k").aggregate(n=hf.count()).write(hf.MemorySink())
        return made

    storage = new_storage()
    run(job("in"))
    run(job("in", limit=10))
    made = job("other", drop_state=["in"])
    run(made)
    other = job("other")
    other.read(script(ROWS, name="third")).key_by("k").aggregate(n=hf.count(), name="named").write(hf.NoopSink())
    run(other)
    swapped = new_job(storage)
    for source, name in (("third", None), ("other", "named")):
        stream = swapped.read(script(ROWS, name=source)).key_by("k")
        stream.aggregate(n=hf.count(), name=name).write(hf.NoopSink() if name else hf.MemorySink())
    refused(swapped, "operator 'aggregate-1' is not the operator that it was", "of other")


@pytest.mark.parametrize("kind", ["process", "drop_duplicates", "top"])
def test_every_kind_of_operator_is_told_from_others_of_its_kind(kind):
    class Last(hf.ProcessFunction):
        last = hf.ValueState(pa.int64())

        def process(self, row, ctx):
            self.last.update(row.v)
            yield {"k": row.k, "v": row.v}

    def job(order: str):
        made = new_job(storage)
        for each in order:
            stream = made.read(script(ROWS, name=f"in-{each}"))
            if kind == "drop_duplicates":
                behind = stream.drop_duplicates("k")
            elif kind == "top":
                behind = stream.key_by("k").top(1, by="v")
            else:
                behind = stream.key_by("k").process(Last(), "k BIGINT, v BIGINT")
            behind.write(hf.NoopSink(name=f"out-{each}"))
        return made

    storage = new_storage()
    run(job("ab"))
    run(job("ab"))
    refused(job("ba"), f"operator '{kind}-1' is not the operator that it was")


class Above(hf.ProcessFunction):
    """Keeps the rows above a limit, and has an attribute that differs from start to start."""

    last = hf.ValueState(pa.int64())

    def __init__(self, limit: int) -> None:
        self.limit, self.made_at = limit, object()

    def process(self, row, ctx):
        if row.v > self.limit:
            self.last.update(row.v)
            yield {"k": row.k, "v": row.v}


class Drawn(Above):
    """Has a number that no two starts share."""

    drawn = itertools.count()

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.number = next(self.drawn)


def of_settings(kind: str, storage: str, order: tuple[int, ...]) -> hf.Job:
    """A job of operators on the same rows that differ in a setting alone."""
    made = new_job(storage)
    keyed = made.read(script(ROWS, name="in")).key_by("k")
    for each in order:
        if kind == "process":
            behind = keyed.process(Above(each), "k BIGINT, v BIGINT")
        elif kind == "drawn":
            behind = keyed.process(Drawn(each), "k BIGINT, v BIGINT")
        elif kind == "top":
            behind = keyed.top(each, by="v")
        else:
            behind = keyed.aggregate(n=[hf.sum("v"), hf.max("v"), hf.min("v")][each % 3])
        behind.write(hf.NoopSink())
    return made


@pytest.mark.parametrize("kind", ["process", "top", "aggregate"])
def test_operators_that_differ_in_a_setting_alone_are_told_apart(kind):
    storage = new_storage()
    run(of_settings(kind, storage, (1, 2)))
    run(of_settings(kind, storage, (1, 2)))
    refused(of_settings(kind, storage, (2, 1)), f"operator '{kind}-1' is not", f"name='{kind}-2'", f"name='{kind}-1'")
    refused(of_settings(kind, storage, (3, 1, 2)), f"operator '{kind}-1' is not", f"name='{kind}-1'")
    run(of_settings(kind, storage, (1, 2, 3)))


def test_settings_that_change_or_differ_from_start_to_start_go_on():
    storage = new_storage()
    run(of_settings("process", storage, (1, 2)))
    run(of_settings("process", storage, (5, 6)))
    storage = new_storage()
    run(of_settings("drawn", storage, (1, 2)))
    run(of_settings("drawn", storage, (1, 2)))


def test_a_record_of_an_older_version_has_no_settings_and_they_are_not_compared():
    storage = new_storage()
    run(of_settings("process", storage, (1, 2)))
    store = store_of(new_job(storage))
    for info in store.list("journal/"):
        record = None if info.name.endswith("begun") else decode_record(info.name, store.get(info.name))
        if isinstance(record, CheckpointRecord):
            parts = {
                name: msgspec.structs.replace(part, digest=part.digest.partition("-")[0])
                for name, part in record.parts.items()
            }
            store.put(info.name, encode_record(msgspec.structs.replace(record, parts=parts)))
    run(of_settings("process", storage, (2, 1)))


def test_sinks_and_file_sources_in_another_order_are_refused(tmp_path: Path):
    def job(sources: str, sinks: str):
        made = new_job(storage)
        for source, sink in zip(sources, sinks, strict=True):
            stream = made.read(hf.FileSource(f"{tmp_path}/{source}/*.csv", schema="k BIGINT"))
            stream.write(hf.ParquetSink(f"file://{tmp_path}/out-{sink}"))
        return made

    storage = new_storage()
    for each in "ab":
        (tmp_path / each).mkdir()
        (tmp_path / each / "1.csv").write_text("k\n1\n")
    run(job("ab", "ab"))
    refused(job("ba", "ba"), "source 'file-1' is not the source that it was", "name='file-2'")
    refused(job("ab", "ba"), "sink 'parquet-1' is not the sink that it was", "name='parquet-2'")
    shutil.rmtree(tmp_path / "a")


def test_a_record_of_an_older_version_has_no_parts_and_is_not_compared():
    storage = new_storage()
    run(two(storage, "ab"))
    store = store_of(two(storage, "ab"))
    for info in store.list("journal/"):
        if info.name.endswith("begun"):
            continue
        record = decode_record(info.name, store.get(info.name))
        if isinstance(record, CheckpointRecord):
            store.put(info.name, encode_record(msgspec.structs.replace(record, parts={})))
    run(two(storage, "ba"))


def test_a_misspelt_name_in_drop_state_is_refused_with_the_names_there_are():
    storage = new_storage()
    with pytest.raises(hf.JobRefused, match="no source, operator or sink 'agregate-1'"):
        run(two(storage, "ab", drop_state=["agregate-1"]))
    run(two(storage, "ab"))
    refused(two(storage, "ab", drop_state=["agregate-1"]), "no source, operator or sink 'agregate-1'", "aggregate-1")


def test_a_name_that_was_given_up_may_stay_in_the_program():
    storage, names = new_storage(), {"a": "a", "b": "b"}
    run(two(storage, "ab", names=names))
    gone = ["b", "in-b", "out-b"]
    for more in ([ROWS], [ROWS, ROWS]):
        job = two(storage, "a", names=names, drop_state=gone)
        job.declared.sources["in-a"] = script(ROWS, *more, name="in-a")
        run(job)
    job = two(storage, "a", names=names)
    job.declared.sources["in-a"] = script(*[ROWS] * 4, name="in-a")
    run(job)
    refused(two(storage, "a", names=names, drop_state=gone), "no source, operator or sink 'b'")


def test_unnamed_keyed_operators_are_warned_of(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "holdfast"):
        run(two(new_storage(), "ab", names={"a": "mine"}))
    (said,) = [each.getMessage() for each in caplog.records if "without a name" in each.getMessage()]
    assert "aggregate-1" in said and "mine" not in said
