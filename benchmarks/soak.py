"""A job that runs for hours: what every process holds, over time, which has to stay flat.

    python -m benchmarks.soak --minutes 180 --json --plot soak.svg

The job is that of `benchmarks.quiet`: six operators, RocksDB, local recovery, a checkpoint every `--interval`. A
sample is taken `SAMPLES` times: memory, threads and descriptors of each process, objects of the driver, and the small
pieces of memory (blocks) that Python's objects take in each TaskManager. The first third is left out: pools fill, and
caches grow to their bounds.

    per_hour                growth of each figure by the clock, by a robust line (the median of the slopes between all
                            pairs of samples)
    per_1000_checkpoints    the same by the number of checkpoints, which a short run compares with a long run
    last                    each figure at the end
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import psutil

import holdfast as hf
from benchmarks.count import session
from benchmarks.job_processes import own_thread_names, processes_of, thread_names, usage_of
from benchmarks.quiet import quiet_job

SAMPLES = 120
WARMUP_SHARE = 1 / 3

Sample = dict[str, float]
"""Figures by name, for example "driver memory_mb"; "at_s" is the time since the start."""


def files_below(folder: Path) -> int:
    """Count files, of which some may go meanwhile."""
    return sum(len(names) for _, _, names in os.walk(folder))


def sample(query: hf.Query, processes: Mapping[str, psutil.Process], folder: Path, at_s: float) -> Sample:
    figures: Sample = {"at_s": at_s}
    for name, process in processes.items():
        usage = usage_of(process)
        figures |= {f"{name} {each}": getattr(usage, each) for each in ("memory_mb", "threads", "descriptors")}
    figures["driver objects"] = len(gc.get_objects())
    for process in query.view().processes:
        if process.role == "TaskManager":
            blocks = process.metrics.get("processObjects", 0.0)  # a sample before its first report has none
            figures[f"{process.role} {process.number} blocks".lower()] = blocks
    figures["local files"] = files_below(folder / "local")
    figures["stored objects"] = files_below(folder / "storage")
    figures["checkpoints"] = query.totals.completed_checkpoints
    return figures


def growth(samples: Sequence[Sample], by: str, times: float) -> dict[str, float]:
    """Return the growth of each figure for `times` of the figure `by`, without the first `WARMUP_SHARE` of samples."""
    counted = samples[int(len(samples) * WARMUP_SHARE) :]
    return {name: round(_slope([(each[by], each[name]) for each in counted]) * times, 2) for name in counted[0]}


def _slope(points: Sequence[tuple[float, float]]) -> float:
    return median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1)


def watch(options: argparse.Namespace, folder: Path) -> list[Sample]:
    """Run the job for the time asked for; return its samples."""
    spark = session("local[4]")
    samples: list[Sample] = []
    query = quiet_job(spark, folder, options.rows, options).start(trigger=hf.processing_time(options.trigger))
    try:
        query.awaitTermination(20)
        processes, began_s = processes_of(query), time.monotonic()
        while (at_s := time.monotonic() - began_s) < options.minutes * 60:
            samples.append(sample(query, processes, folder, at_s))
            if options.threads:
                names = {name: dict(thread_names(each)) for name, each in processes.items() if name != "jvm"}
                print(json.dumps(samples[-1]), names, dict(own_thread_names()), file=sys.stderr, flush=True)
            query.awaitTermination(options.minutes * 60 / SAMPLES)
    finally:
        query.stop()
        spark.stop()
    return samples


def plot(samples: Sequence[Sample], file: Path) -> None:
    """Draw each figure as a share of its highest value, in an SVG."""
    names = [name for name in samples[0] if name != "at_s"]
    width, row, left = 900, 42, 260
    until_s = max(each["at_s"] for each in samples) or 1.0
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{row * len(names)}" font-size="12">']
    for place, name in enumerate(names):
        most = max(each[name] for each in samples) or 1.0
        points = " ".join(
            f"{left + each['at_s'] / until_s * (width - left):.1f},{row * (place + 1) - 4 - each[name] / most * 34:.1f}"
            for each in samples
        )
        lines.append(f'<text x="4" y="{row * (place + 1) - 14}">{name}, up to {most:.0f}</text>')
        lines.append(f'<polyline points="{points}" fill="none" stroke="currentColor"/>')
    file.write_text("\n".join([*lines, "</svg>"]))


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=180)
    parser.add_argument("--rows", type=float, default=250)
    parser.add_argument("--task-managers", type=int, default=2)
    parser.add_argument("--trigger", default="250ms", help="interval of batches")
    parser.add_argument("--interval", default="1s", help="interval of checkpoints; a lower value shows a slope sooner")
    parser.add_argument("--memory", default="64MB", help="of a TaskManager; with less, its buffers are full sooner")
    parser.add_argument("--threads", action="store_true", help="print each sample, with the names of threads")
    parser.add_argument("--plot", type=Path, help="an SVG file to write")
    parser.add_argument("--json", action="store_true", help="one line")
    parser.set_defaults(storage="", storage_options={})  # a folder beside the samples
    return parser.parse_args(given)


def main(given: Sequence[str]) -> None:
    options = arguments(given)
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name:
        samples = watch(options, Path(name))
    if options.plot:
        plot(samples, options.plot)
    figures: dict[str, Any] = {
        "per_hour": growth(samples, "at_s", 3600),
        "per_1000_checkpoints": growth(samples, "checkpoints", 1000),
        "last": samples[-1],
    }
    print(json.dumps(figures, indent=None if options.json else 2))


if __name__ == "__main__":
    main(sys.argv[1:])
