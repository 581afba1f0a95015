"""A simulated job: the real JobMaster, TaskManagers, changelog, journal and sinks in processes that are not real, on a
store and a network that misbehave, through lives that end badly. A seed fixes all of it, to the order of every step.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from uuid import uuid4

import simulation_oracle as oracle
from simulation_broadcast import check_rules, write_ruled
from simulation_cluster import Network, SimulatedCluster
from simulation_disturbances import hit
from simulation_ends import FedSource, Feed, Marks, Recorder, SimulatedClock, declared, write_marks
from simulation_going_back import Carrying, collect_garbage
from simulation_invariants import Broken, DeclaredLosses, PassingTime, require, require_equal, validated
from simulation_joins import check_kept, write_joined
from simulation_kit import KEYED, LEVELLED, MAX_PARALLELISM, by_level, keyed
from simulation_lists import ListChecks, write_lists
from simulation_logs import logged_errors
from simulation_places import simulated_places
from simulation_runtime import Process, Runtime, Stalled
from simulation_settings import Event, Life, Outage, Settings
from simulation_store import URL, SimulatedStore, Weather, opened
from simulation_threads import running
from simulation_windows import TimedSource, check_panes, write_windows

import holdfast as hf
from holdfast import errors, failpoints
from holdfast.changelog_config import RetryPolicy
from holdfast.graph.build import build_program
from holdfast.graph.program import Program
from holdfast.jobmaster.batches.rescales import Rescale
from holdfast.journal.codec import decode_record
from holdfast.journal.fence import take_over
from holdfast.journal.records import CheckpointRecord
from holdfast.observe.event_log import ObservedRules
from holdfast.query import Query
from holdfast.settings import QueryTrigger
from holdfast.sinks.base import Sink
from holdfast.storage import names
from holdfast.storage.retrying import RetryingStore
from holdfast.testing.run import start_on

Condition = Callable[[], object]
LIFE_S_MAX = 3_000.0
STATE_CHECKED_EVERY = 4
"""Number of records for each whose state is restored and compared: that takes longer than all else."""


def checkpoints_of(life: Life) -> hf.CheckpointConfig:
    return hf.CheckpointConfig(
        trigger=hf.every(life.checkpoint_every_s),
        timeout=life.checkpoint_timeout_s,
        max_concurrent=life.max_concurrent,
        tolerable_failed_checkpoints=2,
        retained=life.retained,
        outage_timeout=life.outage_timeout_s,
        changelog=hf.ChangelogConfig(
            log_handles_max=life.pieces_max,
            materialization_interval=life.materialization_interval_s,
            object_size_max=life.object_bytes_max,
            adjust_object_size=life.adjusts_object_size,
            preemptive_persist_threshold=life.preempt_bytes_max,
            retries=RetryPolicy.fixed(life.upload_attempts_max, life.upload_timeout_s, "100ms"),
            gathered_size_max=life.gathered_bytes,
            enabled=life.changelog,
            materialized_by="follower" if life.has_remote_apply else "owner",
        ),
    )


class Started:
    """A start of the job: its process, how it ended, and the events drawn for it."""

    def __init__(self, life: Life, process: Process) -> None:
        self.life = life
        self.process = process
        self.query: Query | None = None
        self.cluster: SimulatedCluster | None = None
        self.fate: str | None = None
        self.over = False
        self.idle = False
        self.unwanted = False
        self.error: Exception | None = None
        self.events = list(life.events)
        self.hits = 0
        self.hits_at: dict[str, int] = {}
        self.to_fail = self.to_hang = self.to_die = 0
        """Number of coming steps that are to fail, to hang, or to be the end of their process."""
        self.disturbed = bool(life.events)
        self.outages: list[Outage] = []
        self.goes_back = False
        self.records_since_update = 0
        self.updated = False

    def due(self, name: str) -> list[Event]:
        self.hits += 1
        self.hits_at[name] = self.hits_at.get(name, 0) + 1
        due = [
            each for each in self.events if (self.hits if each.at is None else self.hits_at.get(each.at)) == each.hit
        ]
        due = [each for each in due if each.at in (None, name)]
        if due:
            self.events = [each for each in self.events if each not in due]
        return due


class World:
    """A seed's processes, store and sinks, over all lives of its job. `simulating` makes one."""

    def __init__(self, settings: Settings, runtime: Runtime, local_dir: str) -> None:
        self.local_dir = local_dir
        around = settings.around
        self.settings = settings
        self.runtime = runtime
        self.store = SimulatedStore(runtime, settings.seed, self)
        self.network = Network(runtime, random.Random(settings.seed + 1))
        self.rng = random.Random(settings.seed + 2)
        self.feed = Feed(runtime, settings.rows, settings.rows_over_s, settings.refusals)
        self.other_feed = Feed(runtime, settings.rows // 2, settings.rows_over_s / 3)
        self.sinks = {name: self._sink(name, kind) for name, kind in settings.sinks.items()}
        self.program = self._program()
        self.struck = set[str]()
        self.starts, self.rescales = list[Started](), list[Rescale]()
        self.notices = self.records = self.restored = 0
        self._newest, self._retained = 0, frozenset[int]()
        self._takeovers: list[int] = []
        self._needed: dict[int, set[str]] = {}
        """Names that each record in the journal needs, by its number."""
        self.observer = runtime.process("observer")
        self.carrying = Carrying(self)
        self.lists, self.passing, self.declared = ListChecks(), PassingTime(), DeclaredLosses()
        self._is_stormy = False
        self._stormy = Weather(around.faults, around.delay_s, around.slow, around.late_s)

    def _sink(self, name: str, kind: str) -> Sink:
        settings = self.settings
        if kind == "memory":
            return hf.MemorySink(name=f"{name}-out")
        if kind == "parquet":
            return hf.ParquetSink(f"memory://{uuid4().hex}", name=f"{name}-out")
        return hf.CallbackSink(
            Recorder(self.runtime, self.rng, settings.callback_errors, settings.callback_s), name=f"{name}-out"
        )

    def _program(self) -> Program:
        job = self.job(self.settings.lives[-1])
        return build_program(job.declared, lambda fn, schema: schema, None)

    def job(self, life: Life, **more: Any) -> hf.Job:
        settings = self.settings
        job = hf.Job(
            None,
            name="simulated",
            storage=URL,
            changelog_storage=life.logs_at,
            shared_storages=life.tables_at,
            parallelism=life.parallelism,
            max_parallelism=MAX_PARALLELISM,
            task_managers=life.task_managers,
            standby_task_managers=life.standby,
            standby_state=life.standby > 0 and life.standby_state,
            on_loss=life.on_loss,
            max_rows_per_batch=life.rows_per_batch,
            max_event_time_skew=settings.skew_s,
            state=hf.HashMapState() if life.cache_entries is None else hf.RocksDBState(life.cache_entries),
            failover=_failover(life),
            task_manager=hf.TaskManagerConfig(
                local_dir=self.local_dir,
                local_recovery=life.local_recovery,
                heartbeat_timeout=life.heartbeat_timeout_s,
            ),
            checkpoint=checkpoints_of(life),
            **more,
        )
        source = TimedSource if settings.windowed or settings.joined else FedSource
        numbers = job.read(source(splits=settings.splits, name="numbers", feed=self.feed))
        with_keys = numbers.map_batches(partial(keyed, settings.keys), KEYED)
        emit: Any = "every" if settings.chained else settings.emit
        counts = with_keys.key_by("k").aggregate(emit=emit, name="counts", n=hf.count())
        counts.write(declared(self.sinks["counts"], "k" if life.partitioned else None))
        if settings.chained:
            levelled = counts.map_batches(by_level, LEVELLED).key_by("level")
            levelled.aggregate(emit=settings.emit, name="levels", n=hf.count()).write(  # type: ignore[arg-type]
                declared(self.sinks["levels"], "level" if life.partitioned else None)
            )
        self._write_timed(job, numbers)
        if settings.marked:
            write_marks(with_keys, settings.refusals)
        if settings.listed:
            write_lists(with_keys)
        if settings.ruled:
            write_ruled(with_keys, numbers, settings.splits, declared(self.sinks["ruled"], None))
        if settings.passed_through:
            numbers.write(self.sinks["raw"])
        return job

    def _write_timed(self, job: hf.Job, numbers: hf.Stream) -> None:
        """The operators on event time that the settings have."""
        settings = self.settings
        sinks = {name: declared(self.sinks[name], None) for name in ("windows", "late", "joined")}
        if settings.windowed:
            write_windows(numbers, settings.windowed, settings.keys, sinks["windows"], sinks["late"])
        if settings.joined:
            others = None
            if settings.apart:
                others = job.read(TimedSource(splits=settings.splits, name="others", feed=self.other_feed, odd=True))
            write_joined(numbers, others, settings.joined, settings.keys, sinks["joined"])

    # --- lives --------------------------------------------------------------------------------------------------------

    def storm(self) -> None:
        around = self.settings.around
        self._is_stormy = True
        self.store.weather = self._stormy
        self.network.delay_s = around.network_delay_s
        self.network.lost, self.network.doubled = around.lost, around.doubled

    def calm(self) -> None:
        """End all faults; late requests arrive in their time."""
        weather = self._stormy
        self._is_stormy = False
        self.store.weather = Weather(0.0, weather.delay_s, 0.0, weather.late_s)
        self.store.outages = ()
        self.network.lost = self.network.doubled = 0.0
        self.feed.refusals = 0
        for started in self.starts:
            started.events, started.to_fail, started.to_hang, started.to_die = [], 0, 0, 0
        for sink in self.sinks.values():
            if isinstance(sink, hf.CallbackSink) and isinstance(sink.fn, Recorder):
                sink.fn.errors_ratio = 0.0

    def start(self, life: Life) -> Started:
        """Begin a life. Outages of the life before are over: its store was repaired in between."""
        trigger = hf.available_now() if life.to_end else hf.processing_time(life.batch_every_s)
        process = self.runtime.process(f"jm{len(self.starts) + 1}")
        started = Started(life, process)
        self.starts.append(started)
        for each in self.starts:
            each.outages += life.outages  # an earlier start that still lives meets them, too
        now_s = self.runtime.now_s
        self.store.outages = tuple(replace(each, after_s=now_s + each.after_s) for each in life.outages)
        for outage in self.store.outages:
            self.runtime.later(outage.after_s + outage.for_s - now_s, partial(self._outage_ends, started, outage))
        process.on_death.append(lambda: setattr(started, "over", True))
        self.runtime.spawn(partial(self._main, started, trigger), "main", process)
        return started

    def _main(self, started: Started, trigger: QueryTrigger) -> None:
        clock = SimulatedClock(self.runtime, self.rng, self.settings.around.clock_jumps)
        back = self.carrying.start_from(started.life)
        started.goes_back = bool(back)
        job = self.job(started.life, **back)

        def cluster(program: Program, store: Any, place: Any, gateway: Any) -> SimulatedCluster:
            started.cluster = SimulatedCluster(
                self.network,
                program,
                store,
                place,
                gateway,
                clock,
                job.task_manager,
                started.process,
                started.life,
            )
            return started.cluster

        try:
            started.query = start_on(job, trigger, opened(self.store, self.settings), clock, cluster)
            if started.unwanted:
                started.query.stop()
            if started.life.saves_at_start:
                self.runtime.spawn(partial(self.carrying.take_savepoint, started), "savepoint", started.process)
            if not started.life.to_end:
                self.runtime.sleep(self.settings.rows_over_s - self.runtime.now_s)
                started.query.processAllAvailable()
                started.idle = True
            started.query.awaitTermination()
        except errors.HoldfastError as error:
            started.error = error if started.query is None else started.query._master.error
            self.runtime.note("ended", f"{type(error).__name__}: {error}")
            self.judge(started)
        else:
            self.runtime.note("ended")
        started.over = True
        self.runtime.sleep(self.rng.uniform(0.0, 1.0))
        started.process.kill()

    def _outage_ends(self, started: Started, outage: Outage) -> None:
        """Nothing waited for much longer than it may. A restore may wait after a batch did, each as long as it may.

        While TaskManagers die again and again no checkpoint is tried, so a failed checkpoint may wait for longer.
        """
        if outage in self.store.outages and started.query is not None and not (started.over or started.life.has_storm):
            waited_s, limit_s = started.query._master.parts.outages.waited_s, 3 * started.life.outage_timeout_s
            require(waited_s < limit_s, f"a query waited for its store for {waited_s:.0f} s")

    def run_until(self, condition: Condition, what: str | Callable[[], str], limit_s: float = LIFE_S_MAX) -> None:
        try:
            self.runtime.run(condition, limit_s, "it")
        except Stalled as stalled:
            raise Stalled(f"waited in vain for {what if isinstance(what, str) else what()}; {stalled}") from None

    def part(self, started: Started) -> None:
        """An orderly end."""
        assert started.query is not None
        self.runtime.spawn(started.query.stop, "stop", started.process)
        self.run_until(lambda: not started.process.alive, "an orderly end")

    def settle(self, started: Started) -> bool:
        """All is calm, JobMasters of before have ended, and late events have arrived.

        False if this JobMaster is not the last: somebody had still to take over.
        """
        self.calm()
        others = [each for each in self.starts if each is not started]
        for each in others:
            self._dismiss(each)
        late = set(self.store.under_way)
        self.run_until(lambda: not any(each.process.alive for each in others), "the end of earlier JobMasters")
        self.run_until(lambda: not late & self.store.under_way, "late requests")
        return not started.over and not self.replaced(started)

    def _dismiss(self, started: Started) -> None:
        """End a start in an orderly way, as soon as it can."""
        started.unwanted = True
        started.process.resume()
        if started.process.alive and started.query is not None:
            self.runtime.spawn(started.query.stop, "stop", started.process)

    def finish(self, started: Started) -> None:
        """An orderly end, once everything there is was processed and published."""
        query = started.query
        assert query is not None

        def end() -> None:
            query.processAllAvailable()
            query.stop()

        self.runtime.spawn(end, "finish", started.process)
        self.run_until(lambda: not started.process.alive, "an orderly end")

    def bury(self) -> None:
        """Let everything late arrive."""
        self.run_until(lambda: not self.store.under_way, "late requests")

    def sweep(self) -> None:
        """Take over once more, and clean up after all epochs."""

        def clean() -> None:
            store = RetryingStore(opened(self.store, self.settings))
            take_over(store)
            collect_garbage(store)

        self.complete(clean, self.runtime.process("cleaner"))

    def complete(self, call: Callable[[], None], process: Process) -> None:
        """Run it to its end, in a process."""
        fiber = self.runtime.spawn(call, "call", process)
        self.run_until(lambda: fiber.done, "the end of a call")

    def judge(self, started: Started) -> None:
        """Check that a start ended with an error that its faults explain, or without an error."""
        if started.error is None:
            return
        error, around = started.error, self.settings.around
        passing: tuple[type[Exception], ...] = ()
        if self._is_stormy and (around.faults or around.lost or started.disturbed):
            lost = (errors.TaskManagerLost, errors.SenderLost, errors.RestartsExhausted)
            passing = (errors.CheckpointFailed, *lost)
        if self._is_stormy and around.slow and started.life.uploads_outlast_checkpoints(around):
            passing = (*passing, errors.RestartsExhausted)
        if self._is_stormy and (started.query is None or started.life.is_outlasted_by(started.outages)):
            passing = (*passing, errors.StorageError)
        if "publication to sink" in str(error) and (around.faults or self.settings.callback_errors):
            passing = (*passing, errors.StorageError)  # an attempt in a few seconds, and each may fail by chance
        if "a checkpoint has failed" in str(error) and around.faults and started.life.upload_attempts_max == 1:
            passing = (*passing, errors.StorageError)  # each of a checkpoint's many small objects may fail by chance
        if "a checkpoint has failed" in str(error) and started.life.is_outlasted_untried(started.outages):
            passing = (*passing, errors.StorageError)  # a restart may leave no time for a checkpoint
        if started.goes_back:
            passing = (*passing, errors.JobRefused)  # an earlier JobMaster that still lives may let go of it meanwhile
        if self.replaced(started):
            passing = (*passing, errors.StorageError, errors.Fenced, errors.PublishFailed, errors.TaskManagerLost)
        text = f"{type(error).__name__}: {error}"
        unexpected = not isinstance(error, passing) and "TaskManagers keep ending" not in text
        require(not unexpected, f"{started.process.name} ended with {text}")

    def replaced(self, started: Started) -> bool:
        """True if a later takeover is in the journal."""
        epoch = 0 if started.cluster is None else started.cluster.place.epoch
        return any(other > epoch for other in self._takeovers)

    # --- invariants of every moment -----------------------------------------------------------------------------------

    def created(self, name: str, data: bytes) -> None:
        """An object appeared: a record must find all that it names."""
        parsed = names.parse(name)
        if not isinstance(parsed, names.JournalName) or parsed.number <= self._newest:
            return
        record = decode_record(name, data)
        if not isinstance(record, CheckpointRecord):
            self._takeovers.append(record.epoch)
            # Its JobMaster knows of its base and of those that this retains; the others are for the clean-up.
            known = {self._newest, *self._retained}
            self._needed = {number: each for number, each in self._needed.items() if number in known}
        else:
            self._recorded(parsed.number, record)

    def _recorded(self, number: int, record: CheckpointRecord) -> None:
        self.passing.recorded(number, record)
        frozen = self.store.frozen()
        self._newest, self._retained = number, frozenset(record.retains)
        self.carrying.followed(number, record)
        self.declared.recorded(record)
        self.lists.recorded(record.offsets["numbers"])
        for started in self.starts:
            if started.cluster is not None and started.cluster.place.epoch == record.epoch:
                self.carrying.recorded(started, number, record)
        try:
            self._needed[number] = oracle.needed_by(frozen, record)
            require(self.feed.may_be_cut(record.offsets["numbers"]), f"record {number}: its cut was refused")
        except errors.StorageError as error:
            raise Broken(f"record {number} was written, but needs what is not there: {error}") from error
        self.records += 1
        if self.records % STATE_CHECKED_EVERY == self.settings.seed % STATE_CHECKED_EVERY:
            self.runtime.spawn(partial(self.check_state, frozen, record), "check", self.observer)

    def deleting(self, name: str) -> None:
        """An object goes: no record may need it. Records go before the objects that they name, and never the newest."""
        parsed = names.parse(name)
        if isinstance(parsed, names.JournalName):
            require(parsed.number != self._newest, f"{name}, the newest checkpoint, is deleted")
            self._needed.pop(parsed.number, None)
        for number, needed in self._needed.items():
            require(name not in needed, f"{name} is deleted, but record {number} needs it")

    def check_state(self, store: Any, record: CheckpointRecord) -> None:
        """Check that a restart would restore the state that the input gives."""
        self.restored += 1
        counts = oracle.counts(record.offsets["numbers"], self.settings.keys)
        found = oracle.restored(store, record, self.program, "counts", "k", "n.count")
        if self.settings.ruled:
            check_rules(store, record, self.program)
        if self.settings.lives[-1].on_loss == "drop":
            lost = self.declared.rows(record)
            require_equal(sum(found.values()) + lost, counts.total(), "rows counted and rows declared as lost")
            return
        require_equal(found, dict(counts), f"state at batch {record.batch}")
        if self.settings.chained:
            found = oracle.restored(store, record, self.program, "levels", "level", "n.count")
            require_equal(found, dict(oracle.levels(counts)), f"state of levels at batch {record.batch}")
        if self.settings.windowed:
            check_panes(store, record, self.program, self.settings.windowed, self.settings.keys)
        if self.settings.joined:
            check_kept(store, record, self.program, self.settings.joined, self.settings.keys)
        if self.settings.marked:
            oracle.check_marks(store, record, self.program, self.settings.keys, Marks.BUCKETS)
        if self.settings.listed:
            self.lists.check(store, record, self.program)


def _failover(life: Life) -> hf.FailoverConfig:
    limit_s = life.call_timeout_s
    return hf.FailoverConfig(
        restarts_max=life.restarts_max,
        losses_max=life.losses_max,
        deploy_timeout=limit_s,
        process_timeout=limit_s,
        commit_timeout=limit_s,
        cut_timeout=limit_s,
    )


@contextmanager
def simulating(settings: Settings, kind: type[World] = World) -> Iterator[World]:
    """A world that is simulated; whatever was left running in it is gone at the end."""
    runtime = Runtime(settings.seed, settings.around.preemption)
    with ExitStack() as stack:
        stack.enter_context(simulated_places())
        for bound, value in settings.bounds.items():
            stack.enter_context(mock.patch(bound, value))
        stack.enter_context(mock.patch.object(ObservedRules, "handle", validated(ObservedRules.handle)))
        stack.enter_context(logged_errors(runtime))
        folder = stack.enter_context(TemporaryDirectory(prefix="holdfast-simulated-"))
        # Databases of processes that still live are closed with the runtime, before their folder goes.
        stack.enter_context(running(runtime, settings.seed))
        world = kind(settings, runtime, folder)
        stack.enter_context(mock.patch("holdfast.storage.copying.open_store", world.carrying.open_target))
        failpoints.listen(partial(hit, world))
        stack.callback(failpoints.listen, None)
        yield world
