"""Rules of Holdfast's, each broken in a single place, for the simulation to find out."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from holdfast.changelog import waiting, writer
from holdfast.changelog.writer import ChangelogWriter
from holdfast.checkpoint import events
from holdfast.checkpoint.coordination import Coordination
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.ledger import Ledger
from holdfast.checkpoint.publication import Publication
from holdfast.checkpoint.registry import ObjectRegistry, PendingHolder
from holdfast.errors import StorageError
from holdfast.execution import events as ev
from holdfast.execution.units import Units
from holdfast.formats import handles
from holdfast.functions.joins import asof_operator
from holdfast.functions.joins.bounds import Within
from holdfast.functions.joins.kept_rows import KeptRows
from holdfast.functions.process.of_subtask import subtask_list
from holdfast.functions.process.of_subtask.function_operator import FunctionOperator
from holdfast.functions.process.of_subtask.subtask_broadcast import BroadcastEntries
from holdfast.functions.process.of_subtask.subtask_list import SubtaskList
from holdfast.functions.timing.time_index import FollowedIndex
from holdfast.functions.windows.panes import PaneOperator
from holdfast.jobmaster.checkpoints.job_facts import JobFacts
from holdfast.jobmaster.checkpoints.outages import Outages
from holdfast.jobmaster.checkpoints.recorder import Recorder
from holdfast.jobmaster.commands import Commands
from holdfast.journal import rules
from holdfast.materialize import log_merge
from holdfast.materialize.base import Base, Bases
from holdfast.materialize.keyed_state import KeyedState
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.replica import Replica
from holdfast.sinks.base import PublishContext
from holdfast.state.table import StateTable
from holdfast.storage.routing import RoutingStore
from holdfast.uploads.janitor import DeletionQueue
from holdfast.uploads.ownership import Ownership
from holdfast.uploads.uploader import LOGS, Uploader
from holdfast.watermarks import Watermarks

Mutation = Callable[[], AbstractContextManager[Any]]


def _routes_by_the_newest_start() -> AbstractContextManager[Any]:
    before = RoutingStore._storages

    def storages(self: RoutingStore, epoch: Any) -> Any:
        found = before(self, epoch)
        told = [number for number, each in self._known.items() if each is not None]
        return self._known[max(told)] if told else found

    return mock.patch.object(RoutingStore, "_storages", storages)


def _deletes_on_abort() -> AbstractContextManager[Any]:
    before = Coordination.abort

    def abort(self: Coordination, pending: Any, *arguments: Any, **named: Any) -> None:
        names = self.registry.names(PendingHolder(pending.checkpoint_id))
        before(self, pending, *arguments, **named)
        if names:
            self.commands.append(events.DeleteObjects(sorted(names)))

    return mock.patch.object(Coordination, "abort", abort)


def _uses_a_base_too_early() -> AbstractContextManager[Any]:
    return mock.patch.object(Bases, "newest_at", lambda self, *_: self.newest)


def _narrows_wrongly() -> AbstractContextManager[Any]:
    before = handles._narrowed

    def narrowed(ranges: Any, start: int, stop: int) -> Any:
        """Lose the first key group of a range that begins within the handle's."""
        return [
            msgspec.structs.replace(each, key_group_start=each.key_group_start + (start > 0))
            for each in before(ranges, start, stop)
        ]

    return mock.patch.object(handles, "_narrowed", narrowed)


def _forgets_what_logs_hold() -> AbstractContextManager[Any]:
    return mock.patch.object(ObjectRegistry, "update_log", lambda self, log, order, names, besides: None)


def _truncates_before_a_checkpoint_uses_the_base() -> AbstractContextManager[Any]:
    before = LoggedTable._materialized

    def materialized(self: LoggedTable, *arguments: Any) -> None:
        before(self, *arguments)
        if not self._closed:
            self._log.truncate(self._bases.newest.sqn)

    return mock.patch.object(LoggedTable, "_materialized", materialized)


def _believes_a_refusal() -> AbstractContextManager[Any]:
    def read_back(store: Any, number: int, own: Any) -> rules.PutOutcome:
        return rules.PutOutcome.TAKEN

    return mock.patch("holdfast.journal.fence._read_back", read_back)


