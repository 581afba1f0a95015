"""The CheckpointCoordinator: when to cut, what completes a checkpoint, and what follows from it.

Pure: `handle(event) -> list[Command]` is the only mutator; no I/O, clock or thread. `events.py` lists events and
commands, and fixes the order of an answer's commands.

    DEPLOYING ──TaskManagersChanged──► RUNNING ──FailoverBegan──► FAILING ──no record unanswered, RestoreFrom──┐
        ▲                                                                                                      │
        └──────────────────────────────────────────────────────────────────────────────────────────────────────┘

Invariants
- A cut is at the last committed batch, and never waits for a running one. There is none without progress, none
  between `CommitBegan` and what answers it, and none where somebody refuses (`demand.py`).
- The record completes the checkpoint. One that was sent neither expires nor is aborted, and while it is unanswered
  nothing is deleted and nothing further written.
- Committables go into the first record whose cut is at or past their batch, each into exactly one as a new group.
- Nothing is deleted that a record, a pending checkpoint, an undiscarded group or a live log names.

Does not own: bytes, processes, batches, the journal's numbers.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from holdfast.availability import Refusal
from holdfast.checkpoint import events as ev
from holdfast.checkpoint.demand import BY_POLICY, Demand, NotifyRefused
from holdfast.checkpoint.failures import FailureManager
from holdfast.checkpoint.found import take_in
from holdfast.checkpoint.gathering import Gathered, GatherFailed
from holdfast.checkpoint.holding import HoldNewest, LetGo, SavepointRequested
from holdfast.checkpoint.ledger import Ledger
from holdfast.checkpoint.outcomes import Outcome
from holdfast.checkpoint.outstanding import Outstanding
from holdfast.checkpoint.pending import PendingCheckpoint, PendingCheckpoints
from holdfast.checkpoint.publication import Publication
from holdfast.checkpoint.records import RetainedRecords
from holdfast.checkpoint.registry import GroupHolder, LogHolder, ObjectRegistry, PendingHolder, RecordHolder
from holdfast.errors import HoldfastError
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, JournalNumber, RunNumber
from holdfast.settings import CheckpointConfig


class CoordinatorPhase(Enum):
    DEPLOYING = "deploying"
    RUNNING = "running"
    FAILING = "failing"


class Coordinator:
    """The checkpoint rules of one epoch of one job. Called by one thread at a time."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._phase = CoordinatorPhase.DEPLOYING
        self._superseded = False
        self._failover_ordered = False
        self._committing = False
        self._at_commit = False
        self._now_s = 0.0
        self._wall_s = 0.0
        self._ended_s: float | None = None
        self._run = RunNumber(0)
        self._live: dict[int, Incarnation] = {}
        self._last_id = CheckpointId(0)
        self._demand = Demand()
        self._close_requests: list[str] = []
        self._sent: ev.StoreAndRecord | None = None
        self._again: ev.RecordAgain | None = None
        self._pending = PendingCheckpoints()
        self._failures = FailureManager()
        self._registry = ObjectRegistry()
        self._records = RetainedRecords()
        self._publication = Publication()
        self._ledger = Ledger()
        self._commands: list[ev.Command] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.CoordinatorStarted: self._on_started,
            ev.CoordinatorTick: self._on_tick,
            ev.ConfigChanged: self._on_config_changed,
            ev.TriggerRequested: lambda event: self._demand.requests.append(event.request_id),
            SavepointRequested: lambda event: self._demand.ask_for_savepoint(event.request_id),
            HoldNewest: lambda event: self._commands.append(ev.Resolve(event.request_id, self._records.hold_newest())),
            LetGo: lambda event: self._records.let_go(event.number),
            ev.CloseRequested: lambda event: self._close_requests.append(event.request_id),
            ev.CommitBegan: self._on_commit_began,
            ev.CommitAcknowledged: self._on_batch_committed,
            ev.Acknowledged: self._on_acknowledged,
            ev.Declined: self._on_declined,
            ev.FailoverBegan: self._on_failover_began,
            ev.TaskManagersChanged: self._on_task_managers_changed,
            ev.ObjectsFound: lambda event: self._registry.acknowledge(event.names),
            ev.RecordWritten: self._on_record_written,
            ev.RecordFailed: self._on_record_failed,
            ev.Superseded: self._on_superseded,
            ev.RecordsExpired: self._on_records_expired,
            ev.ExpireFailed: lambda event: self._records.expire_failed(event.numbers, self._now_s),
            ev.Published: lambda event: self._publication.published(event.sink, event.number),
            ev.PublicationFailed: self._on_publication_failed,
            ev.Discarded: self._on_discarded,
            ev.DiscardFailed: lambda event: self._publication.discard_failed(event.sink, event.number, self._now_s),
            ev.ObjectsDeleted: lambda event: self._registry.deleted(event.names),
            ev.DeleteFailed: lambda event: self._registry.delete_failed(event.names, self._now_s),
            Gathered: self._ledger.gathered,
            GatherFailed: self._on_gather_failed,
        }

    def handle(self, event: ev.Event) -> list[ev.Command]:
        """Take one fact; what is to be done now, in the order that `events.py` gives.

        Raises
        ------
        HoldfastError
            The JobMaster broke the protocol: it deployed while the answer of a record was open, or answered
            `StoreAndRecord` without naming where it stored what it was given.
        """
        if self._superseded:
            return []
        self._commands = []
        self._at_commit = isinstance(event, ev.CommitAcknowledged)
        self._handlers[type(event)](event)
        if not self._superseded:
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
        assert (sent is None) == (self._sent is None), "what was sent is not what is unanswered"
        assert sent is None or self._again is None, "two records are unanswered at once"
        assert self._phase is not CoordinatorPhase.DEPLOYING or not len(self._pending), "pending while deploying"
        assert self._phase is not CoordinatorPhase.FAILING or not self._quiet, "failing, but nothing to wait for"
        for holder in self._registry.holders():
            if isinstance(holder, PendingHolder):
                assert self._pending.get(holder.checkpoint_id), f"{holder} outlived its checkpoint"
            elif isinstance(holder, LogHolder):
                assert self._live.get(holder.task_manager) == holder.incarnation, f"{holder} is dead"

    # --- time, settings, requests -------------------------------------------------------------------------------------

    def _on_started(self, event: ev.CoordinatorStarted) -> None:
        self._now_s, self._wall_s = event.now_s, event.wall_s
        self._demand.started(event.wall_s)
        if event.base is not None:
            take_in(event.base, self._records, self._registry, self._publication)

    def _on_tick(self, event: ev.CoordinatorTick) -> None:
        self._now_s, self._wall_s = event.now_s, event.wall_s
        for pending in self._pending.expired(self._now_s, self._config.timeout_s):
            waiting = ", ".join(map(str, pending.missing())) or "none: its record was still to be written"
            reason = f"timed out after {self._config.timeout!r}; TaskManagers without answer: {waiting}"
            self._abort(pending, reason, Outcome.EXPIRED)

    def _on_config_changed(self, event: ev.ConfigChanged) -> None:
        if event.config.trigger != self._config.trigger:
            self._demand.is_held = False
        self._config = event.config

    # --- batches ------------------------------------------------------------------------------------------------------

    def _on_commit_began(self, event: ev.CommitBegan) -> None:
        self._committing = self._phase is CoordinatorPhase.RUNNING

    def _on_batch_committed(self, event: ev.CommitAcknowledged) -> None:
        self._committing = False
        if self._phase is CoordinatorPhase.RUNNING:
            if self._ledger.is_new(event.batch):
                self._demand.refusals = event.refusals
            self._ledger.committed(event)
        elif self._ledger.is_new(event.batch):
            self._drop_staged({sink: list(each) for sink, each in event.committables.items() if each})

    def _drop_staged(self, committables: dict[str, list[bytes]]) -> None:
        self._commands += [ev.DropStaged(sink, each) for sink, each in sorted(committables.items())]

    # --- answers of TaskManagers --------------------------------------------------------------------------------------

    def _on_acknowledged(self, event: ev.Acknowledged) -> None:
        self._update_held(event)
        pending = self._pending.get(event.checkpoint_id)
        lost = self._registry.being_deleted(event.objects)
        if pending is not None and pending.acknowledge(event):
            log = LogHolder(event.task_manager, event.incarnation)
            self._registry.hold_version(PendingHolder(event.checkpoint_id), log, event.objects)
            if lost:
                reason = f"TaskManager {event.task_manager} refers to objects it had let go of: {lost}"
                self._abort(pending, reason, Outcome.FAILED)
        self._registry.acknowledge(event.objects)

    def _update_held(self, event: ev.Acknowledged) -> None:
        log = LogHolder(event.task_manager, event.incarnation)
        if self._live.get(log.task_manager) == log.incarnation:
            self._registry.update_log(log, (event.sequence, event.checkpoint_id), event.held)

    def _on_declined(self, event: ev.Declined) -> None:
        pending = self._pending.get(event.checkpoint_id)
        if pending is not None and not pending.sent and pending.expects(event.task_manager, event.incarnation):
            reason = f"declined by TaskManager {event.task_manager}: {event.reason}"
            self._abort(pending, reason, Outcome.DECLINED_SOFTLY if event.soft else Outcome.DECLINED)

    def _abort(self, pending: PendingCheckpoint, reason: str, outcome: Outcome) -> None:
        self._pending.remove(pending.checkpoint_id)
        self._registry.release(PendingHolder(pending.checkpoint_id))
        self._ended_s = self._now_s
        if outcome.counts or outcome.is_soft:
            self._failures.failed(pending.checkpoint_id, reason, counted=outcome.counts)
        self._commands.append(ev.NotifyAborted(pending.checkpoint_id, reason, outcome))
        self._commands += [ev.CheckOwnership()] if outcome.counts else []
        self._resolve(pending.requests, f"checkpoint {pending.checkpoint_id} failed: {reason}", outcome.is_soft)

    def _resolve(self, requests: list[str], failure: str | None = None, soft: bool = False) -> None:
        self._commands += [ev.Resolve(request, self._records.newest, failure, soft) for request in requests]

    # --- failover -----------------------------------------------------------------------------------------------------

    def _on_failover_began(self, event: ev.FailoverBegan) -> None:
        self._phase = CoordinatorPhase.FAILING
        self._failover_ordered = self._committing = False
        for pending in self._pending.abortable():
            self._abort(pending, f"failover: {event.reason}", Outcome.ENDED)
        self._resolve(self._demand.take_requests(), f"failover: {event.reason}")
        self._demand.refusals = ()
        self._failures.reset()
        self._choose_base()

    def _choose_base(self) -> None:
        """Once no record is unanswered, the newest one is what the job goes back to."""
        if self._phase is CoordinatorPhase.FAILING and self._quiet:
            self._phase = CoordinatorPhase.DEPLOYING
            self._drop_staged(self._ledger.drop())
            self._commands.append(ev.RestoreFrom(self._records.newest))

    def _on_task_managers_changed(self, event: ev.TaskManagersChanged) -> None:
        if self._phase is CoordinatorPhase.FAILING:
            raise HoldfastError(
                "TaskManagers were deployed while the answer of a checkpoint record was open, so that the base was not "
                "known; expected: wait for RestoreFrom before deploying"
            )
        for pending in self._pending.abortable():
            self._abort(pending, "the TaskManagers changed", Outcome.ENDED)
        self._phase = CoordinatorPhase.RUNNING
        self._committing = False
        self._run = event.run
        self._live = dict(event.live)
        self._registry.release_dead_logs(self._live)

    # --- records ------------------------------------------------------------------------------------------------------

    @property
    def _quiet(self) -> bool:
        """No record is unanswered."""
        return self._pending.unanswered is None and self._again is None

    def _on_record_written(self, event: ev.RecordWritten) -> None:
        if self._again is not None and self._again.checkpoint_id == event.checkpoint_id:
            self._recorded_again(self._again, event.number)
            return
        pending, sent = self._pending.unanswered, self._sent
        if pending is None or sent is None or pending.checkpoint_id != event.checkpoint_id:
            return
        if not sent.committables.keys() <= event.stored.keys():
            raise HoldfastError(
                f"record {event.number} was written with committables of {sorted(sent.committables)}, but only those "
                f"of {sorted(event.stored)} were stored; expected: RecordWritten.stored names an object for each"
            )
        self._sent = None
        self._pending.remove(pending.checkpoint_id)
        self._register_record(event, sent)
        self._ledger.record(pending.batch)
        self._failures.completed(pending.checkpoint_id)
        self._ended_s = self._now_s
        self._commands.append(ev.NotifyCompleted(pending.checkpoint_id, event.number, pending.batch, pending.position))
        self._resolve(pending.requests)
        for older in self._pending.abortable():
            if older.checkpoint_id < pending.checkpoint_id:
                requests, older.requests = older.requests, []
                self._abort(older, f"subsumed by checkpoint {pending.checkpoint_id}", Outcome.SUBSUMED)
                self._resolve(requests)
        self._choose_base()

    def _register_record(self, event: ev.RecordWritten, sent: ev.StoreAndRecord) -> None:
        """The record takes over what its pending checkpoint held, and holds its groups."""
        groups = {(sink, group.number) for sink, each in sent.carried.items() for group in each}
        objects = [group.object for each in sent.carried.values() for group in each]
        objects += [name for found in sent.position.source_objects.values() for name in found]
        for sink in sorted(sent.committables):
            group = ev.Group(event.number, event.stored[sink])
            groups.add((sink, event.number))
            objects.append(group.object)
            self._registry.hold(GroupHolder(sink, event.number), [group.object])
            self._publication.add(sink, group)
        record = RecordHolder(event.number)
        self._registry.hand_over(PendingHolder(event.checkpoint_id), record)
        self._registry.hold(record, objects)
        self._registry.acknowledge(event.stored.values())
        self._records.written(event.number, frozenset(groups), self._wall_s)

    def _recorded_again(self, again: ev.RecordAgain, number: JournalNumber) -> None:
        """The new record holds what the old one does, but for its groups, which are published."""
        self._again = None
        groups = {group.object for _, group in self._publication.groups()}
        self._registry.hold(RecordHolder(number), self._registry.names(RecordHolder(again.number)) - groups)
        self._records.written(number, frozenset(), self._wall_s)
        self._records.repeated(again.number)
        self._resolve_close_requests()
        self._choose_base()

    def _on_record_failed(self, event: ev.RecordFailed) -> None:
        pending = self._pending.unanswered
        if pending is None or pending.checkpoint_id != event.checkpoint_id:
            return
        self._sent = None
        self._registry.acknowledge(event.stored.values())
        outcome = Outcome.FAILED if self._phase is CoordinatorPhase.RUNNING else Outcome.ENDED
        self._abort(pending, f"no record was written: {event.reason}", outcome)
        self._choose_base()

    def _on_superseded(self, event: ev.Superseded) -> None:
        self._superseded = True

    def _on_records_expired(self, event: ev.RecordsExpired) -> None:
        for number in sorted(event.numbers):
            if self._records.expired(number):
                self._registry.release(RecordHolder(number))

    # --- sinks --------------------------------------------------------------------------------------------------------

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

    # --- what follows -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """All that has become possible, in the order that `events.py` gives."""
        self._order_failover()
        if self._quiet and (numbers := self._records.expire(self._now_s, *self._config.retention(self._wall_s))):
            self._commands.append(ev.ExpireRecords(numbers))
        self._commands += self._publication.publish(self._now_s)
        if self._phase is CoordinatorPhase.RUNNING and not self._failover_ordered and not self._committing:
            self._serve_requests()
            self._serve_policy()
        self._serve_close_requests()
        if self._quiet:
            self._record()
        if self._quiet:
            self._delete()
        self._commands += self._ledger.gather([each.batch for each in self._pending], self._run, self._now_s)
        self._commands += self._publication.planning(self._config.unpublished_max, self._ledger.overfull)

    def _delete(self) -> None:
        """Delete names that nobody needs, after a record that is due: deletes beside it would delay it."""
        self._commands += self._publication.discard(self._records.named_groups(), self._now_s)
        if names := self._registry.take(self._now_s):
            self._commands.append(ev.DeleteObjects(names))

    def _order_failover(self) -> None:
        if self._phase is not CoordinatorPhase.RUNNING or self._failover_ordered:
            return
        reason = self._failures.verdict(self._now_s, self._config)
        if reason is not None:
            self._failover_ordered = True
            self._commands.append(ev.Failover(reason))

    def _serve_requests(self) -> None:
        """Answer, attach to a pending checkpoint that covers all that was committed, or cut; otherwise wait."""
        if not self._demand.requests:
            return
        wanted = self._ledger.unrecorded_progress
        covering = None if wanted is None else self._pending.covering(wanted)
        if wanted is None:
            self._resolve(self._demand.take_requests())
        elif covering is not None:
            covering.requests += self._demand.take_requests()
        elif self._demand.refusals:
            if self._demand.refuse_requests():
                self._refuse(self._demand.asked_by)
        elif len(self._pending) < self._config.max_concurrent:
            self._cut(trigger=self._demand.asked_by, requests=self._demand.take_requests())

    def _serve_close_requests(self) -> None:
        """Record the newest checkpoint again where its record holds nothing but groups that are published."""
        if not self._close_requests or self._again is not None:
            return
        newest = self._records.newest
        may_record = self._phase is CoordinatorPhase.RUNNING and not self._failover_ordered and self._quiet
        all_published = bool(self._records.groups_of_newest) and not self._publication.unpublished()
        if newest is not None and may_record and all_published:
            self._last_id = CheckpointId(self._last_id + 1)
            kept = self._records.retained(*self._config.retention(self._wall_s))
            self._again = ev.RecordAgain(self._last_id, newest, tuple(each for each in kept if each != newest))
            self._commands.append(self._again)
        else:
            self._resolve_close_requests()

    def _resolve_close_requests(self) -> None:
        requests, self._close_requests = self._close_requests, []
        self._resolve(requests)

    def _serve_policy(self) -> None:
        """Cut if the policy's trigger is due, or soon is and a batch was committed just now.

        It stays due until there is progress, a free place and the pause over, and nobody refuses. A trigger that comes
        due while an earlier one is refused takes its place, and is refused anew.
        """
        due_s = self._demand.due_s(self._config.trigger, self._wall_s, at_commit=self._at_commit)
        if due_s is None and not self._demand.is_held:
            return
        wanted = self._ledger.unrecorded_progress
        if wanted is None or self._pending.covering(wanted) is not None:
            return
        if len(self._pending) >= self._config.max_concurrent:
            return
        if self._ended_s is not None and self._now_s - self._ended_s < self._config.min_pause_s:
            return
        if due_s is not None:
            self._demand.answered(due_s)
        if not self._demand.refusals:
            self._cut([], BY_POLICY)
        elif self._demand.refuse_policy(due_s is not None):
            self._refuse(BY_POLICY)

    def _refuse(self, trigger: str) -> None:
        """Nothing is cut at this boundary; the refusal has an id of its own, so that it counts once."""
        self._last_id = CheckpointId(self._last_id + 1)
        refusals = self._demand.refusals
        refused = NotifyRefused(self._last_id, trigger, refusals, counted=any(each.hard for each in refusals))
        self._failures.triggered(self._now_s)
        self._failures.failed(refused.checkpoint_id, refused.reason, counted=refused.counted)
        self._commands.append(refused)

    def _cut(self, requests: list[str], trigger: str) -> None:
        last = self._ledger.last
        assert last is not None, "there is progress, so there is a last batch"
        self._last_id = CheckpointId(self._last_id + 1)
        self._demand.is_held = False
        live = dict(sorted(self._live.items()))
        self._pending.add(
            PendingCheckpoint(self._last_id, last.batch, last.position, self._run, live, self._now_s, requests)
        )
        self._failures.triggered(self._now_s)
        self._commands.append(ev.Cut(self._last_id, self._run, last.batch, dict(live), trigger))

    def _record(self) -> None:
        """Send the newest checkpoint that everybody acknowledged to the journal."""
        pending = self._pending.ready()
        if pending is None:
            return
        pending.sent = True
        count, since_s = self._config.retention(self._wall_s)
        self._sent = ev.StoreAndRecord(
            pending.checkpoint_id,
            pending.run,
            pending.batch,
            pending.position,
            [pending.manifests[task_manager] for task_manager in sorted(pending.manifests)],
            self._publication.unpublished(),
            self._ledger.committables(pending.batch),
            self._config,
            tuple(self._records.retained(count - 1, since_s)),
        )
        self._commands.append(self._sent)
