"""Checkpoints of many regions on Spark: splits raise, hang or end their sender by a schedule; records are compared.

In each round new rows come in every split, and another few splits fail. As soon as all others have read theirs, a
checkpoint is taken: its record must have the healthy splits at the end and the failed splits where they were.
"""

import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.dataset as ds

import holdfast as hf
from benchmarks.count import session
from holdfast.clock import Clock
from holdfast.journal.fence import read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, SourceBatch, SplitRead
from holdfast.sources.sequence import SequenceEnumerator
from holdfast.storage.store import open_store

ROWS_PER_ROUND = 4
"""New rows of each split."""
FAILING = ("raise", "raise", "raise", "exit", "hang")
"""Kinds of failures of a round, a split for each."""
HANG_S = 600.0
WAIT_S_MAX = 300.0


class Scheduled(hf.SequenceSource):
    """A sequence whose splits fail while a file with their name says how, and whose rows come round by round."""

    folder: ClassVar[str] = ""
    rounds: ClassVar[int] = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _scheduled, (self.rows, self.splits, self.name, Scheduled.folder)

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        return RoundsEnumerator(self, context.source, context.clock)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        fault = Path(Scheduled.folder, read.split)
        if fault.exists():
            fail(read.split, fault.read_text())
        yield from super().read(read)


def _scheduled(rows: int, splits: int, name: str, folder: str) -> Scheduled:
    Scheduled.folder = folder
    return Scheduled(rows, splits=splits, name=name)


def fail(split: str, kind: str) -> None:
    """Fail as a partition does whose broker is away, whose library crashes, or whose connection hangs."""
    if kind == "exit":
        os._exit(3)
    if kind == "hang":
        time.sleep(HANG_S)
    raise RuntimeError(f"partition {split} is offline")


class RoundsEnumerator(SequenceEnumerator):
    def __init__(self, source: Scheduled, name: str, clock: Clock) -> None:
        super().__init__(source, name, clock)
        self._names = source.split_names

    def latest(self) -> Offsets:
        super().latest()
        self._latest = dict.fromkeys(self._names, Scheduled.rounds * ROWS_PER_ROUND)
        return self._latest


def on_spark(splits: int, rounds: int, senders: int) -> dict[str, Any]:
    """Take a checkpoint in each round, and count the positions and rows that are wrong."""
    spark = session(f"local[{senders + 1}]")
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-regions-") as name:
            return Rounds(Path(name), splits, rounds).run(spark, senders)
    finally:
        spark.stop()


class Rounds:
    """A job, and the schedule of its failures."""

    def __init__(self, folder: Path, splits: int, rounds: int) -> None:
        self._folder = folder
        self._faults = folder / "faults"
        self._faults.mkdir()
        self._splits = splits
        self._rounds = rounds
        self._chance = random.Random(rounds)
        self._wrong = 0
        self._expected: dict[str, int] = dict.fromkeys(map(str, range(splits)), 0)
        self._storage = f"file://{folder}/storage"

    def run(self, spark: Any, senders: int) -> dict[str, Any]:
        Scheduled.folder, Scheduled.rounds = str(self._faults), 0
        job = hf.Job(
            spark,
            name="regions",
            storage=self._storage,
            senders=senders,
            checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
            regions=hf.RegionConfig(max_consecutive_failures=1_000, unit_timeout="5s"),
        )
        rows = self._splits * self._rounds * ROWS_PER_ROUND
        source = Scheduled(rows, splits=self._splits, name="events")
        job.read(source).write(hf.ParquetSink(f"file://{self._folder}/out", name="out"))
        query = job.start()
        began_s = time.monotonic()
        for _ in range(self._rounds):
            self._round(query)
        spent_s = time.monotonic() - began_s
        self._recover(query)
        query.stop()
        failures = int(query.view().metrics.values["numSplitFailures"])
        return {
            "real_checkpoints": self._rounds,
            "real_positions_wrong": self._wrong,
            "real_rows_wrong": self._rows_wrong(rows),
            "real_failures": failures,
            "real_round_s": round(spent_s / self._rounds, 2),
        }

    def _round(self, query: hf.Query) -> None:
        failing = dict(zip(self._chance.sample(sorted(self._expected), len(FAILING)), FAILING, strict=True))
        for split, kind in failing.items():
            (self._faults / split).write_text(kind)
        for fault in self._faults.iterdir():
            if fault.name not in failing:
                fault.unlink()
        Scheduled.rounds += 1
        stop = Scheduled.rounds * ROWS_PER_ROUND
        self._expected |= {split: stop for split in self._expected if split not in failing}
        self._await(query)
        self._compare(query)

    def _recover(self, query: hf.Query) -> None:
        for fault in self._faults.iterdir():
            fault.unlink()
        self._expected = dict.fromkeys(self._expected, Scheduled.rounds * ROWS_PER_ROUND)
        self._await(query)
        self._compare(query)
        query.processAllAvailable()

    def _await(self, query: hf.Query) -> None:
        """Wait until all splits that do not fail have read their rows."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline_s:
            last = query.lastProgress
            if last is not None and last["sources"][0]["endOffset"] == self._expected:
                return
            if query.exception() is not None:
                raise SystemExit(f"the query ended: {query.exception()}")
            time.sleep(0.02)
        raise SystemExit(f"some splits did not advance within {WAIT_S_MAX:.0f} s")

    def _compare(self, query: hf.Query) -> None:
        number = query.trigger_checkpoint(WAIT_S_MAX)
        assert number is not None
        record = read_record(open_store(self._storage), number)
        assert isinstance(record, CheckpointRecord)
        found = record.offsets["events"]
        self._wrong += sum(found.get(split) != position for split, position in self._expected.items())

    def _rows_wrong(self, rows: int) -> int:
        """Number of values that are not in the output exactly once."""
        values = ds.dataset(self._folder / "out", format="parquet").to_table()["value"].to_numpy()
        return int(np.count_nonzero(np.bincount(values, minlength=rows) != 1))