def _gives_up_a_record_that_may_be_written() -> AbstractContextManager[Any]:
    before = Recorder.store_and_record

    def store_and_record(self: Recorder, command: Any, parts: Any) -> None:
        self._append = self._journal.append  # type: ignore[method-assign]
        try:
            before(self, command, parts)
        except StorageError as error:
            self._journal._sent = None
            self._post(events.RecordFailed(command.checkpoint_id, str(error)))

    @contextmanager
    def both() -> Iterator[None]:
        with (
            mock.patch.object(Recorder, "store_and_record", store_and_record),
            mock.patch.dict("holdfast.journal.journal.Journal.__init__.__kwdefaults__", {"attempts_max": 1}),
        ):
            yield

    return both()


def _publishes_under_the_number_of_the_record_that_carries() -> AbstractContextManager[Any]:
    before = JobFacts.record

    def record(self: JobFacts, command: Any, stored: Any, number: Any, *previous: Any) -> Any:
        made = before(self, command, stored, number, *previous)
        groups = {
            sink: [msgspec.structs.replace(each, number=number) for each in refs] for sink, refs in made.groups.items()
        }
        return msgspec.structs.replace(made, groups=groups)

    return mock.patch.object(JobFacts, "record", record)


def _forgets_a_restored_log() -> AbstractContextManager[Any]:
    before = KeyedState.restored

    def restored(self: KeyedState, *arguments: Any, **named: Any) -> None:
        before(self, *arguments, **named)
        found = self._bases.current
        self._bases.current = Base(found.sqn, found.batch, found.materialized, (), found.files)

    return mock.patch.object(KeyedState, "restored", restored)


def _deletes_what_was_acknowledged() -> AbstractContextManager[Any]:
    return mock.patch.object(Ownership, "acknowledge", lambda self, names: None)


def _does_not_look_at_late_uploads_again() -> AbstractContextManager[Any]:
    return mock.patch.object(DeletionQueue, "look_again", lambda self: None)


def _lets_a_released_object_go_at_once() -> AbstractContextManager[Any]:
    before = ObjectRegistry.release

    def release(self: ObjectRegistry, holder: Any) -> None:
        names = sorted(self.names(holder))
        before(self, holder)
        for name in names:
            if name in self._owned and not isinstance(holder, PendingHolder):
                self._deletable[name] = None

    return mock.patch.object(ObjectRegistry, "release", release)


def _drops_what_is_unpublished() -> AbstractContextManager[Any]:
    return mock.patch.object(Publication, "unpublished", lambda self: {})


def _uploads_nothing_again_after_a_failure() -> AbstractContextManager[Any]:
    def reset(self: ChangelogWriter) -> None:
        with self._lock:
            self._entries = [each for each in self._entries if getattr(each, "error", None) is None]

    return mock.patch.object(ChangelogWriter, "reset", reset)


def _rewinds_the_log_alone() -> AbstractContextManager[Any]:
    return mock.patch.object(StateTable, "rewind", lambda self, to_batch: None)


def _keeps_a_base_that_was_undone() -> AbstractContextManager[Any]:
    return mock.patch.object(Bases, "drop_after", lambda self, batch: [])


def _skips_what_a_rewind_or_a_pending_checkpoint_needs() -> AbstractContextManager[Any]:
    before = ChangelogWriter.skip

    def skip(self: ChangelogWriter, needed: Any, from_sqn: int) -> None:
        before(self, [], from_sqn)

    return mock.patch.object(ChangelogWriter, "skip", skip)


def _forgets_the_losers_of_hedging() -> AbstractContextManager[Any]:
    return mock.patch.object(DeletionQueue, "suspect", lambda self, name: None)


def _publishes_by_the_settings_of_today() -> AbstractContextManager[Any]:
    def of_today(context: PublishContext, layout: bytes, **stored: Any) -> PublishContext:
        return replace(context, **stored)

    return mock.patch("holdfast.jobmaster.checkpoints.publisher.replace", of_today)


