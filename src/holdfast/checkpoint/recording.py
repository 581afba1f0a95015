"""Records: their content, the meaning of the journal's answers, and the deletions that a new record allows.

    acknowledged by all ──StoreAndRecord──► sent ──RecordWritten──► completed
                                             └──RecordFailed──► aborted
    newest record ──RecordAgain──► sent ──RecordWritten──► the same checkpoint under a new number: before the job ends,
                                                           or with updates of settings that are to be kept

Invariants: at most a single record is unanswered; until its answer, nothing is deleted and no further record written. A
record takes over the objects that its pending checkpoint held.
Does not own: bytes, the journal's numbers.
"""

from collections.abc import Mapping
from dataclasses import replace

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.coordination import Coordination, CoordinatorPhase
from holdfast.checkpoint.outcomes import Outcome
from holdfast.checkpoint.pending import PendingCheckpoint
from holdfast.checkpoint.registry import GroupHolder, LogHolder, PendingHolder, RecordHolder
from holdfast.checkpoint.updates import SettingValue
from holdfast.errors import HoldfastError
from holdfast.ids import CheckpointId, JournalNumber
from holdfast.references import object_of
from holdfast.settings import CheckpointConfig


class Recording(Coordination):
    """Rules of records, on top of what all rules share."""

    def __init__(self, config: CheckpointConfig) -> None:
        super().__init__(config)
        self._close_requests: list[str] = []
        self._hold_requests: list[str] = []
        self._settings_requests: list[str] = []
        self._kept: Mapping[str, SettingValue] = {}
        """Updates of settings that records are to hold."""
        self._kept_recorded: Mapping[str, SettingValue] = {}
        """Updates that the newest record holds."""
        self._sent: ev.StoreAndRecord | None = None
        self._again: ev.RecordAgain | None = None

    @property
    def _quiet(self) -> bool:
        """True if the outcome of every record is known."""
        return self._pending.unanswered is None and self._again is None

    # --- sending ------------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Send the newest checkpoint that everybody acknowledged to the journal."""
        pending = self._pending.ready()
        if pending is None:
            return
        pending.sent = True
        count, since_s = self._config.retention(self._job_s)
        finishing: dict[str, list[bytes]] = {sink: [] for sink in self._finishing.due(pending.position.finishing)}
        older = {} if pending.absence is None else self._parts.of(pending.absence.missing)
        parts = pending.parts = pending.parts | older
        for part in older.values():
            self._registry.hold(PendingHolder(pending.checkpoint_id), part.objects)
        self._sent = ev.StoreAndRecord(
            pending.checkpoint_id,
            pending.run,
            pending.batch,
            pending.position,
            [parts[task_manager].manifest for task_manager in sorted(parts)],
            self._publication.unpublished(),
            finishing | self._ledger.committables(pending.batch),
            self._config,
            tuple(self._records.retained(count - 1, since_s)),
            self._kept,
            pending.absence,
            tuple(part.manifest for part in older.values()),
            tuple((each, parts[each].incarnation) for each in sorted(parts) if not parts[each].manifest),
        )
        self._commands.append(self._sent)

    def _serve_close_requests(self) -> None:
        """Record the newest checkpoint again if its record holds nothing but groups that are published, or lacks
        updates."""
        if not self._close_requests or self._again is not None:
            return
        all_published = bool(self._records.groups_of_newest) and not self._publication.unpublished()
        if not ((all_published or self._lacks_updates) and self._record_again()):
            self._resolve_close_requests()

    @property
    def _lacks_updates(self) -> bool:
        """True if the newest record does not hold the updates that are to be kept."""
        return self._kept != self._kept_recorded

    def _serve_settings(self) -> None:
        """Record the newest checkpoint again with the updates that are to be kept; no output is published by that."""
        if not self._settings_requests and not self._lacks_updates:
            return
        if self._lacks_updates and self._records.newest is not None:
            self._record_again()
            return
        requests, self._settings_requests = self._settings_requests, []
        self._resolve(requests)

    def _record_again(self) -> bool:
        """Send the newest checkpoint to the journal again, if that may be done now."""
        newest = self._records.newest
        may_record = self._phase is CoordinatorPhase.RUNNING and not self._failover_ordered and self._quiet
        if newest is None or not may_record:
            return False
        self._last_id = CheckpointId(self._last_id + 1)
        kept = self._records.retained(*self._config.retention(self._job_s))
        retains = tuple(each for each in kept if each != newest)
        carried = self._publication.unpublished()
        self._again = ev.RecordAgain(self._last_id, newest, carried, self._config, retains, self._kept)
        self._commands.append(self._again)
        return True

    def _serve_hold_requests(self) -> None:
        """Hold the newest record: every record from now on says that it retains it."""
        requests, self._hold_requests = self._hold_requests, []
        self._commands += [ev.Resolve(request, self._records.hold_newest()) for request in requests]

    def _resolve_close_requests(self) -> None:
        requests, self._close_requests = self._close_requests, []
        self._resolve(requests)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _on_record_written(self, event: ev.RecordWritten) -> None:
        if self._again is not None and self._again.checkpoint_id == event.checkpoint_id:
            self._recorded_again(self._again, event.number)
            return
        pending, sent = self._pending.unanswered, self._sent
        if pending is None or sent is None or pending.checkpoint_id != event.checkpoint_id:
            return
        if not sent.committables.keys() <= event.stored.keys():
            raise HoldfastError(
                f"record {event.number} was written with committables of {sorted(sent.committables)}, but only the "
                f"committables of {sorted(event.stored)} were stored; expected: RecordWritten.stored names an object "
                "for each sink"
            )
        self._sent = None
        self._kept_recorded = sent.kept
        self._pending.remove(pending.checkpoint_id)
        self._register_record(event, sent)
        self._place_parts(pending, event)
        self._parts.recorded(pending.parts)
        self._ledger.record(pending.batch)
        self._finishing.recorded(pending.position.finishing, sent.committables)
        self._demand.event_time.recorded(pending.position.watermark_us)
        self._failures.completed(pending.checkpoint_id)
        self._ended_s = self._now_s
        self._commands.append(
            ev.NotifyCompleted(pending.checkpoint_id, event.number, pending.batch, pending.position, event.parts)
        )
        self._resolve(pending.requests)
        for older in self._pending.abortable():
            if older.checkpoint_id < pending.checkpoint_id:
                requests, older.requests = older.requests, []
                self._abort(older, f"subsumed by checkpoint {pending.checkpoint_id}", Outcome.SUBSUMED)
                self._resolve(requests)
        self._choose_base()

    def _place_parts(self, pending: PendingCheckpoint, event: ev.RecordWritten) -> None:
        """Note where the parts lie that came with acknowledgements. The logs that sent them hold their object until
        they say that they know of it: an acknowledgement under way was composed before."""
        for task_manager, reference in event.parts.items():
            part, name = pending.parts[task_manager], object_of(reference)
            pending.parts[task_manager] = replace(part, manifest=reference, objects=part.objects | {name})
            log = LogHolder(task_manager, part.incarnation)
            self._registry.hold(RecordHolder(event.number), [name])
            if self._live.get(task_manager) == part.incarnation:
                self._registry.hold_part(log, pending.checkpoint_id, name)
            self._registry.acknowledge([name])

    def _register_record(self, event: ev.RecordWritten, sent: ev.StoreAndRecord) -> None:
        """Hand the objects of the pending checkpoint over to its record, which holds its groups too."""
        groups = {(sink, group.number) for sink, each in sent.carried.items() for group in each}
        objects = [object_of(group.object) for each in sent.carried.values() for group in each]
        objects += [name for found in sent.position.source_objects.values() for name in found]
        for sink in sorted(sent.committables):
            group = ev.Group(event.number, event.stored[sink])
            groups.add((sink, event.number))
            objects.append(object_of(group.object))
            self._registry.hold(GroupHolder(sink, event.number), [object_of(group.object)])
            self._publication.add(sink, group)
        record = RecordHolder(event.number)
        self._registry.hand_over(PendingHolder(event.checkpoint_id), record)
        self._registry.hold(record, objects)
        self._registry.acknowledge([object_of(each) for each in event.stored.values()])
        self._records.written(event.number, frozenset(groups), self._job_s, self._now_s)

    def _recorded_again(self, again: ev.RecordAgain, number: JournalNumber) -> None:
        """Let the new record hold the objects of the old record, except its groups that are published."""
        self._again = None
        self._kept_recorded = again.kept
        carried = {(sink, group.number): group.object for sink, each in again.carried.items() for group in each}
        published = {object_of(group.object) for _, group in self._publication.groups()}
        published -= {object_of(each) for each in carried.values()} | self._parts.objects()
        self._registry.hold(RecordHolder(number), self._registry.names(RecordHolder(again.number)) - published)
        self._records.written(number, frozenset(carried), self._job_s, self._now_s)
        if self._close_requests:
            self._records.end_grace()
        self._records.repeated(again.number)
        self._resolve_close_requests()
        self._choose_base()

    def _on_record_failed(self, event: ev.RecordFailed) -> None:
        pending = self._pending.unanswered
        if pending is None or pending.checkpoint_id != event.checkpoint_id:
            return
        self._sent = None
        self._registry.acknowledge(event.stored)
        outcome = Outcome.FAILED if self._phase is CoordinatorPhase.RUNNING else Outcome.ENDED
        self._abort(pending, f"no record was written: {event.reason}", outcome, event.outage)
        self._choose_base()

    def _choose_base(self) -> None:
        """Choose the base of a restart, or of a replaced TaskManager: the newest record, once no record is
        unanswered."""
        if not self._base_wanted or not self._quiet:
            return
        self._base_wanted = False
        if self._phase is CoordinatorPhase.FAILING:
            self._phase = CoordinatorPhase.DEPLOYING
            self._drop_staged(self._ledger.drop())
            self._finishing.dropped()
        self._commands.append(ev.RestoreFrom(self._records.newest))

    def _on_records_expired(self, event: ev.RecordsExpired) -> None:
        for number in sorted(event.numbers):
            if self._records.expired(number):
                self._registry.release(RecordHolder(number))

    def _delete(self) -> None:
        """Delete names that nobody needs, after a record that is due: deletes beside it would delay it."""
        self._commands += self._publication.discard(self._records.named_groups(), self._now_s)
        if names := self._registry.take(self._now_s):
            self._commands.append(ev.DeleteObjects(names))
