"""The cost of each checkpoint for the TaskManager that has the state, if it stores its table itself, or a standby does.

    python -m benchmarks.remote_apply --backend hashmap --json

A TaskManager with four subtasks holds `--state-mb` of values of 1,000 hexadecimal digits. 2,000 rows a second replace
some of them, a checkpoint is taken each second, and a standby follows. The table is stored whenever the log has
`--log-ratio` of its size, in the first job by the TaskManager (`owner`), in the second by the standby (`follower`).

    series                  for each checkpoint: milliseconds of the TaskManager's processor time, and bytes that it
                            stored, both since the checkpoint before; by the number of checkpoints between
    cpu_ms_p50, cpu_ms_max  of these; put_mb_p50, put_mb_max
    tables                  checkpoints that named a new table
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

import holdfast as hf
from benchmarks.failover import LOCAL, session, until
from benchmarks.job_processes import cpu_s_of
from benchmarks.restore_sizes import RandomValues, follows, owner_of, started
from holdfast.query import Query

matplotlib.use("svg")
from matplotlib import pyplot as plt

BY = {"owner": "#d9822b", "follower": "#3b6fb5"}
"""The colour of the line for each process that may store the table."""
BACKENDS = {"hashmap": hf.HashMapState, "rocksdb": hf.RocksDBState}
FIGURES = ("processor time, ms", "bytes stored, MB")


class Digits(RandomValues):
    """Step that gives each number a random value of hexadecimal digits, which compression makes half as large."""

    def bytes(self, count: int) -> bytes:
        return super().bytes(count // 2).hex().encode()


def watched(query: Query, seconds: float) -> list[tuple[float, float]]:
    """Watch the owner for some seconds; return the cost of each checkpoint: milliseconds, and megabytes."""
    owner = owner_of(query)

    def seen() -> tuple[int, float, float]:
        batches = query.totals.batches
        until(lambda: query.totals.batches > batches, 600.0)  # with which the bytes are told
        [process] = [each for each in query.view().processes if each.role == "TaskManager" and not each.is_standby]
        return query.totals.completed_checkpoints, cpu_s_of(owner) * 1e3, process.metrics["storePutBytes"] / 1e6

    series: list[tuple[float, float]] = []
    before, until_s = seen(), time.monotonic() + seconds
    while time.monotonic() < until_s:
        until(lambda: query.totals.completed_checkpoints > before[0], 600.0)  # noqa: B023 - it is called in this turn
        now = seen()
        between = now[0] - before[0]
        series += [(round((now[1] - before[1]) / between, 1), round((now[2] - before[2]) / between, 3))] * between
        before = now
    return series


def measure(spark: Any, by: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a job whose table is stored by `by`."""
    changelog = hf.ChangelogConfig(materialized_by=by, log_ratio_max=options.log_ratio)
    settings: dict[str, Any] = {
        "state": BACKENDS[options.backend](),
        "checkpoint": hf.CheckpointConfig(trigger=hf.every("1s"), changelog=changelog),
        "standby_task_managers": 1,
        "standby_state": True,
    }
    with tempfile.TemporaryDirectory(prefix="holdfast-remote-", ignore_cleanup_errors=True) as folder:
        query = started(spark, options.state_mb, False, Path(folder), Digits, **settings)
        try:
            until(lambda: follows(query), 600.0)
            query.awaitTermination(options.warmup)
            first = len(query.totals.checkpoints)
            series = watched(query, options.seconds)
            sizes = [each.materialized_bytes for each in query.totals.checkpoints[first:]]
        finally:
            query.stop()
    cpu_ms, put_mb = zip(*series, strict=True)
    return {
        "series": series,
        **{f"cpu_ms_{name}": round(of(cpu_ms)) for name, of in (("p50", median), ("max", max))},
        **{f"put_mb_{name}": round(of(put_mb), 2) for name, of in (("p50", median), ("max", max))},
        "tables": sum(new != old for old, new in itertools.pairwise(sizes)),
    }


def draw(axes: Any, figures: dict[str, Any], place: int) -> None:
    """Draw a figure of each checkpoint, at a place of `FIGURES`, as a line for each process that stores the table."""
    for by, colour in BY.items():
        axes.plot([each[place] for each in figures[by]["series"]], color=colour, linewidth=1, label=f"table by {by}")
    axes.set(xlabel="checkpoints, one a second", ylabel=FIGURES[place])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def plot(figures: dict[str, Any], file: Path) -> None:
    """Draw both figures into an SVG file."""
    plt.rcParams.update({"svg.hashsalt": "holdfast", "font.size": 9})
    made, panels = plt.subplots(1, 2, figsize=(12, 3.6), layout="constrained")
    for place, axes in enumerate(panels):
        draw(axes, figures, place)
        axes.set_title(f"The owner, for each checkpoint: {FIGURES[place]}", fontsize=9)
    made.savefig(file, metadata={"Date": None})


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, default=100)
    parser.add_argument("--backend", choices=list(BACKENDS), default="hashmap")
    parser.add_argument("--log-ratio", type=float, default=0.2)
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds before the series")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each series")
    parser.add_argument("--plot", type=Path, help="an SVG file to write")
    parser.add_argument("--json", action="store_true", help="the default; for the same form as other benchmarks")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    options = arguments(argv)
    spark = session(LOCAL)
    figures: dict[str, Any] = {"backend": options.backend, "state_mb": options.state_mb}
    figures |= {by: measure(spark, by, options) for by in BY}
    if options.plot:
        plot(figures, options.plot)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
