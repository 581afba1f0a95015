"""Records: their content, the meaning of the journal's answers, and the deletions that a new record allows.

    only large parts missing ──StoreAhead──► being stored
    acknowledged by all ──StoreAndRecord──► sent ──RecordWritten──► completed
                                             └──RecordFailed──► aborted
    newest record ──RecordAgain──► sent ──RecordWritten──► the same checkpoint under a new number: before the job ends,
    or with updates of settings that must be kept

Invariants: at most a single record is unanswered; until its answer, nothing is deleted and no further record written. A
record takes over the objects that its pending checkpoint held.
Does not own: bytes, the journal's numbers.
"""

from collections.abc import Mapping
from dataclasses import replace

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.checkpoint.coordination import Coordination, CoordinatorPhase
from holdfast.checkpoint.outcomes import Outcome
from holdfast.checkpoint.pending import PendingCheckpoint
from holdfast.checkpoint.registry import GroupHolder, LogHolder, PendingHolder, RecordHolder
from holdfast.checkpoint.updates import SettingValue
from holdfast.errors import HoldfastError
from holdfast.ids import CheckpointId, JournalNumber
from holdfast.references import object_of


class Recording:
    """Rules of records; `shared` is the state of all rules. `kept`: updates of settings that records must hold."""

    def __init__(self, shared: Coordination, kept: Mapping[str, SettingValue]) -> None:
        self._shared = shared
        self.close_requests: list[str] = []
        self.hold_requests: list[str] = []
        self.settings_requests: list[str] = []
        self.kept = kept
        self.kept_recorded: Mapping[str, SettingValue] = {}
        """Updates that the newest record holds."""
        self._storing: frozenset[int] = frozenset()
        """TaskManagers that stored their parts in the newest record themselves."""
        self.sent: ev.StoreAndRecord | None = None
        self.again: ev.RecordAgain | None = None

    @property
    def quiet(self) -> bool:
        """True if the outcome of every record is known."""
        return self._shared.pending.unanswered is None and self.again is None

    # --- sending ------------------------------------------------------------------------------------------------------

    def record(self) -> None:
        """Send the newest checkpoint that everybody acknowledged to the journal."""
        pending = self._shared.pending.ready()
        if pending is None:
            return
        pending.sent = True
        count, since_s = self._shared.config.retention(self._shared.job_s)
        older = {} if pending.absence is None else self._shared.parts.of(pending.absence.missing)
        parts = pending.parts = pending.parts | older
        for part in older.values():
            self._shared.registry.hold(PendingHolder(pending.checkpoint_id), part.objects)
        self.sent = ev.StoreAndRecord(
            pending.checkpoint_id,
            pending.run,
            pending.batch,
            pending.position,
            [parts[task_manager].manifest for task_manager in sorted(parts)],
            self._shared.publication.unpublished(),
            self._committables(pending),
            self._shared.config,
            tuple(self._shared.records.retained(count - 1, since_s)),
            self.kept,
            pending.absence,
            tuple(part.manifest for part in older.values()),
            pending.carried(),
        )
        self._shared.commands.append(self.sent)

    def may_go_ahead(self, pending: PendingCheckpoint) -> bool:
        """Return whether the checkpoint waits only for parts that their TaskManagers store themselves."""
        return pending.may_go_ahead(self._storing)

    def store_ahead(self) -> None:
        """Have committables and parts that came along stored while other TaskManagers store large parts."""
        pending = next((each for each in reversed(list(self._shared.pending)) if self.may_go_ahead(each)), None)
        if pending is None:
            return
        pending.is_ahead = True
        committables, parts = self._committables(pending), pending.carried()
        if committables or parts:
            self._shared.commands.append(StoreAhead(pending.checkpoint_id, pending.position, committables, parts))

    def _committables(self, pending: PendingCheckpoint) -> dict[str, list[bytes]]:
        finishing: dict[str, list[bytes]] = {
            sink: [] for sink in self._shared.finishing.due(pending.position.finishing)
        }
        return finishing | self._shared.ledger.committables(pending.batch)

    def serve_close_requests(self) -> None:
        """Record the newest checkpoint again if all groups of its record are published, or if the record lacks kept
        updates."""
        if not self.close_requests or self.again is not None:
            return
        all_published = bool(self._shared.records.groups_of_newest) and not self._shared.publication.unpublished()
        if not ((all_published or self._lacks_updates) and self._record_again()):
            self._resolve_close_requests()

    @property
    def _lacks_updates(self) -> bool:
        """True if the newest record does not hold the kept updates."""
        return self.kept != self.kept_recorded

    def serve_settings(self) -> None:
        """Record the newest checkpoint again with the kept updates; that publishes no output."""
        if not self.settings_requests and not self._lacks_updates:
            return
        if self._lacks_updates and self._shared.records.newest is not None:
            self._record_again()
            return
        requests, self.settings_requests = self.settings_requests, []
        self._shared.resolve(requests)

    def _record_again(self) -> bool:
        """Send the newest checkpoint to the journal again, if that is allowed now."""
        newest = self._shared.records.newest
        may_record = self._shared.phase is CoordinatorPhase.RUNNING and not self._shared.failover_ordered and self.quiet
        if newest is None or not may_record:
            return False
        self._shared.last_id = CheckpointId(self._shared.last_id + 1)
        kept = self._shared.records.retained(*self._shared.config.retention(self._shared.job_s))
        retains = tuple(each for each in kept if each != newest)
        carried = self._shared.publication.unpublished()
        self.again = ev.RecordAgain(self._shared.last_id, newest, carried, self._shared.config, retains, self.kept)
        self._shared.commands.append(self.again)
        return True

    def serve_hold_requests(self) -> None:
        """Hold the newest record: every later record names it as retained."""
        requests, self.hold_requests = self.hold_requests, []
        self._shared.commands += [ev.Resolve(request, self._shared.records.hold_newest()) for request in requests]

    def _resolve_close_requests(self) -> None:
        requests, self.close_requests = self.close_requests, []
        self._shared.resolve(requests)

    # --- answers ------------------------------------------------------------------------------------------------------

    def on_record_written(self, event: ev.RecordWritten) -> None:
        if self.again is not None and self.again.checkpoint_id == event.checkpoint_id:
            self._recorded_again(self.again, event.number)
            return
        pending, sent = self._shared.pending.unanswered, self.sent
        if pending is None or sent is None or pending.checkpoint_id != event.checkpoint_id:
            return
        if not sent.committables.keys() <= event.stored.keys():
            raise HoldfastError(
                f"record {event.number} was written with committables of {sorted(sent.committables)}, but only the "
                f"committables of {sorted(event.stored)} were stored; expected: RecordWritten.stored names an object "
                "for each sink"
            )
        self.sent = None
        self.kept_recorded = sent.kept
        self._shared.pending.remove(pending.checkpoint_id)
        self._register_record(event, sent)
        self._storing = frozenset(pending.parts.keys() - event.parts.keys())
        self._place_parts(pending, event)
        self._shared.parts.recorded(pending.parts)
        self._shared.ledger.record(pending.batch)
        self._shared.finishing.recorded(pending.position.finishing, sent.committables)
        self._shared.demand.event_time.recorded(pending.position.watermark_us)
        self._shared.failures.completed(pending.checkpoint_id)
        self._shared.ended_s = self._shared.now_s
        self._shared.commands.append(
            ev.NotifyCompleted(pending.checkpoint_id, event.number, pending.batch, pending.position, event.parts)
        )
        self._shared.resolve(pending.requests)
        for older in self._shared.pending.abortable():
            if older.checkpoint_id < pending.checkpoint_id:
                requests, older.requests = older.requests, []
                self._shared.abort(older, f"subsumed by checkpoint {pending.checkpoint_id}", Outcome.SUBSUMED)
                self._shared.resolve(requests)
        self.choose_base()

    def _place_parts(self, pending: PendingCheckpoint, event: ev.RecordWritten) -> None:
        """Note where the parts are stored that came with acknowledgements. The logs that sent them hold their object
        until they report that they know it, because an acknowledgement under way may have been composed before they
        knew."""
        for task_manager, reference in event.parts.items():
            part, name = pending.parts[task_manager], object_of(reference)
            pending.parts[task_manager] = replace(part, manifest=reference, objects=part.objects | {name})
            log = LogHolder(task_manager, part.incarnation)
            self._shared.registry.hold(RecordHolder(event.number), [name])
            if self._shared.live.get(task_manager) == part.incarnation:
                self._shared.registry.hold_part(log, pending.checkpoint_id, name)
            self._shared.registry.acknowledge([name])

    def _register_record(self, event: ev.RecordWritten, sent: ev.StoreAndRecord) -> None:
        """Hand the objects of the pending checkpoint over to its record, which holds its groups too."""
        groups = {(sink, group.number) for sink, each in sent.carried.items() for group in each}
        objects = [object_of(group.object) for each in sent.carried.values() for group in each]
        objects += [name for found in sent.position.source_objects.values() for name in found]
        for sink in sorted(sent.committables):
            group = ev.Group(event.number, event.stored[sink])
            groups.add((sink, event.number))
            objects.append(object_of(group.object))
            self._shared.registry.hold(GroupHolder(sink, event.number), [object_of(group.object)])
            self._shared.publication.add(sink, group)
        record = RecordHolder(event.number)
        self._shared.registry.hand_over(PendingHolder(event.checkpoint_id), record)
        self._shared.registry.hold(record, objects)
        self._shared.registry.acknowledge([object_of(each) for each in event.stored.values()])
        self._shared.records.written(event.number, frozenset(groups), self._shared.job_s, self._shared.now_s)

    def _recorded_again(self, again: ev.RecordAgain, number: JournalNumber) -> None:
        """Let the new record hold the objects of the old record, except its groups that are published."""
        self.again = None
        self.kept_recorded = again.kept
        carried = {(sink, group.number): group.object for sink, each in again.carried.items() for group in each}
        published = {object_of(group.object) for _, group in self._shared.publication.groups()}
        published -= {object_of(each) for each in carried.values()} | self._shared.parts.objects()
        self._shared.registry.hold(
            RecordHolder(number), self._shared.registry.names(RecordHolder(again.number)) - published
        )
        self._shared.records.written(number, frozenset(carried), self._shared.job_s, self._shared.now_s)
        if self.close_requests:
            self._shared.records.end_grace()
        self._shared.records.repeated(again.number)
        self._resolve_close_requests()
        self.choose_base()

    def on_record_failed(self, event: ev.RecordFailed) -> None:
        pending = self._shared.pending.unanswered
        if pending is None or pending.checkpoint_id != event.checkpoint_id:
            return
        self.sent = None
        self._shared.registry.acknowledge(event.stored)
        outcome = Outcome.FAILED if self._shared.phase is CoordinatorPhase.RUNNING else Outcome.ENDED
        self._shared.abort(pending, f"no record was written: {event.reason}", outcome, event.outage)
        self.choose_base()

    def choose_base(self) -> None:
        """Choose the base of a restart, or of a replaced TaskManager: the newest record, once no record is
        unanswered."""
        if not self._shared.base_wanted or not self.quiet:
            return
        self._shared.base_wanted = False
        if self._shared.phase is CoordinatorPhase.FAILING:
            self._shared.phase = CoordinatorPhase.DEPLOYING
            self._shared.drop_staged(self._shared.ledger.drop())
            self._shared.finishing.dropped()
        self._shared.commands.append(ev.RestoreFrom(self._shared.records.newest))

    def on_records_expired(self, event: ev.RecordsExpired) -> None:
        for number in sorted(event.numbers):
            if self._shared.records.expired(number):
                self._shared.registry.release(RecordHolder(number))

    def delete(self) -> None:
        """Delete names that are no longer needed. A record that is due comes first, since deletions beside it would
        delay it."""
        self._shared.commands += self._shared.publication.discard(
            self._shared.records.named_groups(), self._shared.now_s
        )
        if names := self._shared.registry.take(self._shared.now_s):
            self._shared.commands.append(ev.DeleteObjects(names))
