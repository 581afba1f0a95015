"""The cost of a driver's restart by its stages: a new process goes on from the checkpoint that another one left.

    python -m benchmarks.restart --json

    python       the interpreter, and imports of PySpark, PyArrow and the names that the program uses
    spark        a session, whose JVM starts
    start        `job.start()`: probe of the executors, take-over, processes, restore
    first_batch  until the first batch after the restore is committed

Each has `cpu_s`, the processor time of driver, JVM and workers together, and `wall_s`. Of `--runs` restarts the middle
value is taken. Compiled kernels are there.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RUN_S_MAX = 600
STAGES = ("python", "spark", "start", "first_batch")


def restart(folder: Path) -> dict[str, dict[str, float]]:
    """Run a driver on a storage as a process of its own; its stages."""
    begun_s = time.time()
    command = [sys.executable, __file__, "--driver", str(folder), "--begun", str(begun_s)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S_MAX)
    if run.returncode:
        sys.exit(run.stderr)
    stages: dict[str, dict[str, float]] = json.loads(run.stdout.splitlines()[-1])
    return stages


def drive(folder: Path, begun_s: float) -> None:
    """Start the job, commit a batch and take a checkpoint; print the stages."""
    import holdfast as hf
    from benchmarks.count import session
    from benchmarks.start_session import cpu_s

    stages: dict[str, dict[str, float]] = {}
    before_cpu_s, before_s = 0.0, begun_s

    def end(stage: str) -> None:
        nonlocal before_cpu_s, before_s
        cpu, now_s = cpu_s(), time.time()
        stages[stage] = {"cpu_s": round(cpu - before_cpu_s, 2), "wall_s": round(now_s - before_s, 2)}
        before_cpu_s, before_s = cpu, now_s

    for name in ("Job", "SequenceSource", "NoopSink", "count"):
        getattr(hf, name)
    end("python")
    spark = session("local[4]")
    end("spark")
    job = hf.Job(spark, name="restarted", storage=(folder / "storage").as_uri(), task_managers=2)
    rows = job.read(hf.SequenceSource(rows_per_second=1_000.0, name="numbers"))
    rows.key_by("value").aggregate(name="count", n=hf.count()).write(hf.NoopSink(name="none"))
    query = job.start()
    end("start")
    while not query.totals.batches:
        time.sleep(0.01)
    end("first_batch")
    query.trigger_checkpoint(60)
    query.stop()
    spark.stop()
    print(json.dumps(stages), flush=True)


def measure(runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-restart-") as name:
        restart(Path(name))
        found = [restart(Path(name)) for _ in range(runs)]
    figures: dict[str, Any] = {
        stage: {key: statistics.median(each[stage][key] for each in found) for key in ("cpu_s", "wall_s")}
        for stage in STAGES
    }
    figures["all"] = {key: round(sum(figures[stage][key] for stage in STAGES), 2) for key in ("cpu_s", "wall_s")}
    return figures


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line")
    parser.add_argument("--driver", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.driver is not None:
        drive(options.driver, options.begun)
        return
    print(json.dumps(measure(options.runs), indent=None if options.json else 2))


if __name__ == "__main__":
    main(sys.argv[1:])
