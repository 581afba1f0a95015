"""A job on a cluster of four executors whose TaskManagers, senders and executors are killed while it runs.

    python kills_scale.py <folder>

Eight TaskManagers, eight senders and 200 splits. Each row comes out once for each time that the job took it in, with
the count of its key so far: whatever was lost, doubled or counted twice is seen. Writes `found.json`.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import psutil
import pyarrow as pa
from kills_driver import session

import holdfast as hf

sys.path.append(str(Path(__file__).resolve().parents[1]))
from waiting import until

MASTER = "local-cluster[4,5,1024]"
SPLITS, ROWS_PER_SPLIT, KEYS, ROWS_PER_BATCH = 200, 300, 64, 1_500
TASK_MANAGERS = SENDERS = 8
KILLS = ("TaskManager", "sender", "executor", "sender", "TaskManager")
BATCHES_BETWEEN_KILLS = 4
WAIT_S = 400.0


def keys(rows):
    return pa.record_batch([pa.array(rows.column(0).to_numpy() % KEYS)], names=["k"])


def running(spark, folder, sink):
    job = hf.Job(
        spark,
        name="scale",
        storage=(folder / "storage").as_uri(),
        parallelism=2 * TASK_MANAGERS,
        task_managers=TASK_MANAGERS,
        senders=SENDERS,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("500ms")),
        max_rows_per_batch=ROWS_PER_BATCH,
    )
    numbers = job.read(hf.SequenceSource(SPLITS * ROWS_PER_SPLIT, splits=SPLITS)).map_batches(keys, "k BIGINT")
    numbers.key_by("k").aggregate(n=hf.count(), emit="every").write(sink)
    return job.start(hf.available_now())


def listening():
    """The processes of Python workers that serve, by port: TaskManagers and senders."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            for each in process.net_connections("tcp") if "python" in process.name() else ():
                if each.status == psutil.CONN_LISTEN:
                    found[each.laddr.port] = process
        except psutil.Error:
            continue  # it has ended meanwhile
    return found


def is_worker(process):
    """True if an executor's daemon of Python workers started the process, and it is not that daemon."""
    parent = process.parent()
    return parent is not None and "pyspark.worker" in parent.cmdline()


def victim(query, kind, number):
    """Nobody, where none of that kind serves at this moment."""
    ports = {int(each["address"].rpartition(":")[2]) for each in query.taskManagers}
    served = sorted(listening().items())
    task_managers = [process for port, process in served if port in ports]
    senders = [process for port, process in served if port not in ports and is_worker(process)]
    if kind == "sender":
        return senders[number % len(senders)] if senders else None
    if not task_managers:
        return None
    process = task_managers[number % len(task_managers)]
    if kind == "TaskManager":
        return process
    return next(parent for parent in process.parents() if "ExecutorBackend" in " ".join(parent.cmdline()))


def kill(query, kind, number):
    """Returns whether somebody was killed."""
    found = victim(query, kind, number)
    if found is not None:
        found.kill()
    return found is not None


def main(folder):
    spark = session(MASTER)
    sink = hf.MemorySink()
    query = running(spark, folder, sink)
    killed = []
    for number, kind in enumerate(KILLS):
        goal = query.totals.batches + BATCHES_BETWEEN_KILLS
        until(lambda goal=goal: query.totals.batches >= goal or not query.isActive, timeout_s=WAIT_S)
        until(lambda number=number, kind=kind: not query.isActive or kill(query, kind, 3 * number), timeout_s=WAIT_S)
        if query.isActive:
            killed.append(kind)
    query.awaitTermination()
    rows = Counter((row["k"], row["n"]) for row in sink.rows())
    expected = SPLITS * ROWS_PER_SPLIT // KEYS
    wrong = [key for key in range(KEYS) if any(rows[key, n] != 1 for n in range(1, expected + 1))]
    found = {
        "killed": killed,
        "restarts": query.restarts,
        "wrong": wrong,
        "rows": rows.total(),
        "checkpoints": query.totals.completed_checkpoints,
    }
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
