"""Costs of a user's `ProcessFunction` without Spark: timers, entries of maps, rows that are yielded, timestamps.

    python -m benchmarks.by_hand --keys 5000 --json
    python -m benchmarks.by_hand --before 3fe25d8

Each workload runs batches of a row or a timer for each key, begin to commit. Figures are microseconds of the thread's
CPU time for each row or timer, as the median batch has them, so that other load on the machine counts less. The last
ones are for each value of a timestamp column that becomes a Python object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from benchmarks.functions import take
from benchmarks.nexmark.cpu import ROOT, sources_of
from holdfast.clock import SystemClock
from holdfast.functions.operator import BatchContext, EventTime, Operator, OperatorInput
from holdfast.functions.process.declared import ProcessSpec
from holdfast.taskmanager.process_memory import GarbageCollection

INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
WITH_TEXT = INPUT.append(pa.field("text", pa.string()))
OUTPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PAIRS = 3
"""Runs of each side that `--before` compares; the least figure of each counts."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BATCHES, ENTRIES = 9, 8
PLACES = [f"place {number}" for number in range(ENTRIES)]


class Value(hf.ProcessFunction):
    """A value read and written, as a measure for the others."""

    n = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> None:
        self.n.update(self.n.value() + 1)


class Text(hf.ProcessFunction):
    """A text read and written."""

    text = hf.ValueState(pa.string(), default="")

    def process(self, row: Any, ctx: Any) -> None:
        self.text.update(self.text.value()[:24] + row.text)


class Texts(hf.ProcessFunction):
    """A list of texts as a single value."""

    texts = hf.ValueState(pa.list_(pa.string()), default=[])

    def process(self, row: Any, ctx: Any) -> None:
        self.texts.update([*self.texts.value()[1 - ENTRIES :], row.text])


class ListOfTexts(hf.ProcessFunction):
    """A list of texts, read and written as a whole."""

    texts = hf.ListState(pa.string())

    def process(self, row: Any, ctx: Any) -> None:
        self.texts.update([*self.texts.get()[1 - ENTRIES :], row.text])


class MapOfTexts(hf.ProcessFunction):
    """An entry of a map of texts by texts."""

    texts = hf.MapState(pa.string(), pa.string(), default="")

    def process(self, row: Any, ctx: Any) -> None:
        place = PLACES[row.v % ENTRIES]
        self.texts.put(place, self.texts.get(place)[:24] + row.text)


class Yields(hf.ProcessFunction):
    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        yield row.k, row.v


