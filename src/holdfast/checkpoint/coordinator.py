"""The CheckpointCoordinator decides when to cut, when a checkpoint is complete, and which commands follow.

Pure: `handle(event) -> list[Command]` is the only mutator; no I/O, clock or thread. `events.py` lists events and
commands, and fixes the order of an answer's commands.

    DEPLOYING ──TaskManagersChanged──► RUNNING ──FailoverBegan──► FAILING ──no record unanswered, RestoreFrom──┐
        ▲                              │     ▲                     ▲   ▲                                       │
        │         TaskManagersMissing  ▼     │ TaskManagersChanged │   │                                       │
        │                      INCOMPLETE ───│──FailoverBegan──────┘   │ FailoverBegan                         │
        │      FailoverBegan, goes on  └► JOINING ─────────────────────┘                                       │
        └──────────────────────────────────────────────────────────────────────────────────────────────────────┘

INCOMPLETE: a TaskManager is missing, and batches go on without it (`on_loss="drop"`). Checkpoints name its part of the
newest record again, if there is one (`missing.py`). JOINING: a replacement restores the newest record; nothing is cut.

Invariants
- A cut is at the last committed batch, and never waits for a running batch. No cut is taken without progress, between
  `CommitBegan` and its answer, or while somebody refuses (`demand.py`).
- The record completes the checkpoint. A checkpoint whose record was sent neither expires nor is aborted. While the
  record is unanswered, nothing is deleted and no further record is written.
- Committables go into the first record whose cut is at or past their batch. They are a new group in exactly that
  record.
- An object is never deleted while a record, a pending checkpoint, an undiscarded group or a live log names it.

Reading order: `coordination.py` (what all rules share, aborts), `recording.py` (records), `cutting.py` (cuts), then
this module (events, failover, the order of an answer's commands), which has an object of each.

Does not own: bytes, processes, batches, the journal's numbers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.availability import Refusal
from holdfast.checkpoint import events as ev
from holdfast.checkpoint.coordination import Coordination, CoordinatorPhase
from holdfast.checkpoint.cutting import Cutting
from holdfast.checkpoint.found import take_in
from holdfast.checkpoint.gathering import Gathered, GatherFailed
from holdfast.checkpoint.holding import BaseMade, HandOn, HoldNewest, LetGo, SavepointRequested
from holdfast.checkpoint.outcomes import Outcome
from holdfast.checkpoint.outstanding import Outstanding
from holdfast.checkpoint.pending import PendingState
from holdfast.checkpoint.recording import Recording
from holdfast.checkpoint.registry import GroupHolder, LogHolder, PartHolder, PendingHolder
from holdfast.checkpoint.updates import SettingValue
from holdfast.errors import HoldfastError
from holdfast.ids import BatchNumber, CheckpointId, Incarnation
from holdfast.settings import CheckpointConfig


class Coordinator:
    """The checkpoint rules of a job during a single epoch. Called by a single thread at a time."""

    def __init__(self, config: CheckpointConfig, kept: Mapping[str, SettingValue] | None = None) -> None:
        self._shared = Coordination(config)
        self._recording = Recording(self._shared, kept or {})
        self._cutting = Cutting(self._shared, self._recording)
        self._superseded = False
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.CoordinatorStarted: self._on_started,
            ev.CoordinatorTick: self._on_tick,
            ev.ConfigChanged: self._on_config_changed,
            ev.TriggerRequested: lambda event: self._shared.demand.requests.append(event.request_id),
            SavepointRequested: lambda event: self._shared.demand.ask_for_savepoint(event.request_id),
            HoldNewest: lambda event: self._recording.hold_requests.append(event.request_id),
            LetGo: lambda event: self._shared.records.let_go(event.number),
            ev.CloseRequested: lambda event: self._recording.close_requests.append(event.request_id),
            ev.CommitBegan: self._on_commit_began,
            ev.CommitAcknowledged: self._on_batch_committed,
            ev.Acknowledged: self._on_acknowledged,
            ev.Declined: self._on_declined,
            ev.FailoverBegan: self._on_failover_began,
            ev.TaskManagersChanged: self._on_task_managers_changed,
            ev.TaskManagersMissing: self._on_task_managers_missing,
            ev.ObjectsFound: lambda event: self._shared.registry.acknowledge(event.names),
            BaseMade: self._on_base_made,
            ev.RecordWritten: self._recording.on_record_written,
            ev.RecordFailed: self._recording.on_record_failed,
            ev.Superseded: self._on_superseded,
            ev.RecordsExpired: self._recording.on_records_expired,
            ev.ExpireFailed: lambda event: self._shared.records.expire_failed(event.numbers, self._shared.now_s),
            ev.Published: self._on_published,
            ev.PublicationFailed: self._on_publication_failed,
            ev.Discarded: self._on_discarded,
            ev.DiscardFailed: lambda event: self._shared.publication.discard_failed(
                event.sink, event.number, self._shared.now_s
            ),
            ev.ObjectsDeleted: lambda event: self._shared.registry.deleted(event.names),
            ev.DeleteFailed: lambda event: self._shared.registry.delete_failed(event.names, self._shared.now_s),
            Gathered: self._shared.ledger.gathered,
            GatherFailed: self._on_gather_failed,
        }

    def handle(self, event: ev.Event) -> list[ev.Command]:
        """Handle an event; return the commands to execute now, in the order that `events.py` gives.

        Raises
        ------
        HoldfastError
            The JobMaster broke the protocol: it deployed while the answer of a record was open, or answered
            `StoreAndRecord` without naming the object of each sink's committables.
        """
        if self._superseded:
            return []
        self._shared.commands = []
        self._cutting.at_commit = isinstance(event, ev.CommitAcknowledged)
        self._handlers[type(event)](event)
        if not self._superseded and self._makes_more_possible(event):
            self._advance()
        return self._shared.commands

    @property
    def backlog(self) -> Mapping[str, int]:
        """Number of recorded groups that each sink has not published yet; a job may end once all numbers are 0."""
        return self._shared.publication.backlog()

    @property
    def refused_by(self) -> tuple[Refusal, ...]:
        """Refusals that keep a checkpoint waiting for a later batch boundary; empty if no checkpoint waits."""
        return self._shared.demand.waits_for

    def next_due_s(self, wall_s: float) -> float | None:
        """The wall-clock time at which the trigger comes due; None if it does not depend on time, or is due already."""
        return self._shared.demand.next_due_s(self._shared.config.trigger, wall_s)

    @property
    def live(self) -> frozenset[Incarnation]:
        """The incarnations that hold places after the last event."""
        return frozenset(self._shared.live.values())

    def outstanding(self) -> Outstanding:
        """The objects and files that clean-up must not delete, after the last event."""
        last = self._shared.ledger.last
        first_pending = min((each.checkpoint_id for each in self._shared.pending), default=self._shared.last_id + 1)
        return Outstanding(
            self._shared.run,
            BatchNumber(-1) if last is None else last.batch,
            CheckpointId(first_pending - 1),
            {} if last is None else self._shared.ledger.committables(last.batch),
            [(sink, group.object) for sink, group in self._shared.publication.groups()],
            self._shared.ledger.gathers,
            self._shared.ledger.gathering,
        )

    def validate(self) -> None:
        """Check the invariants; for tests. Raises AssertionError."""
        for part in (
            self._shared.pending,
            self._shared.registry,
            self._shared.records,
            self._shared.publication,
            self._shared.ledger,
        ):
            part.validate()
        sent = self._shared.pending.unanswered
        assert (sent is None) == (self._recording.sent is None), "the record that was sent is not the unanswered record"
        assert sent is None or self._recording.again is None, "two records are unanswered at once"
        assert self._shared.phase is not CoordinatorPhase.DEPLOYING or not len(self._shared.pending), (
            "pending while deploying"
        )
        assert self._shared.phase is not CoordinatorPhase.FAILING or not self._recording.quiet, (
            "failing, but nothing to wait for"
        )
        assert not self._shared.base_wanted or not self._recording.quiet, "a base is wanted, and was not given"
        assert self._shared.phase is not CoordinatorPhase.JOINING or not self._shared.pending.abortable(), (
            "pending while joining"
        )
        for pending in self._shared.pending.abortable():
            assert not self._shared.parts.missing.intersection(pending.missing()), "a checkpoint waits for the missing"
            absent = frozenset() if pending.absence is None else pending.absence.missing
            assert pending.expected.keys() | absent == self._shared.live.keys(), "a checkpoint without a part"
        for holder in self._shared.registry.holders():
            if isinstance(holder, PendingHolder):
                assert self._shared.pending.get(holder.checkpoint_id), f"{holder} outlived its checkpoint"
            elif isinstance(holder, LogHolder):
                assert self._shared.live.get(holder.task_manager) == holder.incarnation, f"{holder} is dead"
            elif isinstance(holder, PartHolder):
                assert self._shared.live.get(holder.log.task_manager) == holder.log.incarnation, f"{holder} is dead"

    # --- time, settings, requests -------------------------------------------------------------------------------------

    def _on_started(self, event: ev.CoordinatorStarted) -> None:
        self._note_time(event)
        self._shared.demand.started(event.wall_s)
        if event.base is not None:
            self._shared.demand.event_time.recorded(event.base.watermark_us)
            self._recording.kept_recorded = event.base.kept
            self._shared.parts.found(event.base.objects)
            take_in(event.base, self._shared.records, self._shared.registry, self._shared.publication)

    def _on_tick(self, event: ev.CoordinatorTick) -> None:
        self._note_time(event)
        for pending in self._shared.pending.expired(self._shared.now_s, self._shared.config.timeout_s):
            waiting = ", ".join(map(str, pending.missing())) or "none: its record was still to be written"
            reason = f"timed out after {self._shared.config.timeout!r}; TaskManagers without answer: {waiting}"
            self._shared.abort(pending, reason, Outcome.EXPIRED)

    def _note_time(self, event: ev.CoordinatorStarted | ev.CoordinatorTick) -> None:
        self._shared.now_s, self._shared.wall_s = event.now_s, event.wall_s
        self._shared.job_s = event.wall_s if event.job_s is None else event.job_s

    def _on_config_changed(self, event: ev.ConfigChanged) -> None:
        if event.config.trigger != self._shared.config.trigger:
            self._shared.demand.is_held = False
        self._shared.config, self._recording.kept = event.config, event.kept
        self._recording.settings_requests += [event.request_id] if event.request_id else []

    # --- batches ------------------------------------------------------------------------------------------------------

    def _on_commit_began(self, event: ev.CommitBegan) -> None:
        self._shared.committing = self._shared.phase is CoordinatorPhase.RUNNING

    def _on_batch_committed(self, event: ev.CommitAcknowledged) -> None:
        self._shared.committing = False
        if event.broadcast:
            self._shared.parts.broadcast_changed(event.batch)
        if self._shared.phase in (CoordinatorPhase.RUNNING, CoordinatorPhase.INCOMPLETE, CoordinatorPhase.JOINING):
            if self._shared.ledger.is_new(event.batch):
                self._shared.demand.refusals = event.refusals
            if self._shared.ledger.is_new(event.batch):
                self._shared.finishing.committed(event.batch, event.position.finishing)
            self._shared.ledger.committed(event)
        elif self._shared.ledger.is_new(event.batch):
            self._shared.drop_staged({sink: list(each) for sink, each in event.committables.items() if each})

    # --- answers of TaskManagers --------------------------------------------------------------------------------------

    def _on_acknowledged(self, event: ev.Acknowledged) -> None:
        pending = self._shared.pending.get(event.checkpoint_id)
        lost = self._shared.registry.being_deleted(event.objects)
        names = event.objects.difference(lost) if lost else event.objects
        log = LogHolder(event.task_manager, event.incarnation)
        if self._shared.live.get(log.task_manager) == log.incarnation:
            self._shared.registry.update_log(log, (event.sequence, event.checkpoint_id), names, event.held)
            self._shared.registry.informed(log, event.informed)
        if pending is not None and pending.acknowledge(event):
            self._shared.registry.hold_version(PendingHolder(event.checkpoint_id), log, names)
            if lost:
                reason = f"TaskManager {event.task_manager} refers to objects it had let go of: {lost}"
                self._shared.abort(pending, reason, Outcome.FAILED)
        self._shared.registry.acknowledge(event.objects)

    def _on_base_made(self, event: BaseMade) -> None:
        """Hold the objects until the TaskManager says what it holds, after the news with which they come. Without an
        owner, or if an object that is used again is not held any more, the new objects go."""
        registry, number = self._shared.registry, -1 if event.task_manager is None else event.task_manager
        incarnation = self._shared.live.get(number)
        if incarnation is not None and registry.are_held(event.reused):
            log, names = LogHolder(number, incarnation), event.made | event.reused
            registry.hold_part(log, CheckpointId(self._shared.last_id + 1), *sorted(names))
            self._shared.commands.append(HandOn(number, event.base))
        registry.acknowledge(event.made)

    def _on_declined(self, event: ev.Declined) -> None:
        pending = self._shared.pending.get(event.checkpoint_id)
        if pending is not None and not pending.sent and pending.expects(event.task_manager, event.incarnation):
            reason = f"declined by TaskManager {event.task_manager}: {event.reason}"
            outcome = Outcome.DECLINED_SOFTLY if event.soft else Outcome.DECLINED
            self._shared.abort(pending, reason, outcome, event.outage)

    # --- failover -----------------------------------------------------------------------------------------------------

    def _on_failover_began(self, event: ev.FailoverBegan) -> None:
        if event.goes_on:
            self._await_replacements(event.reason)
            return
        self._shared.phase = CoordinatorPhase.FAILING
        self._shared.failover_ordered = self._shared.committing = False
        self._shared.base_wanted = True
        for pending in self._shared.pending.abortable():
            self._shared.abort(pending, f"failover: {event.reason}", Outcome.ENDED)
        self._shared.resolve(self._shared.demand.take_requests(), f"failover: {event.reason}")
        self._shared.demand.refusals = ()
        self._shared.failures.reset()
        self._recording.choose_base()

    def _on_task_managers_missing(self, event: ev.TaskManagersMissing) -> None:
        """Continue without the missing TaskManagers; abort pending checkpoints that wait for their parts."""
        if self._shared.phase not in (CoordinatorPhase.RUNNING, CoordinatorPhase.INCOMPLETE):
            return
        self._shared.phase = CoordinatorPhase.INCOMPLETE
        self._shared.parts.absence = event
        for pending in self._shared.pending.abortable():
            if event.missing.intersection(pending.missing()):
                self._shared.abort(pending, event.reason, Outcome.ENDED)

    def _await_replacements(self, reason: str) -> None:
        """Choose the base for replacements. It stays the newest record until the replacements have joined."""
        if self._shared.phase not in (CoordinatorPhase.RUNNING, CoordinatorPhase.INCOMPLETE):
            return
        self._shared.phase = CoordinatorPhase.JOINING
        self._shared.base_wanted = True
        for pending in self._shared.pending.abortable():
            self._shared.abort(pending, reason, Outcome.ENDED)
        self._recording.choose_base()

    def _on_task_managers_changed(self, event: ev.TaskManagersChanged) -> None:
        if self._shared.base_wanted:
            raise HoldfastError(
                "TaskManagers were deployed while the answer of a checkpoint record was open, so that the base was not "
                "known; expected: wait for RestoreFrom before deploying"
            )
        for pending in self._shared.pending.abortable():
            self._shared.abort(pending, "the TaskManagers changed", Outcome.ENDED)
        self._shared.phase = CoordinatorPhase.RUNNING
        self._shared.parts.absence = None
        if event.moved:
            self._shared.parts.moved()
        self._shared.committing = False
        self._shared.run = event.run
        self._shared.live = dict(event.live)
        self._shared.registry.release_dead_logs(self._shared.live)

    def _on_superseded(self, event: ev.Superseded) -> None:
        self._superseded = True

    # --- sinks --------------------------------------------------------------------------------------------------------

    def _on_published(self, event: ev.Published) -> None:
        self._shared.publication.published(event.sink, event.number)
        if not self.backlog.get(event.sink):
            self._shared.finishing.published(event.sink, event.awaited_us)

    def _on_publication_failed(self, event: ev.PublicationFailed) -> None:
        if event.io:
            self._shared.publication.failed(event.sink, event.number, self._shared.now_s)
            self._shared.commands.append(ev.CheckOwnership())
        elif self._shared.publication.refused(event.sink, event.number):
            self._shared.commands.append(ev.FailQuery(event.sink, event.number, event.reason))

    def _on_discarded(self, event: ev.Discarded) -> None:
        if self._shared.publication.discarded(event.sink, event.number):
            self._shared.registry.release(GroupHolder(event.sink, event.number))

    def _on_gather_failed(self, event: GatherFailed) -> None:
        self._shared.ledger.gather_failed(event, self._shared.now_s)
        self._shared.commands.append(ev.CheckOwnership())

    # --- commands that follow an event --------------------------------------------------------------------------------

    def _makes_more_possible(self, event: ev.Event) -> bool:
        """False for an acknowledgement that frees no object, while the checkpoint still waits for other TaskManagers
        and has nothing to store."""
        if not isinstance(event, ev.Acknowledged) or self._shared.commands or self._shared.registry.has_deletable:
            return True
        pending = self._shared.pending.get(event.checkpoint_id)
        waits = pending is not None and pending.state is PendingState.COLLECTING
        return pending is None or not waits or self._recording.may_go_ahead(pending)

    def _advance(self) -> None:
        """Add every command that has become possible, in the order that `events.py` gives."""
        self._order_failover()
        if self._recording.close_requests:
            self._shared.records.end_grace()
        if self._recording.quiet and (
            numbers := self._shared.records.expire(
                self._shared.now_s, *self._shared.config.retention(self._shared.job_s)
            )
        ):
            self._shared.commands.append(ev.ExpireRecords(numbers))
        self._shared.commands += self._shared.publication.publish(self._shared.now_s)
        self._cutting.serve()
        self._recording.serve_close_requests()
        if self._recording.quiet:
            self._recording.serve_hold_requests()
            self._recording.record()
        if self._recording.quiet:
            self._recording.store_ahead()
            self._recording.serve_settings()
        if self._recording.quiet:
            self._recording.delete()
        self._shared.commands += self._shared.ledger.gather(
            [each.batch for each in self._shared.pending], self._shared.run, self._shared.now_s
        )
        self._shared.commands += self._shared.publication.planning(
            self._shared.config.unpublished_max, self._shared.ledger.overfull
        )

    def _order_failover(self) -> None:
        if self._shared.phase is not CoordinatorPhase.RUNNING or self._shared.failover_ordered:
            return
        reason = self._shared.failures.verdict(self._shared.now_s, self._shared.config)
        if reason is not None:
            self._shared.failover_ordered = True
            self._shared.commands.append(ev.AskFailover(reason))