def _gathers_across_cuts() -> AbstractContextManager[Any]:
    before = Ledger.gather
    return mock.patch.object(Ledger, "gather", lambda self, cuts, run, now_s: before(self, [], run, now_s))


def _forgets_what_is_being_gathered() -> AbstractContextManager[Any]:
    return mock.patch.object(Ledger, "gathering", frozenset())


def _forgets_what_gathered_objects_name() -> AbstractContextManager[Any]:
    return mock.patch("holdfast.sinks.gathered.Named.add", lambda self, sink, committables: [])


def _keeps_gathered_committables_twice() -> AbstractContextManager[Any]:
    def gathered(self: Ledger, event: Any) -> None:
        kept = self._gathering(event.sink, event.gathering)
        if kept is not None and kept.gathering is not None:
            one = replace(kept.gathering[1][-1], committables=[event.committable], gathered=True)
            kept.gathering = None
            kept.replace([*kept.entries, one])

    return mock.patch.object(Ledger, "gathered", gathered)


def _does_not_follow_the_table_back() -> AbstractContextManager[Any]:
    before = FollowedIndex.begin

    def begin(self: FollowedIndex) -> None:
        if self._batch is not None and self._table.commits is None:
            self._batch = replace(self._batch, commits=None)  # a rewound table looks like a table without changes
            return
        before(self)

    return mock.patch.object(FollowedIndex, "begin", begin)


def _closes_again_what_the_last_batch_closed() -> AbstractContextManager[Any]:
    return mock.patch.object(Watermarks, "closed", lambda self: {})


def _goes_back_to_an_older_checkpoint() -> AbstractContextManager[Any]:
    def base_chosen(self: Commands, promise: Any) -> None:
        self._parts.facts.tell(ev.BaseChosen(self.base))

    return mock.patch.object(Commands, "_base_chosen", base_chosen)


def _cuts_where_somebody_refuses() -> AbstractContextManager[Any]:
    before = Coordinator._on_batch_committed

    def on_batch_committed(self: Coordinator, event: Any) -> None:
        before(self, replace(event, refusals=()))

    return mock.patch.object(Coordinator, "_on_batch_committed", on_batch_committed)


def _ends_at_the_first_failure_of_the_store() -> AbstractContextManager[Any]:
    def ride_out(self: Outages, step: str, error: Exception, began_s: float, wait: Any) -> None:
        raise error

    return mock.patch.object(Outages, "ride_out", ride_out)


def _adds_up_outages() -> AbstractContextManager[Any]:
    return mock.patch.object(Outages, "answered", lambda self, step: None)


def _waits_for_ever() -> AbstractContextManager[Any]:
    before = Outages.__init__

    def init(self: Outages, job: str, url: str, clock: Any, limit: Any) -> None:
        before(self, job, url, clock, lambda: (math.inf, None))

    return mock.patch.object(Outages, "__init__", init)


def _joins_gaps_across_a_cut() -> AbstractContextManager[Any]:
    before = writer._with_gaps
    return mock.patch.object(writer, "_with_gaps", lambda entries, skipped, cuts: before(entries, skipped, ()))


def _overlooks_single_rows() -> AbstractContextManager[Any]:
    def looked_for(kept: KeptRows, heads: Any) -> Any:
        counts = kept._heads.column(kept._head_names[2]).values[heads]
        groups, slots = of_keys(kept, heads)
        found = counts[groups] > 0
        return groups[found], slots[found]

    of_keys = KeptRows.of_keys
    return mock.patch.object(KeptRows, "of_keys", looked_for)


def _does_not_mark_kept_rows() -> AbstractContextManager[Any]:
    return mock.patch.object(KeptRows, "set_matched", lambda self, slots: None)


def _replaces_by_the_oldest() -> AbstractContextManager[Any]:
    def oldest_of_each(groups: Any, at: Any) -> Any:
        order = np.lexsort((-at, groups))
        return order[np.diff(groups[order], append=-1) != 0]

    return mock.patch.object(asof_operator, "_newest_of_each", oldest_of_each)