class Entry(hf.ProcessFunction):
    """An entry of a map, touched for the first time in the batch."""

    counts = hf.MapState(pa.int64(), pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> None:
        place = row.v % ENTRIES
        self.counts.put(place, self.counts.get(place) + 1)


class Bell(hf.ProcessFunction):
    """A timer a key; `process` registers the next timer, and fills the map once."""

    counts = hf.MapState(pa.int64(), pa.int64(), default=0)
    entries = ENTRIES

    def process(self, row: Any, ctx: Any) -> None:
        if self.counts.is_empty():
            self.counts.update(dict.fromkeys(range(self.entries), 1))
        ctx.timers.register_event_time(row.at)

    def again(self, timestamp: datetime, ctx: Any) -> None:
        ctx.timers.register_event_time(timestamp + timedelta(seconds=1))

    def on_timer(self, timestamp: datetime, ctx: Any) -> Any:
        self.again(timestamp, ctx)


class BellGets(Bell):
    def on_timer(self, timestamp: datetime, ctx: Any) -> Any:
        self.again(timestamp, ctx)
        self.counts.get(1)


class BellItems(Bell):
    def on_timer(self, timestamp: datetime, ctx: Any) -> Any:
        self.again(timestamp, ctx)
        sum(value for _, value in self.counts.items())


class BellItemsOfMany(BellItems):
    """Maps of more entries than are read along with their keys."""

    entries = 100


class BellYields(Bell):
    def on_timer(self, timestamp: datetime, ctx: Any) -> Any:
        self.again(timestamp, ctx)
        yield ctx.key, 1


BY_ROW = {"value": Value, "yield": Yields, "map entry": Entry}
BY_ROW_WITH_TEXT = {
    "value of text": Text,
    "value of texts": Texts,
    "list of texts": ListOfTexts,
    "map of texts": MapOfTexts,
}
BY_TIMER = {
    "timer": Bell,
    "timer, yield": BellYields,
    "timer, get": BellGets,
    f"timer, items of {ENTRIES}": BellItems,
    "timer, items of 100": BellItemsOfMany,
}


ZONES = {"timestamp in UTC": "UTC", "timestamp elsewhere": "Europe/Berlin", "timestamp without zone": None}


def operator_of(function: type[hf.ProcessFunction], schema: pa.Schema = INPUT) -> Operator:
    declared = OperatorInput(schema, ("k",), EventTime(("at",), "at"))
    return ProcessSpec("by-hand", declared, function(), OUTPUT, "fail").create(0, 128)


def rows_of(keys: int, batch: int) -> pa.RecordBatch:
    numbers = np.arange(keys)
    return pa.record_batch([numbers, numbers + batch, pa.array(np.full(keys, 1_000_000), INPUT.types[2])], schema=INPUT)


def rows_with_text(keys: int, batch: int) -> pa.RecordBatch:
    texts = [f"a text of row {batch} {key}" for key in range(keys)]
    return rows_of(keys, batch).append_column(WITH_TEXT.field("text"), pa.array(texts))


def by_row(function: type[hf.ProcessFunction], keys: int, text: bool = False) -> float:
    """Microseconds of a row."""
    operator, rows = operator_of(function, WITH_TEXT if text else INPUT), rows_with_text if text else rows_of
    seconds = [take(operator, batch, rows(keys, batch))[0] for batch in range(ENTRIES + BATCHES)]
    return 1e6 * statistics.median(seconds[ENTRIES:]) / keys


def by_timer(function: type[hf.ProcessFunction], keys: int) -> float:
    """Microseconds of a timer that fires."""
    operator = operator_of(function)
    take(operator, 0, rows_of(keys, 0))
    seconds = []
    for batch in range(1, BATCHES + 1):
        context = BatchContext(batch, 0, "by-hand", 0, watermark_us=batch * 1_000_000)
        seconds.append(take(operator, batch, None, context)[0])
    return 1e6 * statistics.median(seconds) / keys


def by_value(zone: str | None, keys: int) -> float:
    """Microseconds of a timestamp of a column."""
    from holdfast.python_values import python_values  # earlier commits have it elsewhere

    column = pa.array(np.arange(keys) * 1_234_567_891, pa.timestamp("us", zone))
    seconds = []
    for _ in range(BATCHES):
        begun_s = time.thread_time()
        python_values(column)
        seconds.append(time.thread_time() - begun_s)
    return 1e6 * statistics.median(seconds) / keys


def compared(options: argparse.Namespace) -> None:
    """Print the figures by row of an earlier commit's sources, of these, and how many times faster these are; the least
    of `PAIRS` runs each, in turn."""
    command = [sys.executable, "-m", "benchmarks.by_hand", "--by-row", "--keys", str(options.keys), "--json"]
    with tempfile.TemporaryDirectory(prefix="holdfast-by-hand-") as kept:
        sources = [sources_of(options.before, Path(kept)), ROOT / "src"]
        runs: list[list[dict[str, float]]] = [[], []]
        for turn in range(2 * PAIRS):
            environment = {**os.environ, "PYTHONPATH": f"{sources[turn % 2]}{os.pathsep}{ROOT}"}
            ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
            runs[turn % 2].append(json.loads(ran.stdout))
    before, now = ({name: min(run[name] for run in each) for name in each[0]} for each in runs)
    faster = {name: round(before[name] / now[name], 2) for name in now}
    print(json.dumps({"before": before, "now": now, "times_faster": faster}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument("--before", default="", help="a commit; figures are then its own, these, and the ratios")
    parser.add_argument("--by-row", action="store_true", help="leave out timers and timestamps")
    parser.add_argument("--json", action="store_true", help="one JSON line instead of a table")
    options = parser.parse_args()
    if options.before:
        compared(options)
        return
    with GarbageCollection(SystemClock()):
        found = {name: by_row(function, options.keys) for name, function in BY_ROW.items()}
        found |= {name: by_row(function, options.keys, True) for name, function in BY_ROW_WITH_TEXT.items()}
        if not options.by_row:
            found |= {name: by_timer(function, options.keys) for name, function in BY_TIMER.items()}
            found |= {name: by_value(zone, options.keys) for name, zone in ZONES.items()}
    figures = {name: round(micros, 2) for name, micros in found.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for name, micros in figures.items():
        print(f"{name:24} {micros:8.2f} µs")


if __name__ == "__main__":
    main()
