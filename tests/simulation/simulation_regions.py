"""Simulated jobs whose splits are regions, some of which fail for a while: they raise, end their process, or hang."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from simulation_ends import FedSource, Feed
from simulation_invariants import require, require_equal
from simulation_run import TRACE_SHOWN, output, run_all
from simulation_runtime import Runtime
from simulation_settings import Life, Settings, draw
from simulation_store import URL
from simulation_world import Started, World, simulating

import holdfast as hf
from holdfast.graph import legs
from holdfast.journal.records import CheckpointRecord
from holdfast.sources.base import Offsets, SourceBatch, SplitRead

FAULTS_MAX = 3
"""Splits that fail in a life. Each may end a sender some times, and all of them together must not look like a storm."""
HANG_S = 10_000.0
SINKS = ("raw", "counts")
"""Branches that read the same source."""


@dataclass(frozen=True)
class SplitFault:
    """A time, counted from the start of a life, in which reads of a split fail."""

    split: str
    after_s: float
    for_s: float
    kind: str
    """"raise", "die": the process that reads ends; "hang"."""


class Faults:
    """The faults of the life that runs now."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since_s = 0.0
        self._faults: tuple[SplitFault, ...] = ()
        self.struck = 0

    def begin(self, faults: tuple[SplitFault, ...]) -> None:
        self._since_s, self._faults = self._runtime.now_s, faults

    def strike(self, split: str) -> None:
        """Fail a read, if its split is to fail now."""
        passed_s = self._runtime.now_s - self._since_s
        due = [each for each in self._faults if each.split == split and 0 <= passed_s - each.after_s < each.for_s]
        if not due:
            return
        self.struck += 1
        self._runtime.note("fault", f"{split} {due[0].kind}")
        if due[0].kind == "die" and self._runtime.current is not None:
            self._runtime.current.process.kill()
        if due[0].kind == "hang":
            self._runtime.sleep(HANG_S)
        raise ConnectionError(f"split {split} is offline (injected)")


class FaultyFeed(Feed):
    """A feed that also says which splits fail, and refuses no cut."""

    faults: Faults

    def may_be_cut(self, offsets: Offsets) -> bool:
        return True

    def availability(self, offsets: Offsets) -> hf.SnapshotAvailability:
        return hf.SnapshotAvailability.AVAILABLE


class FaultySource(FedSource):
    """A sequence of which some splits fail for a while."""

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        batches = list(super().read(read))
        yield from batches[:-1]
        assert isinstance(self.feed, FaultyFeed)
        self.feed.faults.strike(read.split)
        yield from batches[-1:]


def draw_regional(seed: int) -> Settings:
    """The settings of a seed, for a job without state and with some more splits."""
    drawn, rng = draw(seed), random.Random(f"regions of {seed}")
    kinds = {name: rng.choice(["memory", "callback", "parquet"]) for name in SINKS}
    lives = tuple(
        replace(
            life,
            outages=(),
            call_timeout_s=600.0,
            task_managers=1,
            restarts_max=10,
            losses_max=10,
            events=tuple(each for each in life.events if each.action not in ("hang", "storm", "fail")),
        )
        for life in drawn.lives
    )
    return replace(
        drawn,
        splits=rng.choice([3, 6]),
        sinks={**drawn.sinks, **kinds},
        lives=lives,
        emit="every",
        refusals=0,
        rows_over_s=rng.choice([3.0, 10.0]),
    )