def _lets_rows_leave_too_early() -> AbstractContextManager[Any]:
    before = Within.leaves
    return mock.patch.object(Within, "leaves", lambda self, side, times: before(self, side, times) - 3_000_000)


def _counts_late_rows_as_on_time() -> AbstractContextManager[Any]:
    return mock.patch.object(PaneOperator, "_late_rows", lambda self, rows, closed_us: None)


def _leaves_replicas_as_they_are() -> AbstractContextManager[Any]:
    return mock.patch.object(Replica, "rewind", lambda self, to_batch: None)


def _does_not_look_whether_rules_went_back() -> AbstractContextManager[Any]:
    return mock.patch.object(BroadcastEntries, "_follow_table", lambda self: None)


def _shows_the_rules_of_the_batch_before() -> AbstractContextManager[Any]:
    """Each batch's broadcast rows are taken behind its other rows."""
    before = BroadcastEntries.begin

    def begin(self: BroadcastEntries, batches: Any) -> None:
        self._all()
        shown = dict(self._entries or {})
        before(self, batches)
        self._entries = shown

    return mock.patch.object(BroadcastEntries, "begin", begin)


def _keeps_entries_of_an_undone_batch() -> AbstractContextManager[Any]:
    before = SubtaskList.begin

    def begin(self: SubtaskList) -> None:
        self._commits = -1
        before(self)

    return mock.patch.object(SubtaskList, "begin", begin)


def _opens_once() -> AbstractContextManager[Any]:
    before = FunctionOperator.open

    def open_once(self: FunctionOperator, opening: Any) -> None:
        if not self._is_open:
            before(self, opening)

    return mock.patch.object(FunctionOperator, "open", open_once)


def _sees_the_own_entries_only() -> AbstractContextManager[Any]:
    before = FunctionOperator.open

    def open_alone(self: FunctionOperator, opening: Any) -> None:
        before(self, replace(opening, whole={}))

    return mock.patch.object(FunctionOperator, "open", open_alone)


def _gives_every_entry_to_the_first_owner() -> AbstractContextManager[Any]:
    return mock.patch.object(subtask_list, "key_group_of", lambda position, key_groups_owned: 0)


def _lets_senders_go_on() -> AbstractContextManager[Any]:
    def left(self: Units, event: Any) -> list[Any]:
        self._level = None
        return []

    return mock.patch.object(Units, "_on_left", left)


def _lets_go_of_parts_that_logs_do_not_know() -> AbstractContextManager[Any]:
    return mock.patch.object(ObjectRegistry, "hold_part", lambda *_: None)


def _acknowledges_parts_that_are_on_their_way() -> AbstractContextManager[Any]:
    def put_part(self: Uploader, data: bytes) -> str:
        name = self._new_log_object()
        self._scheduler.submit(LOGS, lambda: self._store.put(name, data))
        return name

    return mock.patch.object(Uploader, "put_part", put_part)


def _divides_what_was_stored_ahead() -> AbstractContextManager[Any]:
    return mock.patch.object(writer, "divides", lambda batch, entry: False)


def _stores_the_newest_ahead() -> AbstractContextManager[Any]:
    return mock.patch.multiple(waiting, LAG_BATCHES=0, LAG_BATCHES_MIN=0)


def _lets_go_of_what_was_merged() -> AbstractContextManager[Any]:
    before = ChangelogWriter.merged

    def merged(self: ChangelogWriter, *arguments: Any) -> bool:
        used = before(self, *arguments)
        self.forget_replaced(self.merges)
        return used

    return mock.patch.object(ChangelogWriter, "merged", merged)


def _loses_the_last_change_of_a_merge() -> AbstractContextManager[Any]:
    before = log_merge.encode_pieces
    return mock.patch.object(log_merge, "encode_pieces", lambda log, sets, **named: before(log, sets[:-1], **named))


def _merges_past_the_completed_checkpoint() -> AbstractContextManager[Any]:
    before = ChangelogWriter.run_to_merge
    return mock.patch.object(
        ChangelogWriter, "run_to_merge", lambda self, start, stop, frees: before(self, start, self.next_sqn(), frees)
    )


