"""Senders that stay on Spark: their reports, how they die, and that the rest of the job does not notice."""

import logging
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from spark_kit import kill_task_manager, new_job, newest, run, senders, write_rows

import holdfast as hf
from waiting import until

IDLE_S = 3.0
IDLE_SHARE_MAX = 0.03
"""Share of a processor. A sign of life every second takes about 2 ms, and a loaded machine makes it longer."""


class Held:
    """A step that notes its process and waits, until a file says that it may go on."""

    def __init__(self, folder: Path, split: int) -> None:
        self.folder = folder
        self.at = split

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        value = batch.column("value")
        if pc.min(value).as_py() == self.at and not (self.folder / "go").exists():
            (self.folder / f"held-{os.getpid()}").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.005)
        return pa.record_batch([pc.bit_wise_and(value, 7), value], names=["k", "v"])

    def process(self) -> int:
        """The process that waits."""
        until(lambda: list(self.folder.glob("held-*")))
        return int(next(self.folder.glob("held-*")).name.removeprefix("held-"))

    def go(self) -> None:
        (self.folder / "go").touch()


def sums(rows: int) -> dict[int, int]:
    return {k: sum(range(k, rows, 8)) for k in range(8)}


def held_job(spark, folder: Path, sink: hf.MemorySink, **settings) -> tuple[hf.Job, Held]:
    """Two batches of 400 rows in two splits; the second split of the first batch is held."""
    job, held = new_job(spark, folder, max_rows_per_batch=400, **settings), Held(folder, 1)
    numbers = job.read(hf.SequenceSource(800, splits=2)).map_batches(held, "k BIGINT, v BIGINT")
    numbers.key_by("k").aggregate(total=hf.sum("v")).write(sink)
    return job, held


def test_a_batch_of_units_that_are_all_in_python_starts_no_spark_job(spark, tmp_path):
    job, sink = new_job(spark, tmp_path, name="quick"), hf.MemorySink()
    job.read(hf.SequenceSource(80, splits=2)).map_batches(Held(tmp_path, -1), "k BIGINT, v BIGINT").key_by(
        "k"
    ).aggregate(total=hf.sum("v")).write(sink)
    query = job.start()
    query.processAllAvailable()
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    descriptions = [
        str(jobs.apply(index).description().get())
        for index in range(jobs.size())
        if jobs.apply(index).description().isDefined()
    ]
    query.stop()
    mine = {each for each in descriptions if each.startswith("quick: ")}
    assert "quick: TaskManager 0, incarnation 1" in mine
    assert len(mine) == 1 + 2 and all("sender" in each or "TaskManager" in each for each in mine)
    assert newest(sink) == sums(80)


def test_the_death_of_a_sender_costs_its_units_only(spark, tmp_path):
    sink = hf.MemorySink()
    job, held = held_job(spark, tmp_path, sink, senders=2)
    query = job.start()
    pid = held.process()
    until(lambda: len(serving(query)) == 2)
    before = serving(query)
    os.kill(pid, signal.SIGKILL)
    held.go()
    query.processAllAvailable()
    until(lambda: len(serving(query)) == 2 and len({*serving(query), *before}) == 3)
    assert newest(sink) == sums(800)
    assert query.restarts == []
    assert len(query.recentProgress) == 2, "the batch was run once"
    query.stop()


def test_a_sender_that_was_paused_is_given_up_and_changes_nothing_when_it_wakes(spark, tmp_path, caplog):
    sink = hf.MemorySink()
    task_manager = hf.TaskManagerConfig(heartbeat_timeout="4s")
    job, held = held_job(spark, tmp_path, sink, senders=1, task_manager=task_manager)
    query = job.start()
    pid = held.process()
    [first] = serving(query)
    os.kill(pid, signal.SIGSTOP)
    held.go()
    until(lambda: first not in serving(query))
    os.kill(pid, signal.SIGCONT)
    query.processAllAvailable()
    until(lambda: not _runs(pid))
    assert newest(sink) == sums(800)
    assert query.restarts == []
    query.stop()


@pytest.mark.long
def test_a_sender_that_hangs_is_named_before_its_limit_and_another_one_does_its_work(spark, tmp_path, caplog):
    sink, held = hf.MemorySink(), Held(tmp_path, 1)
    job = new_job(spark, tmp_path, senders=2, failover=hf.FailoverConfig(process_timeout="4s"))
    job.read(hf.SequenceSource(80, splits=2)).map_batches(held, "k BIGINT, v BIGINT").write(sink)
    query = job.start()
    pid = held.process()
    [hung] = [incarnation for incarnation, process in senders(query).items() if process.pid == pid]
    [number] = [each.number for each, _ in query._master.parts.senders.addresses() if each.incarnation == hung]
    said = f"the cluster has been running the tasks of batch 1, push 0 for {{}} s (at work: sender {number})"
    until(lambda: f"{said.format(4)}, longer than process_timeout='4s'" in caplog.text)
    held.go()
    query.processAllAvailable()
    query.stop()
    assert f"{said.format(2)}; after process_timeout='4s' it is ended" in caplog.text
    assert sorted(row["v"] for row in sink.rows()) == list(range(80))


