"""The runs of all experiments: which benchmark, with which options, for about how long."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ROWS_OF_STATE = 1_000_000
BACKENDS = ("rocksdb", "hashmap")
"""RocksDB, which the documents measured, and the default of a job."""
CACHES = {"0 %": ROWS_OF_STATE // 4, "50 %": ROWS_OF_STATE // 2, "100 %": ROWS_OF_STATE}
"""Rows that stay in memory, by the share of look-ups that they answer."""


@dataclass(frozen=True)
class Size:
    """How much is measured. Seconds are those of a job's updates; rows those of a run of a state table."""

    state_mb: tuple[int, ...]
    seconds: int
    recoveries: int
    pressed_seconds: int
    cache_rows: int


FULL = Size(state_mb=(100, 1200), seconds=180, recoveries=3, pressed_seconds=60, cache_rows=4_000_000)
QUICK = Size(state_mb=(20, 100), seconds=15, recoveries=1, pressed_seconds=10, cache_rows=1_000_000)


@dataclass(frozen=True)
class Run:
    """A benchmark as a process of its own, and the seconds that it takes, roughly."""

    name: str
    module: str
    options: tuple[str, ...]
    seconds: float

    @property
    def command(self) -> str:
        return f"python -m {self.module} {' '.join(self.options)}"

    def measure(self) -> dict[str, Any]:
        """Run the benchmark; returns its JSON. Raises `RuntimeError` with the end of its output if it fails."""
        command = [sys.executable, "-m", self.module, *self.options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.command} failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def runs(size: Size) -> list[Run]:
    """List the runs: A and B by backend and state size, A with latencies, C in pairs, Remote Apply, the cache by its
    hits."""
    found = []
    for backend in BACKENDS:
        found += [_checkpoints(size, state_mb, backend) for state_mb in size.state_mb]
        found += [_latencies(size, backend), *_pressed(size, backend), _remote(size, backend)]
    return found + _caches(size)


def _checkpoints(size: Size, state_mb: int, backend: str) -> Run:
    options = ["--state-mb", str(state_mb), "--backend", backend, "--changelog", "both"]
    options += ["--seconds", str(size.seconds), "--recoveries", str(size.recoveries), "--series", "--json"]
    seconds = 2.6 * size.seconds + state_mb / 8
    return Run(f"A and B, {state_mb} MB, {backend}", "benchmarks.checkpoints", tuple(options), seconds)


def _latencies(size: Size, backend: str) -> Run:
    """A once more, with the time that each put took by the measurement of document `000`."""
    options = ["--state-mb", str(size.state_mb[0]), "--backend", backend, "--changelog", "both", "--latencies", "s3"]
    options += ["--seconds", str(size.seconds), "--recoveries", "0", "--json"]
    return Run(f"A with latencies, {backend}", "benchmarks.checkpoints", tuple(options), 2.8 * size.seconds)


def _pressed(size: Size, backend: str) -> list[Run]:
    """C: as many updates as go through, first without and with the changelog, then without and with local copies.

    Each pair takes turns in a single process, since the machine's speed changes more than a step costs. Batches follow
    each other without a pause: with a pause, small state takes all that the pause lets through."""
    steps: dict[str, Sequence[str]] = {
        "changelog": ("--changelog", "both", "--local-recovery", "off"),
        "local copies": ("--changelog", "on", "--local-recovery", "both"),
    }
    common = ["--state-mb", str(size.state_mb[0]), "--backend", backend, "--updates-per-s", "max", "--trigger", "0s"]
    common += ["--recoveries", "0", "--seconds", str(size.pressed_seconds), "--json"]
    return [
        Run(f"C, {name}, {backend}", "benchmarks.checkpoints", (*common, *step), 2.6 * size.pressed_seconds)
        for name, step in steps.items()
    ]


def _remote(size: Size, backend: str) -> Run:
    """The owner's cost of each checkpoint, with its table stored by itself and by a standby."""
    options = ["--state-mb", str(size.state_mb[0]), "--backend", backend]
    options += ["--seconds", str(size.pressed_seconds), "--json"]
    return Run(f"Remote Apply, {backend}", "benchmarks.remote_apply", tuple(options), 2 * size.pressed_seconds + 60)


def _caches(size: Size) -> list[Run]:
    found = []
    for hits, rows in CACHES.items():
        for cache in (0, rows):
            options = ["--backend", "rocksdb", "--cache", str(cache), "--keys", str(ROWS_OF_STATE)]
            options += [
                "--pattern",
                "returning" if hits == "50 %" else "random",
                "--rows",
                str(size.cache_rows),
                "--json",
            ]
            name = f"cache, {hits} hits, " + ("without" if cache == 0 else "with")
            found.append(Run(name, "benchmarks.state", tuple(options), 10 + size.cache_rows / 2e5))
    return found
