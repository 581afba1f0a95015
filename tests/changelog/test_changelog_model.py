"""The writer against a plain model: whatever is done in whatever order, a handle replays exactly its batches.

The model keeps, for each batch that counts, the row that it wrote; a cut is right if replaying its pieces on a base
made at the batch where it starts gives, for every key, the last value up to the cut. Changes are given to the writer at
once, or wait where the table has them. At the end nothing is stored that nobody uses.
"""

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from changelog_kit import LOG, SCHEMA, ManualLog, Waiting, change
from holdfast.changelog.ranges import Range
from holdfast.changelog.writer import NeededLog
from holdfast.changelog_config import RetryPolicy
from holdfast.errors import StorageError
from holdfast.formats.handles import LogPiece
from holdfast.materialize.log_merge import store_merged
from holdfast.testing.stores import Fault
from holdfast.uploads.janitor import AGAIN_S
from holdfast.uploads.uploader import LOGS

KEYS = ("a", "b", "c")
FAULTS = (Fault.FAIL, Fault.LOST_ANSWER, Fault.LATE)


@dataclass
class Cut:
    """A requested persist, and the changes that its handle has to replay."""

    batch: int
    from_sqn: int
    base: dict[str, int]
    expected: dict[str, int]
    merges: int
    future: Future[list[LogPiece]]