class RegionalWorld(World):
    """The world of a job that copies a source into two sinks, split by split."""

    def __init__(self, settings: Settings, runtime: Runtime, local_dir: str) -> None:
        self.faults = Faults(runtime)
        self._rng = random.Random(f"faults of {settings.seed}")
        self._regions = hf.RegionConfig(
            max_failed_ratio=1.0,
            max_consecutive_failures=self._rng.choice([0, 2, 1_000]),
            on_poison="park",
            unit_timeout=self._rng.choice([1.0, 5.0]),
        )
        self._positions: dict[int, dict[str, Any]] = {}
        self._last: CheckpointRecord | None = None
        super().__init__(settings, runtime, local_dir)

    def job(self, life: Life) -> hf.Job:
        job = hf.Job(
            None,
            name="simulated",
            storage=URL,
            max_rows_per_batch=life.rows_per_batch,
            regions=self._regions,
            failover=hf.FailoverConfig(process_timeout=life.call_timeout_s),
            task_manager=hf.TaskManagerConfig(heartbeat_timeout=life.heartbeat_timeout_s),
            checkpoint=hf.CheckpointConfig(
                trigger=hf.every(life.checkpoint_every_s),
                timeout=life.checkpoint_timeout_s,
                max_concurrent=life.max_concurrent,
            ),
        )
        if not isinstance(self.feed, FaultyFeed):
            self.feed = FaultyFeed(self.runtime, self.settings.rows, self.settings.rows_over_s)
            self.feed.faults = self.faults
        numbers = job.read(FaultySource(splits=self.settings.splits, name="numbers", feed=self.feed))
        for name in SINKS:
            numbers.write(self.sinks[name])
        return job

    def start(self, life: Life) -> Started:
        kinds = ["raise", "raise", "die", "hang"] if life.senders else ["raise", "raise", "die"]
        self.faults.begin(
            tuple(
                SplitFault(
                    str(self._rng.randrange(self.settings.splits)),
                    self._rng.uniform(0.0, 4.0),
                    self._rng.choice([0.5, 3.0, 20.0]),
                    self._rng.choice(kinds),
                )
                for _ in range(self._rng.randint(0, FAULTS_MAX))
            )
        )
        return super().start(life)

    def calm(self) -> None:
        self.faults.begin(())
        super().calm()

    def settle(self, started: Started) -> bool:
        """Settle, and have parked splits tried again: while all splits are parked no checkpoint is taken, so that
        objects of the source stay that no checkpoint needs."""
        is_last = super().settle(started)
        if is_last:
            self.complete(lambda: self._catch_up(started), started.process)
        return is_last

    def _catch_up(self, started: Started) -> None:
        """Try splits that are behind again until none is."""
        query = started.query
        assert query is not None
        query.processAllAvailable()
        while behind := query.status["splitsBehind"]:
            for each in behind:
                query.retry(each["split"])
            self.runtime.sleep(0.5)
            query.processAllAvailable()

    def check_state(self, store: Any, record: CheckpointRecord) -> None:
        """There is no state."""

    def _recorded(self, number: int, record: CheckpointRecord) -> None:
        """A split that stands is where it was since the record that is named, and that record stays the same."""
        super()._recorded(number, record)
        self._positions[number] = dict(record.offsets["numbers"])
        before, self._last = self._last, record
        older = {} if before is None else before.behind.get("numbers", {})
        for split, each in record.behind.get("numbers", {}).items():
            place = record.offsets["numbers"][split]
            found = {since: at.get(split) for since, at in self._positions.items() if since >= each.since}
            require(set(found.values()) == {place}, f"record {number}: split {split} moved since {each.since}: {found}")
            stands = before is not None and before.offsets["numbers"].get(split) == place
            if split in older and stands:
                require_equal(each.since, older[split].since, f"record {number}: since when split {split} stands")


def check_rows(world: World) -> None:
    """Both sinks have each row once."""
    for name in SINKS:
        found = sorted(row["value"] for row in output(world, name))
        require_equal(found, list(range(world.feed.limit)), f"rows of {name}")


def simulate_regions(seed: int) -> RegionalWorld:
    """Run a seed from its first life to the last sweep. Raises the error found, after it was printed."""
    settings = draw_regional(seed)
    # Branches share a reading, but for those that Spark runs: then a split has units of its own on each of them.
    targets = legs.OUTPUTS_PER_LEG_MAX if seed % 2 else 1
    with mock.patch.object(legs, "OUTPUTS_PER_LEG_MAX", targets), simulating(settings, RegionalWorld) as world:
        assert isinstance(world, RegionalWorld)
        try:
            run_all(world, check_rows)
        except BaseException:
            print("\n".join(world.runtime.trace[-TRACE_SHOWN:]))
            print(settings)
            raise
        return world
