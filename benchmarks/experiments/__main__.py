"""Run the experiments of the changelog's and the cache's documents and write a page with plots.

    python -m benchmarks.experiments [--quick] [--to build/experiments]

A: checkpoint durations and sizes over time, with small and large state, with and without a changelog; with the
latencies of the documents, too. B: recovery, with and without local copies. C: updates per second under
back-pressure, without and with the changelog, then without and with local copies. Remote Apply: the owner's
cost of each checkpoint, if it stores its table or a standby does. All of these with RocksDB and in memory. The cache
at 0, 50 and 100 % hits. The whole takes about an hour on two cores, --quick about 10 minutes.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.experiments.report import page
from benchmarks.experiments.runs import FULL, QUICK, runs


def main(argv: list[str]) -> None:
    """Run all of it; the figures are kept as JSON beside the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small state and short runs")
    parser.add_argument("--to", type=Path, default=Path("build/experiments"), help="folder of the page")
    options = parser.parse_args(argv)
    size = QUICK if options.quick else FULL
    results: dict[str, dict[str, Any]] = {}
    planned = runs(size)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=sum(run.seconds for run in planned))
        for run in planned:
            progress.update(task, description=run.name)
            results[run.name] = run.measure()
            progress.advance(task, run.seconds)
    options.to.mkdir(parents=True, exist_ok=True)
    (options.to / "results.json").write_text(json.dumps(results, indent=1))
    (options.to / "index.html").write_text(page(size, planned, results))
    print(f"The page is {options.to / 'index.html'}")


if __name__ == "__main__":
    main(sys.argv[1:])
