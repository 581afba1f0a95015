"""HDFS as a storage: what is refused at once, and whole jobs on a real one."""

import os
from collections import Counter

import pytest
from hdfs_native import Client

import holdfast as hf
from hdfs_kit import Hdfs, hdfs
from holdfast.errors import SettingsError, StorageError
from holdfast.storage import hdfs_store
from holdfast.storage.reach import check_reachable
from holdfast.storage.store import open_store
from holdfast.testing import Abort, TestSource, run
from waiting import until

ROWS = [{"k": number % 3} for number in range(30)]


def test_a_name_node_that_is_not_there_is_an_error_of_the_start() -> None:
    with pytest.raises(StorageError, match=r"hdfs://127\.0\.0\.1:1/state.*refused.*cannot be reached"):
        check_reachable("hdfs://127.0.0.1:1/state", {"dfs.client.failover.max.attempts": "1"})


def test_options_that_are_not_hadoops_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="'aws_region' in storage_options is not understood"):
        open_store("hdfs://127.0.0.1:1/state", {"aws_region": "eu"})
    with pytest.raises(SettingsError, match="nameless"):
        open_store("hdfs://nameless/state")


@pytest.fixture(scope="module")
def two_name_nodes():
    with hdfs(2) as running:
        yield running


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_outlives_the_loss_of_its_task_managers_and_a_switch_of_the_name_node(two_name_nodes: Hdfs) -> None:
    url = "hdfs://tests/jobs/counts"
    sink = hf.ParquetSink("hdfs://tests/jobs/output", storage_options=two_name_nodes.options)

    def job(batches: list[object], to: hf.Sink) -> hf.Job:
        made = hf.Job(None, name="counts", storage=url, storage_options=two_name_nodes.options, parallelism=2)
        made.read(TestSource(batches, "k BIGINT", name="rows")).key_by("k").aggregate(n=hf.count(), name="n").write(to)
        return made

    run(job([ROWS, Abort(), ROWS], sink))
    two_name_nodes.switch()
    memory = hf.MemorySink()
    run(job([ROWS, Abort(), ROWS, ROWS], memory))
    assert Counter({row["k"]: row["n"] for row in memory.rows()}) == {0: 30, 1: 30, 2: 30}
    files = [info.name for info in open_store("hdfs://tests/jobs/output", two_name_nodes.options).list("")]
    assert any(name.endswith(".parquet") for name in files)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_rows_of_a_parquet_file_on_hdfs_are_read(two_name_nodes: Hdfs) -> None:
    store = open_store("hdfs://tests/input", two_name_nodes.options)
    store.put("day=1/a.csv", b"k\n1\n2\n")
    job = hf.Job(None, name="reading", storage="memory://hdfs-reading")
    sink = hf.MemorySink()
    source = hf.FileSource("hdfs://tests/input/*/*.csv", schema="k BIGINT", storage_options=two_name_nodes.options)
    job.read(source).write(sink)
    run(job)
    assert [row["k"] for row in sink.rows()] == [1, 2]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_dead_processes_left_is_not_listed_and_goes_after_a_day(
    two_name_nodes: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("hdfs://tests/unfinished", two_name_nodes.options)
    store.put("a", b"1")
    client = Client("hdfs://tests", two_name_nodes.options)
    with client.create("/unfinished/.b.dead") as file:
        file.write(b"half")
    assert [info.name for info in store.list("")] == ["a"]
    assert client.get_file_info("/unfinished/.b.dead").length == 4
    monkeypatch.setattr(hdfs_store, "UNFINISHED_S_MAX", 0.0)
    until(lambda: store.list("") and ".b.dead" not in {each.path[12:] for each in client.list_status("/unfinished")})


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_folder_that_somebody_else_owns_is_refused_with_the_reason(
    two_name_nodes: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Client("hdfs://tests", two_name_nodes.options)
    owner.mkdirs("/private", 0o700, True)
    owner.set_owner("/private", "somebody", "else")
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody-else")
    monkeypatch.setattr(hdfs_store, "_clients", {})
    assert os.environ["HADOOP_USER_NAME"] == "nobody-else"
    with pytest.raises(StorageError, match=r"Permission denied.*nobody-else|HADOOP_USER_NAME"):
        open_store("hdfs://tests/private/state", two_name_nodes.options).put("a", b"1")
