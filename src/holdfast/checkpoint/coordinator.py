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

Reading order: `coordination.py` (the parts, aborts) ◄── `recording.py` (records) ◄── `cutting.py` (cuts) ◄── this
module (events, failover, the order of an answer's commands). Each adds its rules to the module before.

Does not own: bytes, processes, batches, the journal's numbers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.availability import Refusal
from holdfast.checkpoint import events as ev
from holdfast.checkpoint.coordination import CoordinatorPhase
from holdfast.checkpoint.cutting import Cutting
from holdfast.checkpoint.found import take_in
from holdfast.checkpoint.gathering import Gathered, GatherFailed
from holdfast.checkpoint.holding import HoldNewest, LetGo, SavepointRequested
from holdfast.checkpoint.outcomes import Outcome
from holdfast.checkpoint.outstanding import Outstanding
from holdfast.checkpoint.pending import PendingState
from holdfast.checkpoint.registry import GroupHolder, LogHolder, PartHolder, PendingHolder
from holdfast.checkpoint.updates import SettingValue
from holdfast.errors import HoldfastError
from holdfast.ids import BatchNumber, CheckpointId
from holdfast.settings import CheckpointConfig


class Coordinator(Cutting):
    """The checkpoint rules of a job during a single epoch. Called by a single thread at a time."""

    def __init__(self, config: CheckpointConfig, kept: Mapping[str, SettingValue] | None = None) -> None:
        super().__init__(config)
        self._kept = kept or {}
        self._superseded = False
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.CoordinatorStarted: self._on_started,
            ev.CoordinatorTick: self._on_tick,
            ev.ConfigChanged: self._on_config_changed,
            ev.TriggerRequested: lambda event: self._demand.requests.append(event.request_id),
            SavepointRequested: lambda event: self._demand.ask_for_savepoint(event.request_id),
            HoldNewest: lambda event: self._hold_requests.append(event.request_id),
            LetGo: lambda event: self._records.let_go(event.number),
            ev.CloseRequested: lambda event: self._close_requests.append(event.request_id),
            ev.CommitBegan: self._on_commit_began,
            ev.CommitAcknowledged: self._on_batch_committed,
            ev.Acknowledged: self._on_acknowledged,
            ev.Declined: self._on_declined,
            ev.FailoverBegan: self._on_failover_began,
            ev.TaskManagersChanged: self._on_task_managers_changed,
            ev.TaskManagersMissing: self._on_task_managers_missing,
            ev.ObjectsFound: lambda event: self._registry.acknowledge(event.names),
            ev.RecordWritten: self._on_record_written,
            ev.RecordFailed: self._on_record_failed,
            ev.Superseded: self._on_superseded,
            ev.RecordsExpired: self._on_records_expired,
            ev.ExpireFailed: lambda event: self._records.expire_failed(event.numbers, self._now_s),
            ev.Published: self._on_published,
            ev.PublicationFailed: self._on_publication_failed,
            ev.Discarded: self._on_discarded,
            ev.DiscardFailed: lambda event: self._publication.discard_failed(event.sink, event.number, self._now_s),
            ev.ObjectsDeleted: lambda event: self._registry.deleted(event.names),
            ev.DeleteFailed: lambda event: self._registry.delete_failed(event.names, self._now_s),
            Gathered: self._ledger.gathered,
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
        self._commands = []
        self._at_commit = isinstance(event, ev.CommitAcknowledged)
        self._handlers[type(event)](event)
        if not self._superseded and self._makes_more_possible(event):
            self._advance()
        return self._commands

    @property
    def backlog(self) -> Mapping[str, int]:
        """Recorded groups that each sink has still to publish; a job may end when all are 0."""
        return self._publication.backlog()

    @property
    def refused_by(self) -> tuple[Refusal, ...]:
        """Refusals that keep a checkpoint waiting for a later batch boundary; empty if none waits."""
        return self._demand.waits_for

    def next_due_s(self, wall_s: float) -> float | None:
        """The wall-clock time at which the trigger comes due; None if it does not by time, or is due already."""
        return self._demand.next_due_s(self._config.trigger, wall_s)

    def outstanding(self) -> Outstanding:
        """The objects and files that clean-up must leave in place, as of the last event."""
        last = self._ledger.last
        first_pending = min((each.checkpoint_id for each in self._pending), default=self._last_id + 1)
        return Outstanding(
            self._run,
            BatchNumber(-1) if last is None else last.batch,
            CheckpointId(first_pending - 1),
            {} if last is None else self._ledger.committables(last.batch),
            [(sink, group.object) for sink, group in self._publication.groups()],
            self._ledger.gathers,
            self._ledger.gathering,
        )

    def validate(self) -> None:
        """Check the invariants; for tests. Raises AssertionError."""
        for part in (self._pending, self._registry, self._records, self._publication, self._ledger):
            part.validate()
        sent = self._pending.unanswered
        assert (sent is None) == (self._sent is None), "the record that was sent is not the unanswered record"
        assert sent is None or self._again is None, "two records are unanswered at once"
        assert self._phase is not CoordinatorPhase.DEPLOYING or not len(self._pending), "pending while deploying"
        assert self._phase is not CoordinatorPhase.FAILING or not self._quiet, "failing, but nothing to wait for"
        assert not self._base_wanted or not self._quiet, "a base is wanted, and was not given"
        assert self._phase is not CoordinatorPhase.JOINING or not self._pending.abortable(), "pending while joining"
        for pending in self._pending.abortable():
            assert not self._parts.missing.intersection(pending.missing()), "a checkpoint waits for the missing"
            absent = frozenset() if pending.absence is None else pending.absence.missing
            assert pending.expected.keys() | absent == self._live.keys(), "a checkpoint without a part"
        for holder in self._registry.holders():
            if isinstance(holder, PendingHolder):
                assert self._pending.get(holder.checkpoint_id), f"{holder} outlived its checkpoint"
            elif isinstance(holder, LogHolder):
                assert self._live.get(holder.task_manager) == holder.incarnation, f"{holder} is dead"
            elif isinstance(holder, PartHolder):
                assert self._live.get(holder.log.task_manager) == holder.log.incarnation, f"{holder} is dead"

    # --- time, settings, requests -------------------------------------------------------------------------------------

    def _on_started(self, event: ev.CoordinatorStarted) -> None:
        self._note_time(event)
        self._demand.started(event.wall_s)
        if event.base is not None:
            self._demand.event_time.recorded(event.base.watermark_us)
            self._kept_recorded = event.base.kept
            self._parts.found(event.base.objects)
            take_in(event.base, self._records, self._registry, self._publication)

    def _on_tick(self, event: ev.CoordinatorTick) -> None:
        self._note_time(event)
        for pending in self._pending.expired(self._now_s, self._config.timeout_s):
            waiting = ", ".join(map(str, pending.missing())) or "none: its record was still to be written"
            reason = f"timed out after {self._config.timeout!r}; TaskManagers without answer: {waiting}"
            self._abort(pending, reason, Outcome.EXPIRED)

    def _note_time(self, event: ev.CoordinatorStarted | ev.CoordinatorTick) -> None:
        self._now_s, self._wall_s = event.now_s, event.wall_s
        self._job_s = event.wall_s if event.job_s is None else event.job_s

    def _on_config_changed(self, event: ev.ConfigChanged) -> None:
        if event.config.trigger != self._config.trigger:
            self._demand.is_held = False
        self._config, self._kept = event.config, event.kept
        self._settings_requests += [event.request_id] if event.request_id else []

    # --- batches ------------------------------------------------------------------------------------------------------

    def _on_commit_began(self, event: ev.CommitBegan) -> None:
        self._committing = self._phase is CoordinatorPhase.RUNNING

    def _on_batch_committed(self, event: ev.CommitAcknowledged) -> None:
        self._committing = False
        if event.broadcast:
            self._parts.broadcast_changed(event.batch)
        if self._phase in (CoordinatorPhase.RUNNING, CoordinatorPhase.INCOMPLETE, CoordinatorPhase.JOINING):
            if self._ledger.is_new(event.batch):
                self._demand.refusals = event.refusals
            if self._ledger.is_new(event.batch):
                self._finishing.committed(event.batch, event.position.finishing)
            self._ledger.committed(event)
        elif self._ledger.is_new(event.batch):
            self._drop_staged({sink: list(each) for sink, each in event.committables.items() if each})

    # --- answers of TaskManagers --------------------------------------------------------------------------------------

    def _on_acknowledged(self, event: ev.Acknowledged) -> None:
        pending = self._pending.get(event.checkpoint_id)
        lost = self._registry.being_deleted(event.objects)
        names = event.objects.difference(lost) if lost else event.objects
        log = LogHolder(event.task_manager, event.incarnation)
        if self._live.get(log.task_manager) == log.incarnation:
            self._registry.update_log(log, (event.sequence, event.checkpoint_id), names, event.held)
            self._registry.informed(log, event.informed)
        if pending is not None and pending.acknowledge(event):
            self._registry.hold_version(PendingHolder(event.checkpoint_id), log, names)
            if lost:
                reason = f"TaskManager {event.task_manager} refers to objects it had let go of: {lost}"
                self._abort(pending, reason, Outcome.FAILED)
        self._registry.acknowledge(event.objects)

    def _on_declined(self, event: ev.Declined) -> None:
        pending = self._pending.get(event.checkpoint_id)
        if pending is not None and not pending.sent and pending.expects(event.task_manager, event.incarnation):
            reason = f"declined by TaskManager {event.task_manager}: {event.reason}"
            outcome = Outcome.DECLINED_SOFTLY if event.soft else Outcome.DECLINED
            self._abort(pending, reason, outcome, event.outage)

    # --- failover -----------------------------------------------------------------------------------------------------

    def _on_failover_began(self, event: ev.FailoverBegan) -> None:
        if event.goes_on:
            self._await_replacements(event.reason)
            return
        self._phase = CoordinatorPhase.FAILING
        self._failover_ordered = self._committing = False
        self._base_wanted = True
        for pending in self._pending.abortable():
            self._abort(pending, f"failover: {event.reason}", Outcome.ENDED)
        self._resolve(self._demand.take_requests(), f"failover: {event.reason}")
        self._demand.refusals = ()
        self._failures.reset()
        self._choose_base()

    def _on_task_managers_missing(self, event: ev.TaskManagersMissing) -> None:
        """Go on without them: pending checkpoints that wait for their parts are given up."""
        if self._phase not in (CoordinatorPhase.RUNNING, CoordinatorPhase.INCOMPLETE):
            return
        self._phase = CoordinatorPhase.INCOMPLETE
        self._parts.absence = event
        for pending in self._pending.abortable():
            if event.missing.intersection(pending.missing()):
                self._abort(pending, event.reason, Outcome.ENDED)

    def _await_replacements(self, reason: str) -> None:
        """Choose the base for replacements, which stays the newest record until they have joined."""
        if self._phase not in (CoordinatorPhase.RUNNING, CoordinatorPhase.INCOMPLETE):
            return
        self._phase = CoordinatorPhase.JOINING
        self._base_wanted = True
        for pending in self._pending.abortable():
            self._abort(pending, reason, Outcome.ENDED)
        self._choose_base()

    def _on_task_managers_changed(self, event: ev.TaskManagersChanged) -> None:
        if self._base_wanted:
            raise HoldfastError(
                "TaskManagers were deployed while the answer of a checkpoint record was open, so that the base was not "
                "known; expected: wait for RestoreFrom before deploying"
            )
        for pending in self._pending.abortable():
            self._abort(pending, "the TaskManagers changed", Outcome.ENDED)
        self._phase = CoordinatorPhase.RUNNING
        self._parts.absence = None
        self._committing = False
        self._run = event.run
        self._live = dict(event.live)
        self._registry.release_dead_logs(self._live)

    def _on_superseded(self, event: ev.Superseded) -> None:
        self._superseded = True

    # --- sinks --------------------------------------------------------------------------------------------------------

    def _on_published(self, event: ev.Published) -> None:
        self._publication.published(event.sink, event.number)
        if not self.backlog.get(event.sink):
            self._finishing.published(event.sink, event.awaited_us)

    def _on_publication_failed(self, event: ev.PublicationFailed) -> None:
        if event.io:
            self._publication.failed(event.sink, event.number, self._now_s)
            self._commands.append(ev.CheckOwnership())
        elif self._publication.refused(event.sink, event.number):
            self._commands.append(ev.FailQuery(event.sink, event.number, event.reason))

    def _on_discarded(self, event: ev.Discarded) -> None:
        if self._publication.discarded(event.sink, event.number):
            self._registry.release(GroupHolder(event.sink, event.number))

    def _on_gather_failed(self, event: GatherFailed) -> None:
        self._ledger.gather_failed(event, self._now_s)
        self._commands.append(ev.CheckOwnership())

    # --- commands that follow an event --------------------------------------------------------------------------------

    def _makes_more_possible(self, event: ev.Event) -> bool:
        """False for an acknowledgement that frees no object, while the checkpoint still waits for other
        TaskManagers."""
        if not isinstance(event, ev.Acknowledged) or self._commands or self._registry.has_deletable:
            return True
        pending = self._pending.get(event.checkpoint_id)
        return pending is None or pending.state is not PendingState.COLLECTING

    def _advance(self) -> None:
        """Add every command that has become possible, in the order that `events.py` gives."""
        self._order_failover()
        if self._close_requests:
            self._records.end_grace()
        if self._quiet and (numbers := self._records.expire(self._now_s, *self._config.retention(self._job_s))):
            self._commands.append(ev.ExpireRecords(numbers))
        self._commands += self._publication.publish(self._now_s)
        self._serve()
        self._serve_close_requests()
        if self._quiet:
            self._serve_hold_requests()
            self._record()
        if self._quiet:
            self._serve_settings()
        if self._quiet:
            self._delete()
        self._commands += self._ledger.gather([each.batch for each in self._pending], self._run, self._now_s)
        self._commands += self._publication.planning(self._config.unpublished_max, self._ledger.overfull)

    def _order_failover(self) -> None:
        if self._phase is not CoordinatorPhase.RUNNING or self._failover_ordered:
            return
        reason = self._failures.verdict(self._now_s, self._config)
        if reason is not None:
            self._failover_ordered = True
            self._commands.append(ev.AskFailover(reason))
