"""Checkpoints that failing partitions cannot stop: in simulation, and really on Spark.

    python -m benchmarks.regions --splits 5000 --json
    python -m benchmarks.regions --splits 5000 --checkpoints 1000 --no-spark

In simulation every region fails with 1e-4 in each checkpoint, 50 of them at once now and then, and a region for good.

    global_success          share of checkpoints that complete if the job is one region (without the region that fails
                            for good: no checkpoint would complete with it)
    regional_success        the same share if each split is a region
    healthy_standing        regions that did not fail and did not advance, over all checkpoints: 0
    commit_ms_p99           planning, isolation, commit and record of a checkpoint of all regions
    processor_ms_p99        the same by processor time
    record_bytes_max        the longest record
    memory_grown_mb         of the process, from the first quarter of the checkpoints to the last
    real_checkpoints        checkpoints on Spark, each with another set of splits that raise, hang or end their sender
    real_positions_wrong    positions in their records that are not as expected
    real_rows_wrong         rows that are missing in the output or there twice, once all splits have recovered
"""

import argparse
import json
import sys
from typing import Any

import holdfast as hf
from benchmarks.count import percentile
from benchmarks.regions_on_spark import on_spark
from benchmarks.regions_simulation import simulate

SEED = 1


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5000)
    parser.add_argument("--checkpoints", type=int, default=10_000, help="in simulation")
    parser.add_argument("--rounds", type=int, default=12, help="checkpoints on Spark")
    parser.add_argument("--senders", type=int, default=3, help="on Spark")
    parser.add_argument("--no-spark", action="store_true", help="only the simulation")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    return parser.parse_args(argv)


def simulated(splits: int, checkpoints: int) -> dict[str, Any]:
    whole = simulate(splits, checkpoints, None, SEED)
    regional = simulate(splits, checkpoints, hf.RegionConfig(on_poison="park"), SEED)
    return {
        "splits": splits,
        "checkpoints": checkpoints,
        "global_success": round(whole.success, 6),
        "regional_success": round(regional.success, 6),
        "healthy_standing": regional.healthy_standing,
        "failures": regional.failures,
        "parked": regional.parked,
        "commit_ms_p50": round(percentile(regional.commit_ms, 50), 1),
        "commit_ms_p99": round(percentile(regional.commit_ms, 99), 1),
        "processor_ms_p99": round(percentile(regional.processor_ms, 99), 1),
        "record_bytes_max": regional.record_bytes_max,
        "memory_grown_mb": round(regional.grown_mb, 1),
    }


def main(argv: list[str]) -> None:
    options = arguments(argv)
    found = simulated(options.splits, options.checkpoints)
    if not options.json:
        print(found, file=sys.stderr, flush=True)
    if not options.no_spark:
        found |= on_spark(options.splits, options.rounds, options.senders)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
