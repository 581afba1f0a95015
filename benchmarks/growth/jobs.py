"""Jobs in this process whose batches are measured: a batch that makes the size, then a few batches of the same cost."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from holdfast.testing import TestSource, run, start

QUIET = 4
"""Batches that are measured, of which the least counts; the first of them also settles what the batch before left."""
SETTLE_S = 0.1
"""Pause of a look whether the process still works. A higher value takes longer, and misses less."""
SETTLE_LOOKS_MAX = 600
QUIET_LOOKS = 5
"""Looks in a row that see no work. A higher value takes longer, and misses less."""
BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
SCHEMA = "k BIGINT, at TIMESTAMP, v BIGINT"
LONG = "3650d"
BOUND_MB = 64
"""`memory` of the TaskManager, in megabytes, where output or state is to be larger."""

_numbers = itertools.count()

Declare = Callable[[hf.Job, hf.Stream], None]


def new_job(**settings: Any) -> hf.Job:
    """A job on a storage of its own, with checkpoints where somebody asks for one."""
    settings.setdefault("checkpoint", hf.CheckpointConfig(trigger=hf.manual()))
    return hf.Job(None, name="growth", storage=f"memory://growth-{next(_numbers)}", **settings)


def rows(keys: Any, seconds: Any, values: Any = None) -> pa.RecordBatch:
    """Rows of `SCHEMA`; each argument is an array or a number for all."""
    count = max(np.size(keys), np.size(seconds))
    at = np.broadcast_to(seconds, count).astype("i8") * SECOND_US + BEGIN_US
    columns = [
        pa.array(np.broadcast_to(keys, count).astype("i8")),
        pa.array(at.astype("datetime64[us]"), pa.timestamp("us", "UTC")),
        pa.array(np.broadcast_to(0 if values is None else values, count).astype("i8")),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["k", "at", "v"])


def later_batch_s(
    first: Sequence[Any],
    later: Any,
    declare: Declare,
    schema: str = SCHEMA,
    *,
    checkpoints: bool = False,
    **settings: Any,
) -> float:
    """The processor time of a batch of `later`, once batches of `first` are committed, each with a checkpoint if
    `checkpoints`."""
    source = TestSource([*first, *[later] * (QUIET + 1)], schema)
    source.length = 0
    job = new_job(**settings)
    declare(job, job.read(source))
    query = start(job, hf.processing_time("0s"))
    try:
        for _ in first:
            source.length += 1
            query.processAllAvailable()
            if checkpoints:
                query.trigger_checkpoint()
        settle()
        costs = []
        for _ in range(QUIET + 1):
            source.length += 1
            begun_s = time.process_time()
            query.processAllAvailable()
            costs.append(time.process_time() - begun_s)
        return min(costs[1:])
    finally:
        query.stop()


def settle() -> None:
    """Wait until the work beside the batches before has ended: materialization writes all of their state, in steps."""
    quiet = 0
    for _ in range(SETTLE_LOOKS_MAX):
        begun_s = time.process_time()
        time.sleep(SETTLE_S)
        quiet = quiet + 1 if time.process_time() - begun_s < SETTLE_S / 10 else 0
        if quiet == QUIET_LOOKS:
            return


def whole_s(declare: Callable[[hf.Job], None], **settings: Any) -> float:
    """The processor time of a whole job, from its declarations to its end."""
    begun_s = time.process_time()
    job = new_job(**settings)
    declare(job)
    run(job)
    return time.process_time() - begun_s


def bounded() -> dict[str, Any]:
    """Settings of a job whose output or state is larger than its memory."""
    return {"task_manager": hf.TaskManagerConfig(memory=f"{BOUND_MB}MB")}
