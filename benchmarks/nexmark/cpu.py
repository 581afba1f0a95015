"""Nexmark's queries by processor time, each in a process of its own, without Spark, beside an earlier commit.

    python -m benchmarks.nexmark.cpu --json
    python -m benchmarks.nexmark.cpu --queries q18,q20 --events 300000 --before none
    python -m benchmarks.nexmark.cpu --before sql --json

Figures are microseconds of processor time for each row that a query reads, as the last of the runs has them. Other work
on the machine counts less in them than in seconds. With either sources the process keeps its freed memory, as that of a
TaskManager does. `ratio_to_before` is of the same queries with the sources of the commit `--before`, each directly
before this one's; a checkout's folder does as well. With `--before sql` the queries are those in SQL, and the ratio is
to the same queries as programs.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import holdfast as hf
from benchmarks.nexmark import sql
from benchmarks.nexmark.measure import events_folder
from benchmarks.nexmark.queries import QUERIES, Events
from holdfast.taskmanager.process_memory import keep_freed_memory
from holdfast.testing import start

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "3fe25d8"
"""The commit before strings and nested values of states lay in arenas."""


def run(name: str, folder: Path, rows_per_batch: int, in_sql: bool = False) -> float:
    """Run a query; microseconds of processor time for each row."""
    job = hf.Job(None, name=name, storage=f"memory://{time.monotonic_ns()}", max_rows_per_batch=rows_per_batch)
    begun_s, query, streams = time.process_time(), QUERIES[name], Events(job, str(folder))
    made = sql.built(name, job, streams) if in_sql else query.build(streams)
    with tempfile.TemporaryDirectory(prefix="holdfast-nexmark-out-") as out:
        made.write(query.sink(out))
        return _finished(job, begun_s)


def _finished(job: hf.Job, begun_s: float) -> float:
    running = start(job, hf.available_now(drain=True))
    running.awaitTermination()
    return 1e6 * (time.process_time() - begun_s) / running.totals.rows


def measured(source: Path, name: str, options: argparse.Namespace, *more: str) -> float:
    """`run` with these sources of Holdfast, in a process of its own; the last of the runs."""
    command = [sys.executable, "-m", "benchmarks.nexmark.cpu", "--alone", "--queries", name, *more]
    for option in ("events", "rows_per_batch", "runs"):
        command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{name} with the sources in {source} ended with {ran.returncode}:\n{ran.stderr[-3000:]}")
    return float(ran.stdout.split()[-1])


def sources_of(commit: str, folder: Path) -> Path:
    """The folder with Holdfast's sources as of a commit, or in another checkout."""
    if Path(commit).is_dir():
        return Path(commit).resolve() / "src"
    archive = folder / "src.tar"
    subprocess.run(["git", "archive", "-o", str(archive), commit, "src"], cwd=ROOT, check=True)
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    return folder / "src"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", default="all", help="names such as q18,q20")
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rows-per-batch", type=int, default=250_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--before", default=BEFORE, help="a commit, a checkout's folder, sql, or none")
    parser.add_argument("--json", action="store_true", help="one JSON line instead of a table")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sql", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = list(QUERIES) if options.queries == "all" else options.queries.split(",")
    folder = events_folder(options.events, 0)
    if options.alone:
        keep_freed_memory()
        print([run(names[0], folder, options.rows_per_batch, options.sql) for _ in range(options.runs)][-1])
        return
    queries, before = dict[str, float](), dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="holdfast-nexmark-before-") as kept:
        in_sql = options.before == "sql"
        earlier = (
            None if options.before == "none" else ROOT / "src" if in_sql else sources_of(options.before, Path(kept))
        )
        for name in names:
            if earlier is not None:
                before[name] = measured(earlier, name, options)
            queries[name] = measured(ROOT / "src", name, options, *(["--sql"] if in_sql else []))
            if not options.json:
                print(name, *(f"{each[name]:8.2f} µs" for each in (queries, before) if name in each), flush=True)
    if options.json:
        ratios = {name: round(queries[name] / before[name], 3) for name in before}
        rounded = [{name: round(micros, 3) for name, micros in each.items()} for each in (queries, before)]
        print(json.dumps({"queries": rounded[0], "before": rounded[1], "ratio_to_before": ratios}))


if __name__ == "__main__":
    main()