class WriterModel(RuleBasedStateMachine):
    """Batches are numbered on, also after a rewind; `rows` holds (batch, SQN, key, value) of those that count."""

    def __init__(self) -> None:
        super().__init__()
        row_bytes = change("a").nbytes
        policy = RetryPolicy.fixed(2, timeout="1s", next_attempt_delay="500ms")
        self.world = ManualLog(policy, preempt_bytes_max=3 * row_bytes - 1, in_flight_bytes_max=4 * row_bytes)
        self.writer = self.world.writer
        for _ in range(100):
            self.world.uploader._puts._hedging[LOGS].upload_started()  # a budget for hedges, as after many uploads
        self.batch = -1
        self.rows: list[tuple[int, int, str, int]] = []
        self.cuts: list[Cut] = []
        self.last_cut = -1
        self.confirmed = -1
        self.truncated = 0
        self.skipped_to = 0
        self.sqns: set[int] = set()
        self.acknowledged: set[str] = set()
        self.closes = False
        self.waiting: Waiting | None = None
        self.merge: tuple[Sequence[Range], list[LogPiece]] | None = None

    @initialize(closes=st.booleans(), deferred=st.booleans())
    def kind(self, closes: bool, deferred: bool) -> None:
        """A run ends with a last cut, or by a close while calls are under way."""
        self.closes = closes
        self.waiting = Waiting() if deferred else None

    @rule(key=st.sampled_from(KEYS), empty=st.booleans())
    def append(self, key: str, empty: bool) -> None:
        self.batch += 1
        sqn = self.writer.next_sqn()
        rows = change(key, self.batch)
        if empty:
            self.writer.append(self.batch, None)
        else:
            self.writer.append(self.batch, rows if self.waiting is None else self.waiting.committed(self.batch, rows))
            assert sqn not in self.sqns
            self.sqns.add(sqn)
            self.rows.append((self.batch, sqn, key, self.batch))

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=3, max_size=5))
    def append_some(self, keys: list[str]) -> None:
        """Append so many changes that they are uploaded ahead."""
        for key in keys:
            self.append(key, False)

    @precondition(lambda self: self.batch >= 0)
    @rule(back=st.integers(0, 2), base_back=st.integers(0, 6))
    def persist(self, back: int, base_back: int) -> None:
        """A cut, also at a batch before the last; from a base on, which may have been made since the last cut."""
        batch = max(self.last_cut, self.batch - back, 0)
        self.last_cut = batch
        start = max(self.skipped_to, self.sqn_after(batch - base_back))
        base = {key: value for _, sqn, key, value in self.rows if sqn < start}
        expected = {key: value for at, _, key, value in self.rows if at <= batch}
        self.cuts.append(Cut(batch, start, base, expected, self.writer.merges, self.writer.persist(batch, start)))

    def sqn_after(self, batch: int) -> int:
        """Return the SQN at which a log begins on top of a base made at that batch, or at the newest one of a completed
        checkpoint.
        """
        return max([self.truncated, *(sqn + 1 for at, sqn, _, _ in self.rows if at <= batch)])

    @rule(fault=st.sampled_from(FAULTS), attempts=st.integers(1, 2))
    def the_store_fails(self, fault: Fault, attempts: int) -> None:
        """The next attempts; two in a row are an upload's end."""
        self.world.faults = [fault] * attempts

    @rule(seconds=st.sampled_from((0.7, 1.5, 20.0)))
    def the_store_is_slow(self, seconds: float) -> None:
        """The next attempt."""
        self.world.took_s = [seconds]

    @rule(seconds=st.sampled_from((0.0, 0.3, 2.0, 30.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.scheduler.advance(seconds)

    @rule()
    def what_was_late_lands(self) -> None:
        self.world.store.land()

    @rule()
    def reset(self) -> None:
        self.writer.reset()

    @precondition(lambda self: self.batch >= 0)
    @rule(back=st.integers(0, 2), base_back=st.integers(0, 6), truncate=st.booleans())
    def checkpoint(self, back: int, base_back: int, truncate: bool) -> None:
        """Take a checkpoint from the cut to its completion, under any faults; maybe with a base at the cut."""
        self.persist(back, base_back)
        self.world.scheduler.advance(60.0)
        self.every_cut_that_was_answered_replays_exactly_its_batches()
        self.confirm(truncate)

    @precondition(lambda self: self.cuts)
    @rule(truncate=st.booleans(), later=st.integers(0, 2))
    def confirm(self, truncate: bool, later: int = 0) -> None:
        """A cut, where it was answered, is in an acknowledgement; its checkpoint completes, with its base.

        `truncate`: another follows at once, whose base was made at this cut. `later`: so many newer cuts are pending.
        """
        cut = self.cuts[max(0, len(self.cuts) - 1 - later)]
        if cut.batch < self.confirmed or not cut.future.done() or cut.future.exception():
            return
        self.acknowledged.update(piece.object for piece in cut.future.result())
        self.world.uploader.acknowledge(piece.object for piece in cut.future.result())
        self.confirmed = max(self.confirmed, cut.batch)
        self.truncated = self.sqn_after(cut.batch) if truncate else cut.from_sqn
        self.writer.forget_replaced(cut.merges)
        self.writer.truncate(self.truncated)
        newer = self.cuts[self.cuts.index(cut) :]
        self.cuts = [each for each in newer if each.from_sqn >= self.truncated]

    @precondition(lambda self: self.confirmed >= 0 and self.merge is None)
    @rule()
    def a_merge_begins(self) -> None:
        """Store the rows of ranges that the completed checkpoint has, or fail with the store."""
        run = self.writer.run_to_merge(self.truncated, self.sqn_after(self.confirmed), 1)
        if run:
            with contextlib.suppress(StorageError):
                self.merge = run, store_merged(LOG, run, SCHEMA, self.world.uploader)

    @precondition(lambda self: self.merge is not None)
    @rule()
    def a_merge_ends(self) -> None:
        """Whatever happened to the log meanwhile."""
        assert self.merge is not None
        run, pieces = self.merge
        self.merge = None
        if not self.writer.merged(run, pieces):
            self.world.uploader.release(piece.object for piece in pieces)

    @precondition(lambda self: self.batch >= 0)
    @rule(base_back=st.integers(0, 6), pending=st.integers(0, 3))
    def checkpoints_are_aborted(self, base_back: int, pending: int) -> None:
        """All but the oldest ones; later ones start from a base that was made at or before the last cut."""
        self.cuts = self.cuts[:pending]
        self.skipped_to = max(self.skipped_to, self.sqn_after(self.last_cut - base_back))
        needed = [NeededLog(cut.from_sqn, cut.batch) for cut in self.cuts]
        self.writer.skip([NeededLog(self.truncated, self.confirmed), *needed], self.skipped_to)

    @precondition(lambda self: self.batch >= 0)
    @rule(base_back=st.integers(0, 2), keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    def a_record_takes_long(self, base_back: int, keys: list[str]) -> None:
        """Later checkpoints are aborted meanwhile, then it turns out to be written, and the job goes back to it."""
        self.persist(0, base_back)
        pending = len(self.cuts)
        self.append_some(keys)
        self.persist(0, 0)
        self.checkpoints_are_aborted(0, pending)
        self.world.scheduler.advance(60.0)
        self.confirm(False)
        self.rewind()

    @rule()
    def rewind(self) -> None:
        """Go back to the last completed checkpoint."""
        if self.waiting is not None:
            self.waiting.rewind(self.confirmed)
        self.writer.rewind(self.confirmed)
        self.rows = [row for row in self.rows if row[0] <= self.confirmed]
        self.last_cut = self.confirmed
        self.skipped_to = 0
        self.cuts = [cut for cut in self.cuts if cut.batch <= self.confirmed]

    @invariant()
    def every_cut_that_was_answered_replays_exactly_its_batches(self) -> None:
        for cut in self.cuts:
            if not cut.future.done():
                continue
            if cut.future.exception() is not None:
                assert isinstance(cut.future.exception(), StorageError)
                continue
            found = dict(cut.base)
            for rows in self.world.rows(cut.future.result()):
                found.update(rows)
            assert found == cut.expected

    def teardown(self) -> None:
        """Quiescence and a sweep: stored objects are held by the log, or were acknowledged."""
        scheduler = self.world.scheduler
        if self.closes:
            self.writer.close()
        if self.merge is not None:
            self.a_merge_ends()
        scheduler.advance(120.0)
        self.world.faults, self.world.took_s = [], []
        if not self.closes and self.batch >= 0:
            self.writer.reset()
            self.persist(0, 6)
            scheduler.result(self.cuts[-1].future)
            self.every_cut_that_was_answered_replays_exactly_its_batches()
        self.world.store.land()
        scheduler.advance(2 * AGAIN_S)
        held = set(self.writer.held())
        stored = set(self.world.names())
        assert held <= stored
        assert stored <= held | self.acknowledged, "orphans"
        assert self.world.metric("uploadBytesInFlight") == self.world.metric("uploadQueueSize") == 0


# A failure is printed as it was found: making it smaller takes longer than a test may.
WriterModel.TestCase.settings = settings(
    max_examples=50, stateful_step_count=50, deadline=None, phases=[Phase.generate], print_blob=True
)
test_whatever_happens_a_handle_replays_exactly_its_batches_and_no_orphan_stays = WriterModel.TestCase
