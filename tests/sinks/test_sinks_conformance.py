"""Promises of every sink, run over all of them, with the job's storage in files and in memory."""

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from sinks_kit import (
    JOB,
    KEEPING,
    LARGE,
    SCHEMA,
    Bench,
    callback,
    delta,
    delta_in_portions,
    delta_of_files,
    delta_upsert,
    kafka,
    kafka_in_portions,
    large,
    memory,
    noop,
    parquet,
    parquet_files_in_portions,
    parquet_in_memory,
    parquet_in_portions,
    parquet_of_files,
    rows,
    upsert_in_portions,
)

from holdfast import failpoints
from holdfast.errors import CorruptObject, HoldfastError, PublishFailed, StorageError
from holdfast.sinks import staging as staging_module
from holdfast.sinks.base import StageContext
from holdfast.sinks.callback import CallbackSink
from holdfast.sinks.memory import MemorySink
from holdfast.sinks.noop import NoopSink
from holdfast.sinks.staging import INLINE_BYTES_MAX
from holdfast.storage.store import ObjectStore

KAFKA_STEPS = ("begun", "sent", "numbered", "committed")
REREAD = [memory, callback, delta_upsert, parquet, parquet_in_memory, kafka]
"""Sinks whose staged files are not the published files."""


def by_key(found: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return sorted((row["k"], row["v"]) for row in found)


@pytest.mark.parametrize("make", KEEPING)
def test_staged_rows_are_invisible_until_published(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    small, big = bench.stage(rows((1, "a"))), bench.stage(large(10), unit=1)
    assert bench.visible() == []
    bench.publish(7, small + big)
    assert len(bench.visible()) == 1 + LARGE


@pytest.mark.parametrize("make", KEEPING)
def test_publishing_a_number_twice_is_publishing_it_once(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    group = bench.stage(rows((1, "a"), (2, None))) + bench.stage(rows((3, "c")), unit=1)
    bench.publish(7, group)
    bench.publish(7, group)
    bench.publish(7, group, bench.again())
    assert by_key(bench.visible()) == [(1, "a"), (2, None), (3, "c")]


@pytest.mark.parametrize("make", KEEPING)
def test_groups_are_published_in_order_of_their_numbers(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    groups = {number: bench.stage(rows((number, f"v{number}")), batch=number) for number in (3, 4, 9)}
    for number, group in groups.items():
        bench.publish(number, group)
        assert max(row["k"] for row in bench.visible()) == number
    assert by_key(bench.visible()) == [(3, "v3"), (4, "v4"), (9, "v9")]


@pytest.mark.parametrize("make", KEEPING)
def test_an_older_jobmaster_that_publishes_late_changes_nothing(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    old, new = bench.stage(rows((1, "old"))), bench.stage(rows((1, "new"), (2, "x")), batch=2)
    bench.publish(3, old)
    bench.publish(4, new)
    before = by_key(bench.visible())
    bench.publish(3, old, bench.again())
    assert by_key(bench.visible()) == before


@pytest.mark.parametrize("make", REREAD)
def test_what_a_late_jobmaster_finds_discarded_is_not_published_half(
    make: Any, tmp_path: Path, store: ObjectStore
) -> None:
    bench = make(tmp_path, store)
    group = bench.stage(large(0)) + bench.stage(rows((-1, "last")), unit=1)
    bench.publish(3, group)
    before = by_key(bench.visible())
    bench.sink.discard(group, bench.context)
    try:
        bench.publish(3, group, bench.again())
    except PublishFailed as error:
        assert "is gone" in str(error)
    assert by_key(bench.visible()) == before


@pytest.mark.parametrize("make", KEEPING)
def test_a_crash_between_staging_and_publishing_loses_and_doubles_nothing(
    make: Any, tmp_path: Path, store: ObjectStore
) -> None:
    bench = make(tmp_path, store)
    lost = bench.stage(rows((1, "of an attempt that failed")))
    counted = bench.stage(rows((1, "a")), epoch=1)
    bench.publish(5, counted, bench.again())
    assert by_key(bench.visible()) == [(1, "a")]
    bench.sink.discard(lost, bench.context)
    assert by_key(bench.visible()) == [(1, "a")]


@pytest.mark.parametrize(
    ("make", "failpoint"),
    [
        (callback, "sink.callback.before"),
        (callback, "sink.callback.after"),
        (parquet, "sink.parquet.copied"),
        (parquet_of_files, "sink.parquet.copied"),
        (delta, "sink.delta.loaded"),
        (delta, "sink.delta.committed"),
        (delta_of_files, "sink.delta.loaded"),
        (delta_of_files, "sink.delta.committed"),
        (delta_upsert, "sink.delta.loaded"),
        (delta_upsert, "sink.delta.committed"),
        (parquet_in_portions, "sink.parquet.copied"),
        (parquet_files_in_portions, "sink.parquet.copied"),
        (delta_in_portions, "sink.delta.committed"),
        *((make, f"sink.kafka.{step}") for make in (kafka, kafka_in_portions) for step in KAFKA_STEPS),
        (upsert_in_portions, "sink.delta.loaded"),
        (upsert_in_portions, "sink.delta.committed"),
    ],
)
def test_a_crash_while_publishing_is_healed_by_publishing_again(
    make: Any, failpoint: str, tmp_path: Path, store: ObjectStore, armed: Callable[[str, str], None]
) -> None:
    bench = make(tmp_path, store)
    group = bench.stage(rows((1, "a"))) + bench.stage(rows((2, "b")), unit=1)
    armed(failpoint, "raise")
    with pytest.raises(HoldfastError, match="failpoint"):
        bench.publish(5, group)
    failpoints.disarm()
    bench.publish(5, group, bench.again())
    assert by_key(bench.visible()) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("hit", range(1, 9))
@pytest.mark.parametrize(
    "make", [parquet_in_portions, parquet_files_in_portions, delta_in_portions, upsert_in_portions]
)
def test_a_crash_between_any_two_portions_is_healed_by_a_publisher_with_other_portions(
    make: Any, hit: int, tmp_path: Path, store: ObjectStore, armed: Callable[[str, str], None]
) -> None:
    """Rows of later batches replace earlier ones, where there are keys: so order counts, too."""
    bench = make(tmp_path, store)
    batches = [rows((n % 3, f"v{n}"), (10 + n, f"w{n}")) for n in range(8)]
    group = [one for n, batch in enumerate(batches) for one in bench.stage(batch, batch=n)]
    layout = bench.sink.layout(bench.context)
    failpoint = (
        "sink.delta.committed" if "delta" in make.__name__ or "upsert" in make.__name__ else "sink.parquet.copied"
    )
    armed(failpoint, f"raise@{hit}")
    with contextlib.suppress(HoldfastError):
        bench.publish(5, group)
    failpoints.disarm()
    staging_module.PORTION_BYTES_MAX = 1000
    bench.again().publish(5, group, replace(bench.context, layout=layout))
    bench.again().publish(5, group, replace(bench.context, layout=layout))
    written = [(row["k"], row["v"]) for batch in batches for row in batch.to_pylist()]
    expected = list(dict(written).items()) if make is upsert_in_portions else written
    assert by_key(bench.visible()) == sorted(expected)


@pytest.mark.parametrize("make", [noop, *KEEPING])
def test_no_rows_make_no_committables_and_an_empty_group_changes_nothing(
    make: Any, tmp_path: Path, store: ObjectStore
) -> None:
    bench = make(tmp_path, store)
    assert bench.stage() == []
    assert bench.stage(rows()) == []
    bench.publish(5, [])
    bench.publish(6, bench.stage())
    assert bench.visible() == []
    assert bench.staged_objects() == []


@pytest.mark.parametrize("make", REREAD)
def test_discarding_deletes_what_was_staged_and_twice_is_fine(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    dropped, kept = bench.stage(large(0)), bench.stage(large(LARGE), unit=1)
    assert len(bench.staged_objects()) == 2
    bench.sink.discard(dropped, bench.context)
    bench.sink.discard(dropped, bench.context)
    assert len(bench.staged_objects()) == 1
    bench.publish(1, kept)
    bench.sink.discard(kept, bench.context)
    assert bench.staged_objects() == []
    assert len(bench.visible()) == LARGE


def test_discarding_published_appends_keeps_the_table_readable(tmp_path: Path, store: ObjectStore) -> None:
    bench = delta(tmp_path, store)
    small = large(0).slice(0, LARGE // 20)
    group = bench.stage(small) + bench.stage(large(LARGE), unit=1)
    bench.publish(1, group)
    assert len(bench.staged_objects()) == 1
    bench.sink.discard(group, bench.context)
    assert bench.staged_objects() == []
    assert len(bench.visible()) == LARGE // 20 + LARGE


@pytest.mark.parametrize("make", [parquet, parquet_in_memory, delta])
def test_small_pieces_of_a_checkpoint_become_one_file(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    group = [one for batch in range(20) for one in bench.stage(rows((batch, "v")), batch=batch)]
    bench.publish(1, group)
    assert [row["k"] for row in bench.visible()] == list(range(20))
    stored = [info.name for info in bench.staged_in[0].list("") if not info.name.startswith("_")]
    files = stored if make is parquet_in_memory else list(tmp_path.glob("[to]*/*.parquet"))
    assert len(files) == 1


@pytest.mark.parametrize("make", KEEPING)
def test_a_committable_that_cannot_be_read_is_refused_and_named(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    good = bench.stage(rows((1, "a")))
    foreign = good[0].replace(b"-1", b"-9")
    for bad in (b"", b"\x93nonsense", good[0][:-1], foreign):
        with pytest.raises(CorruptObject, match="sink 'out'"):
            bench.publish(1, [*good, bad])
    assert bench.visible() == []


@pytest.mark.parametrize("make", [memory, callback, parquet, parquet_of_files, delta_of_files, delta_upsert, kafka])
def test_files_that_another_job_or_sink_staged_are_neither_published_nor_discarded(
    make: Any, tmp_path: Path, store: ObjectStore
) -> None:
    bench = make(tmp_path, store)
    group, staged = bench.stage(large(0)), bench.staged_objects()
    for context in (replace(bench.context, job_id="f0" * 16), replace(bench.context, sink="other")):
        for call in (partial(bench.sink.publish, 1), bench.sink.discard):
            with pytest.raises(CorruptObject, match=f"expected a file that this sink of job id {context.job_id}"):
                call(group, context)
    assert bench.visible() == []
    assert bench.staged_objects() == staged
    bench.publish(1, group)
    assert len(bench.visible()) == LARGE


@pytest.mark.parametrize("make", REREAD)
def test_a_staged_file_that_was_altered_is_refused_and_named(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    group = bench.stage(large(0))
    (name,) = bench.staged_objects()
    (holder,) = [s for s in bench.staged_in if name in {i.name for i in s.list(name.partition("/")[0] + "/")}]
    holder.put(name, holder.get(name)[:-3] + b"abc")
    with pytest.raises(CorruptObject, match=name):
        bench.publish(1, group)
    assert bench.visible() == []


@pytest.mark.parametrize("make", [noop, *KEEPING])
def test_a_sink_survives_cloudpickle_and_stages_the_same_there(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)
    shipped = pickle.loads(cloudpickle.dumps(bench.sink))
    assert shipped.kind == bench.sink.kind
    assert (bench.stage(rows((1, "a"))) == []) == isinstance(bench.sink, NoopSink)


def test_the_noop_sink_takes_every_row_and_keeps_none(tmp_path: Path, store: ObjectStore) -> None:
    bench = noop(tmp_path, store)
    left = iter([rows((1, "a")), rows((2, "b"))])
    context = StageContext(JOB, "out", 1, 1, 1, 0, "attempt", store)
    assert bench.sink.stage(left, context) == []
    assert next(left, None) is None


def test_the_drivers_memory_sink_has_the_rows_and_its_copies_have_none(tmp_path: Path, store: ObjectStore) -> None:
    bench = memory(tmp_path, store)
    assert isinstance(bench.sink, MemorySink)
    assert bench.sink.table().schema == SCHEMA
    bench.publish(1, bench.stage(rows((1, "a"))))
    assert pickle.loads(cloudpickle.dumps(bench.sink)).rows() == []
    assert bench.sink.rows() == [{"k": 1, "v": "a"}]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ValueError("no"), PublishFailed), (ConnectionError("later"), ConnectionError), (StorageError("s"), StorageError)],
)
def test_only_io_errors_of_a_callback_are_tried_again(
    raised: Exception, expected: type[Exception], tmp_path: Path, store: ObjectStore
) -> None:
    calls: list[tuple[int, int]] = []

    def fn(table: pa.Table, number: int) -> None:
        calls.append((table.num_rows, number))
        raise raised

    bench = Bench(CallbackSink(fn), store, list, lambda: CallbackSink(fn), [store])
    group = bench.stage(rows((1, "a"), (2, "b")))
    for _ in range(2):
        with pytest.raises(expected):
            bench.publish(4, group)
    assert calls == [(2, 4), (2, 4)]


def test_a_committable_outgrows_its_record_into_an_object(tmp_path: Path, store: ObjectStore) -> None:
    bench = memory(tmp_path, store)
    (small,) = bench.stage(rows((1, "a")))
    (big,) = bench.stage(large(0))
    assert len(small) < INLINE_BYTES_MAX
    assert len(big) < 300
    assert len(bench.staged_objects()) == 1
