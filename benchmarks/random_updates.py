"""The job of `benchmarks.checkpoints`: random keys at a given rate, and a function that keeps their values."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import holdfast as hf
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, Source, SourceBatch, SourcePlan, SplitRead

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
POOL = 65_536
"""Different values; a block of a stored object holds about a thousand of them, so that it cannot be compressed."""


class Cycle:
    """How many updates have come into being: none before `begin`. Shared with the source's enumerator."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rate: float | None = 0.0
        self._began_s = 0.0
        self._first = 0

    def begin(self, rate: float | None, rows: int) -> None:
        """Give so many rows a second from now on, after `rows`; None: without end."""
        with self._lock:
            self._rate, self._began_s, self._first = rate, time.monotonic(), rows

    def available(self, filled: int) -> int:
        with self._lock:
            if self._rate is None:
                return 2**62
            return max(filled, self._first + int((time.monotonic() - self._began_s) * self._rate))

    def lag_s(self, rows: int) -> float:
        """Return how long ago the next rows came into being."""
        with self._lock:
            if not self._rate:
                return 0.0
            return max(0.0, time.monotonic() - self._began_s - (rows - self._first) / self._rate)


class RandomUpdates(Source):
    """Keys below `keys`: each once, in order, then at random, as many as `cycle` says. A split, positions from 0."""

    kind = "updates"

    def __init__(self, keys: int, cycle: Cycle, name: str) -> None:
        self.name = name
        self.keys = keys
        self.cycle = cycle

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "keys": self.keys}

    def schema(self) -> pa.Schema:
        return SCHEMA

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        return _Updates(self)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        start, stop = _position(read.start), _position(read.stop)
        numbers = np.arange(start, stop)
        keys = np.where(numbers < self.keys, numbers, mixed(numbers) % np.uint64(self.keys))
        yield SourceBatch(pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())], schema=SCHEMA), start)


class _Updates(Enumerator):
    def __init__(self, source: RandomUpdates) -> None:
        self._source = source

    def initial(self) -> Offsets:
        return {"0": 0}

    def latest(self) -> Offsets:
        return {"0": self._source.cycle.available(self._source.keys)}

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        first = _position(start["0"])
        stop = min(_position(until["0"]), first + rows_max)
        if first >= stop:
            return SourcePlan(dict(start), [])
        return SourcePlan({"0": stop}, [SplitRead("0", first, stop, stop - first)])

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        return {"0": max(0, self._source.cycle.available(self._source.keys) - _position(offsets["0"]))}


class Values(hf.BatchFunction):
    """Gives each key of a batch a new value of random bytes; puts out nothing."""

    value = hf.ValueState(pa.binary())

    def __init__(self, value_bytes: int) -> None:
        self._value_bytes = value_bytes

    def open(self, ctx: Any) -> None:
        random = np.random.default_rng(1)
        data = random.integers(0, 256, POOL * self._value_bytes, np.uint8).tobytes()
        self._pool = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(self._value_bytes), POOL, [None, pa.py_buffer(data)]
        ).cast(pa.binary())

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Any) -> Iterator[Any]:
        seconds = np.uint64(ctx.batch_time.timestamp() * 1000)
        places = mixed(keys.column(0).to_numpy() + np.int64(seconds)) % np.uint64(POOL)
        self.value.update(self._pool.take(pa.array(places.astype(np.int64))))
        return iter(())


def mixed(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Mix numbers as well as chance, and the same each time (splitmix64)."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _position(found: Any) -> int:
    return int(found or 0)
