"""Nexmark's queries on Holdfast, and beside it on Flink or Spark, over the same files.

    python -m benchmarks.nexmark --queries all --events 10000000 --json
    python -m benchmarks.nexmark --queries q5,q7 --events 2000000 --against-flink --against-spark
    python -m benchmarks.nexmark --queries q5 --events 2000000 --only-flink

Of Flink's two figures, RocksDB with the changelog and HashMap without, the first counts for `ratio`. Rows are those of
the streams that a query reads. Spark runs only queries that Structured Streaming has an operator for. A query
that fails on another engine is named in `failed_on_flink` or `failed_on_spark`, its error is on stderr, and the others
go on. The figures of a query are on stderr once all engines have run it, so a run that is cut off is not lost; `load`
is the machine's load average at that time.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.count import session
from benchmarks.nexmark import flink, spark
from benchmarks.nexmark.measure import PeerFailed, events_folder, rows_of, run_query
from benchmarks.nexmark.queries import QUERIES


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", default="all", help="names such as q5,q7")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--task-managers", type=int, default=1)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--master", default="local[4]")
    parser.add_argument("--rows-per-batch", type=int, default=1_000_000)
    parser.add_argument("--against-flink", action="store_true")
    parser.add_argument("--against-spark", action="store_true")
    parser.add_argument("--only-flink", action="store_true", help="Flink alone")
    parser.add_argument("--only-spark", action="store_true", help="Spark alone")
    parser.add_argument("--json", action="store_true", help="only one JSON line")
    options = parser.parse_args(argv)
    options.names = list(QUERIES) if options.queries == "all" else options.queries.split(",")
    unknown = sorted(set(options.names) - set(QUERIES))
    if unknown:
        parser.error(f"there is no query {unknown[0]}; there are {', '.join(QUERIES)}")
    return options


def measured(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The figures of each query, on all engines asked for: the engines run it directly after each other."""
    folder = events_folder(options.events, options.seed)
    counts = rows_of(folder)
    alone = options.only_flink or options.only_spark
    session_of = None if alone else session(options.master)
    found: dict[str, dict[str, Any]] = {}
    for name in options.names:
        rows = sum(counts[kind] for kind in QUERIES[name].reads)
        figures = found[name] = run_query(session_of, name, folder, options) if session_of else {}
        if options.against_flink or options.only_flink:
            add(figures, "flink", rows, partial(flink.run, name, folder, options.parallelism))
        if options.against_spark or options.only_spark:
            add(figures, "spark", rows, partial(spark.run, name, folder, options.parallelism))
        figures["load"] = round(os.getloadavg()[0], 1)
        print(name, json.dumps(figures), file=sys.stderr, flush=True)
    if session_of:
        session_of.stop()
    return found


def add(figures: dict[str, Any], engine: str, rows: int, run: Callable[[], Iterable[tuple[str, float]]]) -> None:
    """Run an engine's query and add the rate of each variant, and how many times faster Holdfast was than the first.

    A variant that fails is reported on stderr and marked in the figures; the variants before it keep their rates.
    """
    try:
        for variant, spent_s in run():
            figures[f"{engine}{variant}_rows_per_s"] = round(rows / spent_s)
            ratio = "ratio" if engine == "flink" else "ratio_to_spark"
            if "rows_per_s" in figures:
                figures.setdefault(ratio, round(figures["rows_per_s"] * spent_s / rows, 2))
    except PeerFailed as error:
        print(error, file=sys.stderr, flush=True)
        figures[f"{engine}_failed"] = True


def summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures of all queries, with the median ratios and the queries that fall short."""
    result: dict[str, Any] = {"queries": found}
    for engine, ratio in (("flink", "ratio"), ("spark", "ratio_to_spark")):
        ratios = {name: figures[ratio] for name, figures in found.items() if ratio in figures}
        if ratios:
            result[f"median_vs_{engine}"] = statistics.median(ratios.values())
            result[f"slower_than_{engine}"] = [name for name, value in ratios.items() if value < 1]
        failed = [name for name, figures in found.items() if figures.get(f"{engine}_failed")]
        if failed:
            result[f"failed_on_{engine}"] = failed
    return result


def main(argv: list[str]) -> None:
    options = arguments(argv)
    result = summary(measured(options))
    if options.json:
        print(json.dumps(result), flush=True)
        return
    columns = list(dict.fromkeys(name for figures in result["queries"].values() for name in figures))
    table = Table("query", *columns, title=f"Nexmark, {options.events:,} events")
    for name, figures in result["queries"].items():
        table.add_row(name, *(shown(figures.get(column, "")) for column in columns))
    Console().print(table)


def shown(figure: Any) -> str:
    """Write a figure with separators, and anything else as it is."""
    return f"{figure:,}" if type(figure) in (int, float) else str(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