def serving(query: hf.Query) -> list[int]:
    """The incarnations of the senders that serve now."""
    return sorted(each.process.incarnation for each in list(query._master.parts.senders._serving.values()))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_task_manager_is_replaced_though_senders_have_all_the_other_slots(spark, tmp_path):
    sink = hf.MemorySink()
    job, held = held_job(spark, tmp_path, sink, task_managers=2, parallelism=2, senders=2)
    held.go()
    query = job.start()
    query.processAllAvailable()
    until(lambda: len(serving(query)) == 2)
    before = serving(query)
    kill_task_manager(query, 1)
    until(lambda: len(query.restarts) == 1)
    query.processAllAvailable()
    assert newest(sink) == sums(800)
    assert serving(query) == before, "the same senders go on"
    query.stop()


def test_the_error_of_one_unit_names_what_it_was_about_and_nothing_is_committed(spark, tmp_path):
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 701 in batch.column("value").to_pylist():
            raise ValueError("seven hundred and one")
        return batch

    job, sink = new_job(spark, tmp_path, senders=2), hf.MemorySink()
    job.read(hf.SequenceSource(800, splits=2)).map_batches(fails, "value BIGINT").write(sink)
    query = job.start()
    with pytest.raises(
        hf.QueryFailed, match=r"map_batches\(fails\) raised ValueError: seven hundred and one .*split '1'"
    ):
        query.awaitTermination(60)
    assert sink.rows() == []


@pytest.mark.parametrize(
    ("senders", "says"),
    [
        pytest.param(0, "senders=0: every unit of work goes as a short Spark job", marks=pytest.mark.long),
        (4, "too few slots for senders that stay (4 for senders needed, TaskManagers leave 3): every unit"),
        pytest.param(3, "3 senders stay in the 3 slots that TaskManagers leave", marks=pytest.mark.long),
        (None, "2 senders stay in the 3 slots that TaskManagers leave"),
    ],
)
def test_the_log_says_in_one_line_where_units_are_worked_off(spark, tmp_path, caplog, senders, says):
    job, sink = new_job(spark, tmp_path, senders=senders), hf.MemorySink()
    numbers = job.read(hf.SequenceSource(80)).map_batches(Held(tmp_path, -1), "k BIGINT, v BIGINT")
    numbers.key_by("k").aggregate(total=hf.sum("v")).write(sink)
    with caplog.at_level(logging.INFO, "holdfast.spark.start"):
        run(job)
    assert [each for each in caplog.messages if "short Spark job" in each or "stay" in each] == [
        each for each in caplog.messages if says in each
    ]
    assert sum(says in each for each in caplog.messages) == 1
    assert newest(sink) == sums(80)


def test_a_leg_that_needs_spark_has_a_slot_left(spark, tmp_path, caplog):
    job, sink = new_job(spark, tmp_path), hf.MemorySink()
    numbers = job.read(hf.SequenceSource(80)).map_batches(Held(tmp_path, -1), "k BIGINT, v BIGINT")
    numbers.transform(lambda df: df.where("v >= 0")).key_by("k").aggregate(total=hf.sum("v")).write(sink)
    with caplog.at_level(logging.INFO, "holdfast.spark.start"):
        run(job)
    assert "test: 2 senders stay in the 3 slots that TaskManagers leave" in caplog.messages
    assert newest(sink) == sums(80)


def test_the_users_program_has_a_slot_left_for_its_own_spark_jobs(spark, tmp_path):
    job, sink = new_job(spark, tmp_path), hf.MemorySink()
    job.read(hf.SequenceSource(80)).map_batches(Held(tmp_path, -1), "k BIGINT, v BIGINT").write(sink)
    query = job.start()
    query.processAllAvailable()
    until(lambda: len(serving(query)) == 3)  # A sender may come after the first batch.
    assert spark.range(5).count() == 5
    query.stop()


def test_a_sender_that_idles_takes_no_processor_time(spark, tmp_path):
    write_rows(tmp_path / "in" / "first.parquet", [{"k": 1}])
    job, sink = new_job(spark, tmp_path, senders=2), hf.MemorySink()
    job.read(hf.FileSource(f"{tmp_path}/in/*.parquet")).write(sink)
    query = job.start()
    query.processAllAvailable()
    until(lambda: len(serving(query)) == 2)
    before = {pid: _processor_s(pid) for pid in (each.pid for each in senders(query).values())}
    began_s = time.monotonic()
    until(lambda: time.monotonic() - began_s > IDLE_S)
    shares = [(_processor_s(pid) - used_s) / IDLE_S for pid, used_s in before.items()]
    query.stop()
    assert len(shares) == 2 and max(shares) < IDLE_SHARE_MAX, shares


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