MUTATIONS: dict[str, Mutation] = {
    "merged pieces go although a checkpoint names them": _lets_go_of_what_was_merged,
    "a merged piece lacks its last change": _loses_the_last_change_of_a_merge,
    "a merge goes past the completed checkpoint": _merges_past_the_completed_checkpoint,
    "a part is acknowledged while it is on its way": _acknowledges_parts_that_are_on_their_way,
    "an object goes before the logs in it know where they lie": _lets_go_of_parts_that_logs_do_not_know,
    "reports about a level that was left count for the next": _lets_senders_go_on,
    "replicas of broadcast state do not go back": _leaves_replicas_as_they_are,
    "the view of broadcast state does not follow its table back": _does_not_look_whether_rules_went_back,
    "broadcast rows come behind the other rows of their batch": _shows_the_rules_of_the_batch_before,
    "a join overlooks single rows, which have no head": _overlooks_single_rows,
    "a join forgets that kept rows have met others": _does_not_mark_kept_rows,
    "a join as of a time keeps the oldest row": _replaces_by_the_oldest,
    "rows leave a join too early": _lets_rows_leave_too_early,
    "late rows open closed windows again": _counts_late_rows_as_on_time,
    "a list keeps the entries of an undone batch": _keeps_entries_of_an_undone_batch,
    "lists are not opened again after a rewind": _opens_once,
    "the union leaves out what others have": _sees_the_own_entries_only,
    "entries are in key groups that others own": _gives_every_entry_to_the_first_owner,
    "an index does not follow its table back": _does_not_follow_the_table_back,
    "windows that are closed are closed again": _closes_again_what_the_last_batch_closed,
    "a boundary is cut that somebody refuses": _cuts_where_somebody_refuses,
    "an aborted checkpoint deletes its objects": _deletes_on_abort,
    "a checkpoint uses a materialization past its cut": _uses_a_base_too_early,
    "handles are narrowed wrongly": _narrows_wrongly,
    "what logs hold is not noted": _forgets_what_logs_hold,
    "a log is truncated before a checkpoint uses the base": _truncates_before_a_checkpoint_uses_the_base,
    "a false refusal is believed": _believes_a_refusal,
    "a record that may be written is given up": _gives_up_a_record_that_may_be_written,
    "a group is published under a later number": _publishes_under_the_number_of_the_record_that_carries,
    "a restored log is forgotten": _forgets_a_restored_log,
    "a TaskManager deletes what it acknowledged": _deletes_what_was_acknowledged,
    "a late upload is not looked for again": _does_not_look_at_late_uploads_again,
    "objects go although others hold them": _lets_a_released_object_go_at_once,
    "records drop what is not published yet": _drops_what_is_unpublished,
    "a rewind forgets the table": _rewinds_the_log_alone,
    "a rewind keeps a materialization of what was undone": _keeps_a_base_that_was_undone,
    "the log of the completed checkpoint is skipped": _skips_what_a_rewind_or_a_pending_checkpoint_needs,
    "uploads that were reported as failed are forgotten": _forgets_the_losers_of_hedging,
    "changes whose upload failed are lost": _uploads_nothing_again_after_a_failure,
    "a restart takes the checkpoint that the query began from": _goes_back_to_an_older_checkpoint,
    "a group is published by the settings of today": _publishes_by_the_settings_of_today,
    "committables are gathered across a cut": _gathers_across_cuts,
    "what is being gathered is swept": _forgets_what_is_being_gathered,
    "what gathered committables name is swept": _forgets_what_gathered_objects_name,
    "gathered committables are kept twice": _keeps_gathered_committables_twice,
    "a query ends at the first failure of its store": _ends_at_the_first_failure_of_the_store,
    "outages of the store add up": _adds_up_outages,
    "a query waits for its store for ever": _waits_for_ever,
    "a log forgets that a rewind may go into a gap": _joins_gaps_across_a_cut,
    "a cut divides what was stored ahead as a whole": _divides_what_was_stored_ahead,
    "the newest changes are stored ahead as well": _stores_the_newest_ahead,
    "objects are looked for where the newest start keeps its own": _routes_by_the_newest_start,
}
