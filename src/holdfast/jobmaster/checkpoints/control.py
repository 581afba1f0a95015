"""The control loop: a thread feeds events to the coordinator and starts the commands that the coordinator returns.

    batch loop ─┐                         ┌─► records   (a thread: `recorder`)
    TaskManagers├─► queue ─► coordinator ─┼─► deletions (a thread: `disposer`)
    clock ──────┘     ▲                   ├─► publication (a thread for each sink), gathering (a thread: `gatherer`)
                      └─── outcomes ◄─────┴─► calls to TaskManagers (`checkpoint_calls`)

The rules are in `checkpoint/`, slow work goes to `side_threads`, and `promises` has the callers who wait. The loop
never waits for a batch, and no batch waits for the loop.
"""

import math
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Protocol

from holdfast import failpoints
from holdfast.availability import Refusal
from holdfast.checkpoint import events
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.demand import NotifyRefused
from holdfast.checkpoint.events import Command, Event, Position
from holdfast.checkpoint.gathering import Gather
from holdfast.checkpoint.holding import BaseMade, HandOn, HoldNewest, SavepointRequested
from holdfast.checkpoint.outstanding import Outstanding
from holdfast.checkpoint.updates import SettingValue
from holdfast.cleanup.disposer import Disposer
from holdfast.clock import Clock
from holdfast.errors import PublishFailed, StorageError
from holdfast.execution.failover import Failover
from holdfast.formats.history import CheckpointStats
from holdfast.ids import BatchNumber, Incarnation, JournalNumber, RunNumber
from holdfast.jobmaster.checkpoints.calls import CheckpointCalls
from holdfast.jobmaster.checkpoints.history import History
from holdfast.jobmaster.checkpoints.job_facts import JobFacts
from holdfast.jobmaster.checkpoints.job_time import JobTime
from holdfast.jobmaster.checkpoints.outages import CHECKPOINTS, Outages
from holdfast.jobmaster.checkpoints.promises import Promises, RestartCheckpoint
from holdfast.jobmaster.checkpoints.publisher import Publisher
from holdfast.jobmaster.checkpoints.recorder import Gatherer, Recorder
from holdfast.jobmaster.loops.rule_loop import RuleLoop
from holdfast.jobmaster.loops.side_threads import Side, SideThreads
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.journal.journal import Journal
from holdfast.journal.records import CheckpointRecord
from holdfast.observe.event_log import EventLog, ObservedRules
from holdfast.printable import logger
from holdfast.protocol.named import KnownNames
from holdfast.protocol.taskmanager import Acknowledgement, BaseOffer, Decline
from holdfast.settings import CheckpointConfig
from holdfast.storage.store import ObjectStore
from holdfast.uploads.hedged_store import COMMITTABLES, DriverUploads

log = logger(__name__)

TICK_S = 0.2
"""Bound in seconds on the delay of the coordinator's timers, except its trigger. A lower value costs more wake-ups."""
Requested = events.ConfigChanged | events.TriggerRequested | events.CloseRequested | SavepointRequested | HoldNewest


class Listener(Protocol):
    """Takes the reports of the control loop. All are called on the loop's thread and return at once."""

    def completed(self, stats: CheckpointStats, position: Position) -> None: ...

    def not_completed(self, stats: CheckpointStats) -> None: ...

    def failover(self, reason: str) -> None:
        """The coordinator wants a restart."""
        ...

    def planning(self, paused_by: frozenset[str]) -> None:
        """Plan no further batch while `paused_by` is not empty."""
        ...

    def died(self, dead: list[Incarnation], outstanding: Outstanding) -> None:
        """Look for objects of ended incarnations, which may have no owner any more."""
        ...

    def tick(self, now_s: float, outstanding: Callable[[], Outstanding]) -> None: ...


