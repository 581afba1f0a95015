"""Savepoints, starts that go back, and settings that change in a simulated job, and their invariants."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import simulation_oracle as oracle
from simulation_ends import Recorder
from simulation_invariants import Broken, require, require_equal
from simulation_rescaling import SUBTASKS_MAX
from simulation_runtime import Runtime
from simulation_settings import Life
from simulation_store import FrozenStore, opened

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.updates import in_words
from holdfast.cleanup.observation import observe, plan
from holdfast.cleanup.plan import carry_out
from holdfast.jobmaster.starting.from_savepoint import begin_from, open_savepoint
from holdfast.journal.fence import read_retained
from holdfast.journal.records import CheckpointRecord
from holdfast.storage import names
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

if TYPE_CHECKING:
    from simulation_world import Started, World

RECORDS_UNTIL_NEW = 2
"""The first record after a change may have been sent before it."""


COPY_S = 1.0
"""Half of what the target of a savepoint takes for an object, on average."""


class SlowTarget:
    """The store of a savepoint, in which an object takes its time, so that much happens while it is written."""

    def __init__(self, runtime: Runtime, rng: random.Random, inner: ObjectStore) -> None:
        self.url = inner.url
        self._runtime = runtime
        self._rng = rng
        self._inner = inner

    def put(self, name: str, data: bytes) -> None:
        self._runtime.sleep(self._rng.expovariate(0.5 / COPY_S))
        self._inner.put(name, data)


def collect_garbage(store: ObjectStore) -> None:
    """Clean up as `holdfast gc` does, beside a JobMaster that may live."""
    observed = observe(store)
    if observed is not None:
        carry_out(store, plan(store, observed))


class Carrying:
    """Savepoints, returns to older checkpoints, and changes of settings that a seed draws for running queries."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"carried in {world.settings.seed}")
        self.urls: list[str] = []
        """Savepoints that were written."""
        self.checked = 0
        self._taken: Counter[Started] = Counter()
        """Savepoints of each start, whose records may be held beside those that are retained."""
        self._newest: tuple[int, CheckpointRecord] | None = None
        self._before: tuple[int, CheckpointRecord] | None = None
        """The record that was the newest before."""
        self.went_back = False
        """True if some start went back: output after the older checkpoint is published again, as was agreed to."""

    # --- starts -------------------------------------------------------------------------------------------------------

    def start_from(self, life: Life) -> dict[str, Any]:
        """Settings of a job that goes back, if the life is to, and there is something to go back to."""
        newest = oracle.newest_checkpoint(self._world.store.frozen())
        if life.goes_back is None or newest is None:
            return {}
        kept = list(read_retained(self._world.store.frozen(), newest[1]))
        if self.urls and (life.goes_back == "claim" or not kept):
            chosen: dict[str, Any] = {"start_from": self._rng.choice(self.urls), "restore_mode": "claim"}
        elif kept:
            chosen = {"start_from": int(self._rng.choice(kept))}
        else:
            return {}
        self.went_back = True
        return {**chosen, "publish_again": True}

    def open_target(self, url: str, options: Any) -> Any:
        """Open the store into which processes copy."""
        return SlowTarget(self._world.runtime, self._rng, open_store(url, options))

    # --- savepoints ---------------------------------------------------------------------------------------------------

    def take_savepoint(self, started: Started) -> None:
        """Take a savepoint of the running query. The copied objects are held, so that none is gone meanwhile."""
        assert started.query is not None
        url = f"memory://{uuid4().hex}"
        world = self._world
        self._taken[started] += 1
        try:
            saved = started.query.savepoint(url)
        except errors.ObjectNotFound as error:
            if world.replaced(started):
                return  # a later JobMaster holds nothing for it
            raise Broken(f"a savepoint found no object that its checkpoint names: {error}") from error
        except errors.HoldfastError as error:
            world.runtime.note("no savepoint", type(error).__name__)
            return
        world.runtime.note("savepoint", f"of record {saved.checkpoint}, {saved.objects} objects")
        self.urls.append(url)
        world.runtime.spawn(partial(self._check, url), "check", world.observer)

    def _check(self, url: str) -> None:
        """A new storage that begins from the savepoint has the state that the positions say, and no more objects."""
        store: Any = FrozenStore({})
        begin_from(store, open_savepoint(url, "no_claim", {}))
        newest = oracle.newest_checkpoint(store)
        assert newest is not None
        require_equal(newest[1].groups, {}, "output in a savepoint")
        self._world.check_state(store, newest[1])
        require_equal(oracle.unreferenced(store), set(), "what a savepoint holds in vain")
        self.checked += 1

    def clean(self) -> None:
        try:
            collect_garbage(RetryingStore(opened(self._world.store, self._world.settings)))
        except errors.HoldfastError as error:
            self._world.runtime.note("no clean-up", str(error))

    # --- records ------------------------------------------------------------------------------------------------------

    def followed(self, number: int, record: CheckpointRecord) -> None:
        """Check a record of any start against the record before it: output leaves the records once it is published."""
        before = self._before = self._newest
        self._newest = (number, record)
        if before is None:
            return
        for name, sink in self._world.sinks.items():
            if isinstance(sink, hf.CallbackSink) and isinstance(sink.fn, Recorder):
                carried = {group.number for group in record.groups.get(sink.name or "", ())}
                gone = {group.number for group in before[1].groups.get(sink.name or "", ())} - carried
                require(gone <= sink.fn.seen.keys(), f"record {number} drops unpublished groups {gone} of {name}")

    # --- settings -----------------------------------------------------------------------------------------------------

    def update(self, started: Started) -> None:
        """Change some settings of the running query."""
        assert started.query is not None
        started.updated, started.records_since_update = True, 0
        started.query.update(
            trigger=hf.every(self._rng.choice([0.2, 0.5, 1.0])),
            max_concurrent=self._rng.choice([1, 2, 3]),
            retained=self._rng.choice([1, 2, 4]),
        )
        started.records_since_update = 0

    def recorded(self, started: Started, number: int, record: CheckpointRecord) -> None:
        """Check a record that the query wrote: its settings are those in force, and it retains no more than these say.

        A failover changes nothing in that.
        """
        started.records_since_update += 1
        query = started.query
        if not started.updated:
            self._check_kept(number, record, started.life.retained)
        if query is None or started.records_since_update < RECORDS_UNTIL_NEW:
            return
        config = query._master.parts.updating.now
        require_equal(record.settings, in_words(config), f"settings in record {number}")
        pins = started.life.standby * started.life.standby_state
        rescales = self._world.rescales or self._world.notices
        pins += max(started.life.parallelism, SUBTASKS_MAX) * bool(rescales)  # those who gain subtasks follow, too
        retained = config.retained + self._taken[started] + pins
        require(len(record.retains) < retained, f"record {number} retains {record.retains}, retained={config.retained}")

    def _check_kept(self, number: int, record: CheckpointRecord, retained: int) -> None:
        """Require that a record keeps the newest of those that the record before it kept, of whichever start."""
        if self._before is None:
            return
        before, repeated = self._before[0], self._before[1].offsets == record.offsets
        there = [each for each in self._before[1].retains if names.journal(each) in self._world.store.objects]
        wanted = {*there[max(0, len(there) - (retained - 2)) :], before} if retained > 1 else set[int]()
        if repeated:
            wanted.discard(before)
        require(wanted <= set(record.retains), f"record {number} retains {record.retains}, not all of {wanted}")
