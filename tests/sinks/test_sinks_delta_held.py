"""A Delta sink keeps its table from one publication to the next, and notices if the table is another table."""

import pickle
import shutil
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from sinks_delta_kit import JOB, SCHEMA, Target, row

from holdfast.errors import PublishFailed
from holdfast.sinks.base import PublishContext, SinkContext
from holdfast.sinks.delta import merging
from holdfast.sinks.delta.delta_sink import DeltaSink


def publish(target: Target, number: int, *rows: dict[str, object]) -> None:
    """Publish with the sink of the publications before."""
    context = PublishContext(JOB, target.name, target.store, target.schema)
    target.sink.publish(number, target.stage(*rows), context)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_log_of_the_table_is_loaded_once_for_all_publications(tmp_path: Path, mode: str) -> None:
    target = Target(tmp_path, mode=mode)
    with mock.patch.object(DeltaSink, "_load", autospec=True, side_effect=DeltaSink._load) as load:
        for number in range(1, 6):
            publish(target, number, row(number, "a"))
            publish(target, number, row(number, "again"))
    assert load.call_count == 1
    assert target.pairs() == [(number, "a") for number in range(1, 6)]


def test_commits_of_others_since_the_last_publication_are_seen(tmp_path: Path) -> None:
    target = Target(tmp_path, mode="upsert")
    publish(target, 1, row(1, "a"))
    write_deltalake(tmp_path, pa.Table.from_pylist([row(2, "theirs")], schema=SCHEMA), mode="append")
    publish(target, 2, row(2, "ours"))
    assert target.pairs() == [(1, "a"), (2, "ours")]
    target.publish(3, target.stage(row(3, "of another process")))
    publish(target, 3, row(3, "again"))
    assert target.pairs() == [(1, "a"), (2, "ours"), (3, "of another process")]
    target.table.alter.add_constraint({"positive": "k > 0"})
    with pytest.raises(PublishFailed, match="was changed"):
        publish(target, 4, row(4, "a"))


@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_table_that_was_created_anew_is_loaded_anew(tmp_path: Path, others: int) -> None:
    target = Target(tmp_path)
    publish(target, 1, row(1, "a"))
    shutil.rmtree(tmp_path)
    target.sink.prepare(SCHEMA, SinkContext(JOB, target.name, target.store))
    for number in range(others):
        write_deltalake(tmp_path, pa.Table.from_pylist([row(number, "theirs")], schema=SCHEMA), mode="append")
    publish(target, 2, row(9, "b"))
    assert target.pairs() == sorted([(9, "b"), *((number, "theirs") for number in range(others))])
    assert target.table.version() == others + 1


def test_a_table_that_was_dropped_between_publications_fails_for_good(tmp_path: Path) -> None:
    target = Target(tmp_path)
    publish(target, 1, row(1, "a"))
    group = target.stage(row(2, "b"))
    shutil.rmtree(tmp_path / "_delta_log")
    with pytest.raises(PublishFailed, match="does not accept"):
        target.sink.publish(2, group, PublishContext(JOB, target.name, target.store, target.schema))
    assert not DeltaTable.is_deltatable(str(tmp_path))


def test_a_sink_that_has_published_can_be_shipped(tmp_path: Path) -> None:
    target = Target(tmp_path)
    publish(target, 1, row(1, "a"))
    copy = pickle.loads(pickle.dumps(target.sink))
    assert copy == target.sink
    copy.publish(2, target.stage(row(2, "b")), PublishContext(JOB, target.name, target.store, target.schema))
    assert target.pairs() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_expired_entries_of_the_log_are_removed_now_and_then(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "CLEANUP_COMMITS", 8)
    target = Target(tmp_path, mode=mode)
    target.table.alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "2"}
    )
    entries = []
    for number in range(1, 10):
        publish(target, number, row(number, "a"))
        entries.append(len(list((tmp_path / "_delta_log").glob("*.json"))))
    assert entries[:5] == list(range(entries[0], entries[0] + 5)), "no commit looks for expired entries"
    assert min(entries[5:]) < entries[4], "the eighth commit has removed them"
    assert target.pairs() == [(number, "a") for number in range(1, 10)]