class Control:
    """The control loop. It begins with `open` and ends with `close`."""

    def __init__(
        self,
        coordinator: Coordinator,
        journal: Journal,
        store: ObjectStore,
        task_managers: TaskManagers,
        publishers: Mapping[str, Publisher],
        facts: JobFacts,
        clock: Clock,
        time: JobTime,
        failed: Callable[[Exception], None],
        outages: Outages,
        event_log: EventLog,
        uploads: DriverUploads,
    ) -> None:
        rules = ObservedRules[Event, Command]("checkpoints", coordinator, event_log)
        self._loop = RuleLoop("holdfast-control", rules, clock, TICK_S, failed)
        self._coordinator = coordinator
        self._task_managers = task_managers
        self._publishers = publishers
        self._clock = clock
        self._time = time
        self._failed = failed
        self._outages = outages
        self._names = KnownNames()
        self._promises = Promises()
        self._calls = CheckpointCalls(task_managers, clock, facts.epoch, self.post)
        self._paused: set[str] = set()
        self._offers: dict[int, tuple[Incarnation, int]] = {}
        """The incarnation and number of the last offer of a table, by TaskManager."""
        self.backlog: Mapping[str, int] = {}
        """Groups that each sink has not published yet, at the last tick; for display only."""
        self.refused_by: tuple[Refusal, ...] = ()
        """Refusals that make a checkpoint wait for a later batch boundary; empty if no checkpoint waits."""
        self._next_due_s: float | None = None
        """The time of the wall clock at which the trigger comes due, as the last event left it."""
        self._closing = threading.Event()
        self._facts = facts
        self._finishing = [sink for sink, publisher in publishers.items() if publisher.awaited_us is not None]
        layouts = {sink: publisher.layout for sink, publisher in publishers.items()}
        self.history = History(store, facts.epoch, clock, facts.job_id)
        self._recorder = Recorder(
            journal, store, facts, layouts, self.post, failed, self._closing, outages, clock, uploads
        )
        self._disposer = Disposer(store, publishers, self.post)
        self._gatherer = Gatherer(uploads.store(COMMITTABLES), facts.job_id, facts.epoch, self.post)
        self._sides = SideThreads(self._loop.guarded)

    # --- from other threads -------------------------------------------------------------------------------------------

    def open(
        self,
        base: events.BaseRecord | None,
        records: Mapping[JournalNumber, CheckpointRecord],
        listener: Listener,
    ) -> None:
        """Start the loop after the storage was taken over. `records`: the base and the records retained beside it."""
        self._listener = listener
        for number, record in records.items():
            self._recorder.found(number, record)
        newest = None if base is None else records.get(base.number)
        self._sides.submit(Side.DELETIONS, self.history.load, () if newest is None else newest.losses)
        self._loop.start(self._execute, self._handle, self._tick, self._due_in_s)
        self.post(events.CoordinatorStarted(self._clock.monotonic(), self._clock.now(), base, self._time.now()))

    def post(self, event: Event) -> None:
        self._loop.post(event)

    def request_checkpoint(self) -> "Future[JournalNumber | None]":
        """Request a checkpoint of everything committed so far; the future fails with `CheckpointFailed`."""
        return self._request(events.TriggerRequested(uuid.uuid4().hex))

    def request_close(self) -> "Future[JournalNumber | None]":
        """Request a last record before the job ends, if such a record keeps output from being published again. The
        future fails with `CheckpointFailed`."""
        return self._request(events.CloseRequested(uuid.uuid4().hex))

    def change_settings(
        self, config: CheckpointConfig, kept: Mapping[str, SettingValue]
    ) -> "Future[JournalNumber | None]":
        """Use other settings from now on. The future is resolved once the newest record, if there is one, has the
        `kept` settings."""
        return self._request(events.ConfigChanged(config, kept, uuid.uuid4().hex))

    def request_savepoint(self) -> "Future[JournalNumber | None]":
        """Request a checkpoint as `request_checkpoint` does, to copy it."""
        return self._request(SavepointRequested(uuid.uuid4().hex))

    def hold_newest(self) -> "Future[JournalNumber | None]":
        """Keep the newest record until `let_go`; the future has its number."""
        return self._request(HoldNewest(uuid.uuid4().hex))

    def record(self, number: JournalNumber | None) -> CheckpointRecord | None:
        """Return a record that is in the journal; None for None."""
        return self._recorder.record(number)

    def pause_planning(self, who: str) -> "Future[None]":
        """Plan no further batch until `resume_planning`, or the query ends.

        Each call has another `who`. The promise is kept once no batch is under way; it fails with `CheckpointFailed`.
        """
        promise = self._promises.standstill(who)
        self._loop.call(partial(self._pause, who, self._paused.add))
        if self._closing.is_set():
            self._promises.fail_all()
        return promise

    def resume_planning(self, who: str) -> None:
        """Plan batches again, unless another caller still pauses planning."""
        self._loop.call(partial(self._pause, who, self._paused.discard))

    def stands_still(self, paused_by: frozenset[str]) -> None:
        """Note that planning is paused and no batch is under way. All earlier commits were noted before."""
        if paused_by:
            self._loop.call(partial(self._promises.stands_still, paused_by))

    def _pause(self, who: str, note: Callable[[str], None]) -> None:
        note(who)
        self._listener.planning(frozenset(self._paused))

    def _request(self, event: Requested) -> "Future[JournalNumber | None]":
        promise = self._promises.checkpoint(event.request_id)
        self.post(event)
        if self._closing.is_set():
            self._promises.fail_all()
        return promise

    def committed(self, event: events.CommitAcknowledged) -> None:
        """Note a committed batch, and ask the sinks too if a cut may be taken after it."""
        answers = [publisher.refusal() for publisher in self._publishers.values()]
        refusals = [answer for answer in answers if answer is not None]
        times = {sink: self._facts.watermark_us(sink, event.position) for sink in self._finishing}
        finishing = {sink: time_us for sink, time_us in times.items() if time_us is not None}
        position = replace(event.position, finishing=finishing) if finishing else event.position
        self.post(replace(event, position=position, refusals=(*event.refusals, *refusals)))

    def begin_commit(self) -> "Future[None]":
        """Return a promise that is kept when the ordered cuts are done on the TaskManagers; the next cut comes after
        the commit.

        Only without a changelog.
        """
        promise: Future[None] = Future()

        def begin() -> None:
            self._handle(events.CommitBegan())
            self._calls.cuts_done(promise)

        self._loop.call(begin)
        return promise

    def begin_failover(self, failover: Failover) -> "Future[RestartCheckpoint]":
        """Resolve pending checkpoints and choose the newest record as the base."""
        promise: Future[RestartCheckpoint] = Future()

        def begin() -> None:
            self._promises.await_base(promise)
            self._handle(events.FailoverBegan(str(failover), failover.goes_on))

        self._loop.call(begin)
        return promise

    def left_out(self, reason: str, missing: frozenset[int]) -> None:
        """Note that batches go on without these TaskManagers."""
        self.post(events.TaskManagersMissing(reason, missing))

    def check_not_fenced(self) -> None:
        """Check before a restore that no other JobMaster took over, since the base's objects may be gone then. Raises
        `Fenced`."""
        self._sides.ask(Side.RECORDS, self._recorder.check_not_fenced).result()

    def deployed(self, run: RunNumber, live: Mapping[int, Incarnation], moved: bool = False) -> None:
        """Note that everything is deployed under `run`, and look for objects of dead incarnations that have no
        owner."""
        self._calls.run = run

        def note() -> None:
            self._handle(events.TaskManagersChanged(run, dict(live), moved))
            self._look_at_dead()

        self._loop.call(note)

    def run_changed(self, run: RunNumber) -> None:
        """Note that TaskManagers accept calls of that run from now on. Checkpoints are not affected."""
        self._calls.run = run

    def drop_staged(self, sink: str, committables: list[bytes]) -> None:
        """Delete staged files of a batch that was not committed."""
        self._sides.submit(Side.DELETIONS, self._disposer.drop_staged, sink, committables)

    def await_publication(self) -> "Future[None]":
        """Return a promise that every recorded group is published; it fails with `CheckpointFailed`."""
        promise = self._promises.publication()
        self._loop.call(self._note_published)
        if self._closing.is_set():
            self._promises.fail_all()
        return promise

    def published(self) -> bool:
        """True if every recorded group is published."""
        return self._loop.is_idle and not any(self._coordinator.backlog.values())

    def upload_metrics(self) -> dict[str, float]:
        """Counters and histograms of the objects that checkpoints stored from here, by the names of
        `holdfast.metrics`."""
        return self._recorder.upload_metrics()

    @property
    def newest_record(self) -> CheckpointRecord | None:
        """Newest checkpoint known to be recorded, by this start or before it."""
        return self._recorder.newest

    @property
    def newest_number(self) -> JournalNumber | None:
        """Number of the newest checkpoint's record; None: there is none."""
        return self._recorder.newest_number

    @property
    def checkpoint_under_way(self) -> bool:
        """True while a cut checkpoint has not ended."""
        return self._calls.under_way

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        """Take an acknowledgement from a TaskManager; returns once the fact is queued. False: the TaskManager must send
        it again in full."""
        failpoints.hit("jobmaster.acknowledged")
        objects = self._names.of(acknowledgement)
        if objects is None:
            return False
        ack = acknowledgement

        def note() -> None:
            self._calls.acknowledged(ack)
            self._handle(
                events.Acknowledged(
                    checkpoint_id=ack.checkpoint_id,
                    task_manager=ack.task_manager,
                    incarnation=ack.incarnation,
                    batch=BatchNumber(ack.batch),
                    manifest=ack.manifest,
                    objects=objects,
                    held=frozenset(ack.held),
                    sequence=ack.sequence,
                    informed=ack.informed,
                )
            )

        self._loop.call(note)
        return True

    def offered(self, offer: BaseOffer, task_manager: int | None) -> None:
        """Take a table that a follower has stored, for a TaskManager; its follower may have been lost since."""
        reused = frozenset(offer.reused)
        made = frozenset(part.object for part in offer.base.parts) - reused

        def note() -> None:
            process, offered = offer.process, (offer.process.incarnation, offer.number)
            is_new = offered > self._offers.get(process.number, (Incarnation(0), 0))
            if is_new and self._task_managers.heartbeat(process):
                self._offers[process.number] = offered
                self._handle(BaseMade(task_manager, made, reused, offer.base))

        self._loop.call(note)

    def decline(self, decline: Decline) -> bool:
        self.post(
            events.Declined(
                decline.checkpoint_id,
                decline.task_manager,
                decline.incarnation,
                decline.reason,
                decline.soft,
                decline.outage,
            )
        )
        return True

    def close(self) -> None:
        """Stop feeding events. Work of other threads ends by itself or is abandoned."""
        self._closing.set()
        self._sides.stop()
        has_ended = self._loop.close()
        self._sides.close()
        if self._loop.has_begun:
            self.history.save(ended=has_ended and self._recorder.is_at_rest)
        for publisher in self._publishers.values():
            publisher.close()
        self._calls.close()
        self._recorder.close()
        self._promises.fail_all()

    # --- on the control thread ----------------------------------------------------------------------------------------

    def _due_in_s(self) -> float:
        """Time until the trigger comes due by the wall clock."""
        return math.inf if self._next_due_s is None else self._next_due_s - self._clock.now()

    def _tick(self, now_s: float) -> None:
        self._task_managers.check_heartbeats()
        self._calls.report_slow()
        self._look_at_dead()
        self._handle(events.CoordinatorTick(now_s, self._clock.now(), self._time.now()))
        self._listener.tick(now_s, self._coordinator.outstanding)
        self.backlog = dict(self._coordinator.backlog)
        if self._recorder.look_is_due():
            self._sides.submit(Side.RECORDS, self._recorder.look)
        if self.history.is_due():
            self._sides.submit(Side.DELETIONS, self.history.save)

    def _look_at_dead(self) -> None:
        """Look for objects of ended incarnations that the coordinator does not count on any more."""
        dead = self._task_managers.take_dead(self._coordinator.live)
        if dead:
            self._listener.died(dead, self._coordinator.outstanding())

    def _handle(self, event: Event) -> None:
        self._note_outage(event)
        self._loop.handle(event)
        self.refused_by = self._coordinator.refused_by
        self._next_due_s = self._coordinator.next_due_s(self._clock.now())
        self._note_published()

    def _note_published(self) -> None:
        """Keep promises of publication, once no sink has anything left to publish."""
        if self._promises.publication_is_awaited and not any(self._coordinator.backlog.values()):
            self._promises.published()

    def _note_outage(self, fact: Event | Command, began_s: float | None = None) -> None:
        """Note outages of the steps that the coordinator repeats by its own rules; other steps note their outages
        themselves. `began_s`: the beginning of a checkpoint."""
        try:
            match fact:
                case events.PublicationFailed(io=True):
                    self._outages.failed(f"publication to sink {fact.sink!r}", fact.reason)
                case events.Published():
                    self._outages.answered(f"publication to sink {fact.sink!r}")
                case events.NotifyAborted(counted=True, outage=True):
                    self._outages.failed(CHECKPOINTS, fact.reason, began_s)
                case events.NotifyCompleted():
                    self._outages.answered(CHECKPOINTS)
        except StorageError as error:
            self._failed(error)

    def _execute(self, command: Command) -> None:
        match command:
            case events.Cut():
                self._calls.cut(command)
            case StoreAhead():
                self._sides.submit(Side.RECORDS, self._recorder.store_ahead, command, self._calls.parts(command))
            case events.StoreAndRecord():
                parts = self._calls.take_parts(command)
                self._sides.submit(Side.RECORDS, self._recorder.store_and_record, command, parts)
            case events.RecordAgain():
                self._sides.submit(Side.RECORDS, self._recorder.record_again, command)
            case events.NotifyCompleted():
                self._note_outage(command)
                self._notify_completed(command)
            case events.NotifyAborted():
                log.warning("checkpoint %d aborted: %s", command.checkpoint_id, command.reason)
                self._sides.submit(Side.RECORDS, self._recorder.drop_ahead, command.checkpoint_id)
                stats = self._calls.aborted(command)
                self._not_completed(stats)
                self._note_outage(command, self._clock.monotonic() - stats.duration_s)
            case NotifyRefused():
                say = log.warning if command.counted else log.info
                say("checkpoint %d is put off: %s", command.checkpoint_id, command.reason)
                self._not_completed(self._calls.refused(command))
            case events.CheckOwnership():
                self._sides.submit(Side.RECORDS, self._recorder.check_ownership)
            case events.ExpireRecords():
                self._sides.submit(Side.RECORDS, self._recorder.expire, command)
            case events.Publish():
                self._publishers[command.sink].publish(command, self.post)
            case events.Discard():
                self._sides.submit(Side.DELETIONS, self._disposer.discard, command)
            case events.DropStaged():
                self._sides.submit(Side.DELETIONS, self._disposer.drop_staged, command.sink, command.committables)
            case events.DeleteObjects():
                self._sides.submit(Side.DELETIONS, self._disposer.delete, command)
            case events.Resolve():
                self._promises.resolve(command)
            case events.AskFailover():
                self._listener.failover(command.reason)
            case events.RestoreFrom():
                base = RestartCheckpoint(command.number, self._recorder.record(command.number))
                self._promises.base_chosen(base)
            case events.FailQuery():
                error = PublishFailed(f"sink {command.sink!r} refuses group {command.number}: {command.reason}")
                self._sides.submit(Side.RECORDS, self._recorder.fail_query, error)
            case HandOn():
                self._calls.hand_on(command.task_manager, command.base)
            case Gather():
                self._sides.submit(Side.GATHERING, self._gatherer.gather, command)
            case events.PausePlanning():
                self._paused.add(command.sink)
                self._listener.planning(frozenset(self._paused))
            case events.ResumePlanning():
                self._paused.discard(command.sink)
                self._listener.planning(frozenset(self._paused))

    def _not_completed(self, stats: CheckpointStats) -> None:
        self.history.add(stats)
        self._listener.not_completed(stats)

    def _notify_completed(self, command: events.NotifyCompleted) -> None:
        failpoints.hit("jobmaster.completed")
        stats = self._calls.completed(command)
        self.history.add(stats)
        self._listener.completed(stats, command.position)
