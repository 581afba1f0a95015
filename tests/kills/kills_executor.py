"""A driver that kills the executor under its own TaskManager, while every other slot is taken by the user's own tasks.

    python kills_executor.py <folder>
    python kills_executor.py <folder> followed       a standby on another executor has the state, and takes the place
    python kills_executor.py <folder> suspended      the same, while that standby stands still; then it goes on
    python kills_executor.py <folder> rescaled       in the middle of rescales

`settings.json` in the folder has settings of the job, as its storage. Writes `found.json`: when the loss was noticed,
its reason, and the fate of the rows.
"""

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
from kills_driver import session

import holdfast as hf
from holdfast import failpoints

sys.path.append(str(Path(__file__).resolve().parents[1]))
from waiting import until

ROWS, KEYS = 4000, 8
WAIT_S = 120.0


def keys(rows):
    return pa.record_batch([pa.array(rows.column(0).to_numpy() % KEYS)], names=["k"])


def counts(spark, folder, sink):
    job = hf.Job(
        spark,
        name="executor",
        storage=(folder / "storage").as_uri(),
        parallelism=2,
        task_managers=1,
        senders=0,
        checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
    )
    job.read(hf.SequenceSource(ROWS, splits=2)).map_batches(keys, "k BIGINT").key_by("k").aggregate(n=hf.count()).write(
        sink
    )
    return job.start()


def executor_of(query):
    """The executor's JVM: an ancestor of the process that listens where the TaskManager with the state is."""
    found = [each for each in query.view().processes if each.role == "TaskManager" and not each.is_standby]
    process = listening_at(int(found[0].address.rpartition(":")[2]))
    return next(parent for parent in process.parents() if "ExecutorBackend" in " ".join(parent.cmdline()))


def listening_at(port):
    for process in psutil.Process().children(recursive=True):
        if any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in process.net_connections("tcp")
        ):
            return process
    raise AssertionError(f"nobody listens on port {port}")


def occupy(spark, folder, tasks):
    """Tasks of the user's own that stay until they are cancelled."""
    started = folder / "started"
    started.mkdir()

    def stay(index, _):
        (started / str(index)).touch()
        threading.Event().wait(600)
        return iter(())

    def run():
        spark.sparkContext.setJobGroup("own", "the user's own tasks", interruptOnCancel=True)
        try:
            spark.sparkContext.parallelize(range(tasks), tasks).mapPartitionsWithIndex(stay).collect()
        except Exception:
            return  # cancelled

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: len(list(started.iterdir())) == tasks, timeout_s=WAIT_S)
    return thread


def stand_still(query):
    """Suspend the standby that follows, kill the TaskManager that it follows, and let the standby go on after a
    restart."""
    [standby, *_] = [each for each in query.view().processes if each.follower is not None and each.follower.followed]
    process = listening_at(int(standby.address.rpartition(":")[2]))
    process.suspend()
    completed = query.totals.completed_checkpoints
    until(lambda: query.totals.completed_checkpoints > completed + 5, "checkpoints go on", timeout_s=WAIT_S)
    executor_of(query).kill()
    until(lambda: query.restarts, timeout_s=WAIT_S)
    process.resume()


def followed(folder, disturb=lambda query: executor_of(query).kill()):
    """Kill the executor of a TaskManager that a standby on another executor follows."""
    spark = session("local-cluster[3,2,1024]")
    sink = hf.MemorySink()
    settings = folder / "settings.json"
    more = json.loads(settings.read_text()) if settings.exists() else {"storage": (folder / "storage").as_uri()}
    job = hf.Job(
        spark,
        name="followed",
        parallelism=4,
        task_managers=1,
        standby_task_managers=2,
        standby_state=True,
        senders=1,
        max_rows_per_batch=200,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
        **more,
    )
    read = job.read(hf.SequenceSource(ROWS, splits=2, rows_per_second=200)).map_batches(keys, "k BIGINT")
    read.key_by("k").aggregate(n=hf.count()).write(sink)
    query = job.start()
    until(lambda: (query.view().metrics.values.get("followedPlaces") or 0) >= 1, timeout_s=WAIT_S)
    disturb(query)
    until(lambda: query.restarts, timeout_s=WAIT_S)

    def counted():
        return {row["k"]: row["n"] for row in sink.rows()}

    until(lambda: sum(counted().values()) >= ROWS, timeout_s=WAIT_S)
    newest = counted()
    query.stop()
    (folder / "found.json").write_text(json.dumps({"restarts": query.restarts, "counts": newest}))
    spark.stop()


def holders(query):
    """The number of TaskManagers that hold places and serve."""
    return sum(each.role == "TaskManager" and not each.is_standby for each in query.view().processes)


def rescaled(folder):
    """Kill an executor under a TaskManager while state moves, and another one in a hand-over."""
    spark = session("local-cluster[3,2,1024]")
    sink = hf.MemorySink()
    job = hf.Job(
        spark,
        name="rescaled",
        storage=(folder / "storage").as_uri(),
        parallelism=4,
        task_managers=1,
        senders=1,
        max_rows_per_batch=200,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
    )
    read = job.read(hf.SequenceSource(ROWS, splits=2, rows_per_second=200)).map_batches(keys, "k BIGINT")
    read.key_by("k").aggregate(n=hf.count()).write(sink)
    query = job.start()
    until(lambda: query.totals.completed_checkpoints >= 2, timeout_s=WAIT_S)
    killed = []

    def kill():
        if not killed:
            killed.append(executor_of(query))
            killed[0].kill()

    found = []
    for wanted, at in (
        ({"task_managers": 3}, "jobmaster.follow"),
        ({"task_managers": 2, "parallelism": 7, "senders": 2}, "jobmaster.hand.over"),
    ):
        killed.clear()
        failpoints.arm(at, kill)
        query.rescale(**wanted).wait(WAIT_S)
        failpoints.disarm()
        # The loss may be noticed after the new layout is deployed: its place is taken again then.
        until(lambda wanted=wanted: holders(query) == wanted["task_managers"], timeout_s=WAIT_S)
        found.append([len(killed), holders(query), query.view().parallelism])

    def counted():
        return {row["k"]: row["n"] for row in sink.rows()}

    until(lambda: sum(counted().values()) >= ROWS, timeout_s=WAIT_S)
    newest = counted()
    query.stop()
    (folder / "found.json").write_text(json.dumps({"restarts": query.restarts, "counts": newest, "rescales": found}))
    spark.stop()


def main(folder):
    spark = session("local-cluster[2,2,1024]")
    sink = hf.MemorySink()
    query = counts(spark, folder, sink)
    query.processAllAvailable()
    own = occupy(spark, folder, 3)
    victim = executor_of(query)
    killed_s = time.monotonic()
    victim.kill()
    until(lambda: not query.taskManagers, timeout_s=WAIT_S)
    noticed_s = time.monotonic() - killed_s
    spark.sparkContext.cancelJobGroup("own")
    own.join(WAIT_S)
    until(lambda: query.restarts, timeout_s=WAIT_S)
    query.processAllAvailable()
    newest = {row["k"]: row["n"] for row in sink.rows()}
    query.stop()
    found = {"noticed_s": noticed_s, "restarts": query.restarts, "counts": newest, "active": query.isActive}
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    programs = {"followed": followed, "suspended": partial(followed, disturb=stand_still), "rescaled": rescaled}
    programs.get(sys.argv[-1], main)(Path(sys.argv[1]))
