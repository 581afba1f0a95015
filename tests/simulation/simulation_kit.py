"""Helpers that tests of whole jobs in this process share: rows with keys, a clock in a hurry, short waits."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.changelog_config import ChangelogSettings, RetryPolicy

MAX_PARALLELISM = 8
SPEED = 25.0
LEVELS = 5
KEYED = pa.schema([("k", pa.int64()), ("value", pa.int64())])
LEVELLED = pa.schema([("level", pa.int64()), ("n", pa.int64())])


class HastyClock:
    """A simulated second passes in the 25th part of a second."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()

    def now(self) -> float:
        return 1_700_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return 1000.0 + (time.monotonic() - self._begun_s) * SPEED


@contextmanager
def short_waits() -> Iterator[None]:
    """Make every wait for a store that fails take milliseconds, in this process."""

    def hasty(settings: ChangelogSettings) -> RetryPolicy:
        delay_s = min(settings.next_attempt_delay_s, 0.004)
        return RetryPolicy(settings.upload_attempts_max, settings.attempt_timeout_s, delay_s, settings.extra_requests)

    with (
        mock.patch("holdfast.journal.patience.DELAY_S_MAX", 0.004),
        mock.patch.dict("holdfast.storage.retrying.RetryingStore.__init__.__kwdefaults__", {"first_delay_s": 0.002}),
        mock.patch.object(ChangelogSettings, "retry_policy", property(hasty)),
        mock.patch("holdfast.jobmaster.checkpoints.outages.PAUSE_S_MIN", 0.01),
        mock.patch("holdfast.jobmaster.checkpoints.outages.PAUSE_S_MAX", 0.05),
        mock.patch("holdfast.taskmanager.checkpoints.FIRST_REPEAT_S", 0.005),
    ):
        yield


def keyed(keys: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The numbers, with their remainders as keys."""
    values = batch.column("value")
    groups = pa.array(values.to_numpy() % keys)
    return pa.RecordBatch.from_arrays([groups, values], schema=KEYED)


def by_level(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The counts, with their remainders as keys of a second operator."""
    counts = batch.column("n")
    return pa.RecordBatch.from_arrays(
        [pa.array(counts.to_numpy() % LEVELS), pc.cast(counts, pa.int64())], schema=LEVELLED
    )
