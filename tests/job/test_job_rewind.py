"""A TaskManager is lost in the middle of a job, and the others go back in memory: the result is that of a calm run.

The job has two keyed operators in a row, and a function that draws random numbers. Its output must fit
together, whichever draws count.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from job_kit import Feed, new_job, new_storage, newest

import holdfast as hf
from holdfast import failpoints
from holdfast.storage.store import open_store
from holdfast.taskmanager import taskmanager
from holdfast.taskmanager.subtask import Subtask
from holdfast.testing import Fault, FaultyStore, start
from holdfast.testing.local import LocalCluster
from waiting import until

KEYS, BATCHES = 30, 4


class Drawing(hf.ProcessFunction):
    """Adds a random number to the sum of its key, and puts out both."""

    total = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Iterable[tuple[int, int, int]]:
        drawn = random.randrange(1000)
        self.total.update(self.total.value() + drawn)
        yield row.k, drawn, self.total.value()


class Chain:
    """The job, on a store whose faults a test sets."""

    def __init__(self) -> None:
        self.feed = Feed(name="feed")
        self.draws, self.counts = hf.MemorySink(name="draws-out"), hf.MemorySink(name="counts-out")
        self.fault: Any = lambda operation, name: None
        self.reads: Counter[int] = Counter()
        storage, clusters = new_storage(), list[LocalCluster]()
        job = new_job(storage, parallelism=4, task_managers=2)
        rows = job.read(self.feed).key_by("k")
        rows.process(Drawing(), "k BIGINT, drawn BIGINT, total BIGINT", name="draws").write(self.draws)
        first = rows.aggregate(emit="every", n=hf.count(), name="first")
        levelled = first.map_batches(_by_level, "level BIGINT").key_by("level")
        levelled.aggregate(n=hf.count(), name="second").write(self.counts)
        store = FaultyStore(open_store(storage), lambda operation, name: self.fault(operation, name))
        self.query = start(job, hf.processing_time("0s"), store=store, on_cluster=clusters.append)
        self.cluster = clusters[0]

    def commit(self) -> None:
        before = self.query.totals.rows
        self.feed.put({"k": k} for k in range(KEYS))
        until(lambda: self.query.totals.rows >= before + KEYS)

    def kill_once(self, task_manager: int = 1) -> Any:
        """Make a function that kills it at its first call."""
        victims, lock = [task_manager], threading.Lock()

        def kill() -> None:
            with lock:
                victim = victims.pop() if victims else None
            if victim is not None:
                self.cluster.kill(victim)

        return kill

    def check(self, batches: int) -> None:
        """Counts are those of a calm run; each key's totals are the sums of the draws that were put out."""
        self.query.processAllAvailable()
        self.query.stop()
        levels = Counter(n % 3 for n in range(1, batches + 1) for _ in range(KEYS))
        assert {k: v["n"] for k, v in newest(self.counts.rows(), "level").items()} == levels
        totals: Counter[int] = Counter()
        for row in self.draws.rows():
            totals[row["k"]] += row["drawn"]
            assert row["total"] == totals[row["k"]], f"{row} does not follow from what was put out before"
        assert len(self.draws.rows()) == batches * KEYS


def _by_level(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows.column("n").to_numpy() % 3)], names=["level"])


@pytest.fixture
def chain():
    made = Chain()
    yield made
    failpoints.disarm()
    made.query.stop()


@pytest.mark.parametrize(
    "at",
    [
        "taskmanager.process.after",
        pytest.param("taskmanager.output", marks=pytest.mark.long),
        "taskmanager.commit.between",
        pytest.param("jobmaster.committed", marks=pytest.mark.long),
        "taskmanager.cut.uploaded",
        "jobmaster.acknowledged",
        pytest.param("jobmaster.record.before", marks=pytest.mark.long),
    ],
)
def test_a_loss_at_any_step_of_batches_and_checkpoints_changes_nothing(chain, at):
    chain.commit()
    chain.query.trigger_checkpoint(60)
    chain.commit()
    failpoints.arm(at, chain.kill_once())
    chain.commit()
    chain.query.processAllAvailable()
    until(lambda: len(chain.query.restarts) == 1)
    chain.commit()
    chain.check(4)


def test_a_second_loss_during_the_recovery_changes_nothing(chain):
    chain.commit()
    chain.query.trigger_checkpoint(60)
    chain.commit()
    failpoints.arm("taskmanager.deploy.table", chain.kill_once(0))
    chain.cluster.kill(1)
    until(lambda: len(chain.query.restarts) >= 1)
    chain.commit()
    chain.check(3)


def test_a_loss_while_the_answer_of_a_record_is_open_changes_nothing(chain):
    chain.commit()
    kill, asked = chain.kill_once(), []

    def lose_the_answer(operation: str, name: str) -> Fault | None:
        if operation != "create" or not name.startswith("journal/") or asked:
            return None
        asked.append(name)
        kill()
        return Fault.LOST_ANSWER

    chain.fault = lose_the_answer
    chain.query.processAllAvailable()
    until(lambda: len(chain.query.restarts) == 1)
    chain.fault = lambda operation, name: None
    chain.commit()
    chain.check(2)
    assert asked


def test_survivors_read_nothing_from_the_store(chain):
    chain.commit()
    chain.query.trigger_checkpoint(60)
    chain.commit()
    chain.cluster.kill(1)
    until(lambda: len(chain.query.restarts) == 1)
    chain.commit()
    survivor = next(each for each in chain.query.view().processes if each.number == 0)
    replacement = next(each for each in chain.query.view().processes if each.number == 1)
    assert survivor.metrics["recoveryObjects"] == 0 and replacement.metrics["recoveryObjects"] > 0
    chain.check(3)


def test_past_the_bound_of_undo_a_survivor_restores_and_the_log_says_so(chain, monkeypatch, caplog):
    monkeypatch.setattr(taskmanager, "give_up_undo", _give_up_all_undo)
    chain.commit()
    chain.query.trigger_checkpoint(60)
    chain.commit()
    chain.commit()
    with caplog.at_level("WARNING", logger="holdfast.jobmaster.batches.deployer"):
        chain.cluster.kill(1)
        until(lambda: len(chain.query.restarts) == 1)
    chain.commit()
    [said] = [each.getMessage() for each in caplog.records if each.name == "holdfast.jobmaster.batches.deployer"]
    assert "TaskManager 0 restored its state from the storage, because it could not go back in memory" in said
    assert "its undo reaches back to batch" in said
    survivor = next(each for each in chain.query.view().processes if each.number == 0)
    assert survivor.metrics["recoveryObjects"] > 0
    chain.check(4)


def _give_up_all_undo(settings: Any, subtasks: Sequence[Subtask]) -> None:
    """Stands for a TaskManager whose tables leave no memory for the undo of committed batches."""
    for table in [table for each in subtasks for table in each.tables]:
        table.shrink_undo(0)
