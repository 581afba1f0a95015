"""The driver's memory over many batches with a checkpoint at the end, as where checkpoints are an hour apart.

    python -m benchmarks.driver_memory --batches 3600 --json
    python -m benchmarks.driver_memory --batches 3600 --keep-all     # as it would be if nothing were gathered

Each of `--splits` tasks leaves some 7 KB of rows in every batch, which is little enough to travel with the checkpoint.
Everything is real but Spark (`holdfast.testing`), in a single process, on a clock that stands still; the store is a
folder.

    resident_mb    of the process, at `SAMPLES` moments from the first batch to the last batch
    grown_mb       from the first quarter of the batches to the last quarter
    peak_mb        the most there was, publication included
    published      rows that the sink shows at the end
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds

import holdfast as hf
from holdfast import failpoints
from holdfast.clock import ManualClock
from holdfast.testing import run
from holdfast.testing.local import LocalCluster

VALUE_BYTES = 700
ROWS_PER_TASK = 10
SAMPLES = 12


def widened(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of bytes that no compression makes smaller."""
    noise = np.random.default_rng(0).bytes(rows.num_rows * VALUE_BYTES)
    values = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(VALUE_BYTES), rows.num_rows, [None, pa.py_buffer(noise)]
    ).cast(pa.binary())
    return pa.record_batch([rows.column(0), values], names=["value", "noise"])


class Memory:
    """Resident bytes of this process after each batch."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self._process = psutil.Process()

    def note(self) -> None:
        self.samples.append(self._process.memory_info().rss)


def measure(batches: int, splits: int, folder: Path, keep_all: bool) -> dict[str, Any]:
    """Run the job to its end."""
    rows_per_batch = splits * ROWS_PER_TASK
    job = hf.Job(
        None,
        name="driver-memory",
        storage=(folder / "storage").as_uri(),
        max_rows_per_batch=rows_per_batch,
        checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
    )
    source = hf.SequenceSource(rows=batches * rows_per_batch, splits=splits)
    job.read(source).map_batches(widened, "value BIGINT, noise BINARY").write(hf.ParquetSink((folder / "out").as_uri()))
    memory = Memory()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(LocalCluster, "senders", splits))
        if keep_all:
            stack.enter_context(mock.patch("holdfast.checkpoint.ledger.GATHER_BYTES_MAX", 1 << 40))
        failpoints.arm("jobmaster.committed", memory.note)
        stack.callback(failpoints.disarm)
        run(job, clock=ManualClock())
    during = list(memory.samples)
    memory.note()
    quarter = max(1, len(during) // 4)
    return {
        "batches": len(during),
        "committables_mb": round(batches * rows_per_batch * VALUE_BYTES / 1e6),
        "resident_mb": [round(each / 1e6) for each in during[:: max(1, len(during) // SAMPLES)]],
        "grown_mb": round((max(during[-quarter:]) - max(during[:quarter])) / 1e6, 1),
        "peak_mb": round(max(memory.samples) / 1e6),
        "published": ds.dataset(folder / "out").count_rows(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=3600)
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--keep-all", action="store_true", help="gather nothing")
    parser.add_argument("--json", action="store_true", help="one line")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-driver-memory-") as folder:
        found = measure(given.batches, given.splits, Path(folder), given.keep_all)
    print(json.dumps(found, indent=None if given.json else 2))


if __name__ == "__main__":
    main()
