"""A table that follows checkpoint after checkpoint equals the owner's table at each, and reads only the new log."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
import test_recovery_restore
from test_recovery_restore import BACKENDS, GROUPS, KEYS, MEMORY, POLICY, VALUES, Job, memory

from holdfast.changelog.writer import ChangelogWriter
from holdfast.errors import StorageError
from holdfast.formats.handles import LogPiece, MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.ids import Epoch, Incarnation
from holdfast.materialize import logged_table
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.recovery.continuation import continuation
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import TableFollower, select
from holdfast.settings import StateBackend
from holdfast.state.backends import new_table
from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.table import StateTable, merge_changes
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.testing.stores import FaultyStore, seeded_faults
from holdfast.uploads.uploader import Uploader
from sampling import some
from waiting import until


def piece(name: str, start: int, stop: int, offset: int = 0, groups: tuple[int, int] = (0, 8)) -> LogPiece:
    return LogPiece(name, offset, 10, start, stop, *groups)


def again(known: LogPiece, name: str, offset: int, crc: int | None = 7) -> LogPiece:
    """The same piece at another place."""
    return msgspec.structs.replace(known, object=name, offset=offset, head_crc=crc)


def after(known: LogPiece, sqn: int) -> LogPiece:
    """The same piece, from that SQN on."""
    return msgspec.structs.replace(known, sqn_start=sqn)


def handle(parts: str, *pieces: LogPiece, groups: tuple[int, int] = (0, 8)) -> TableHandle:
    materialized = [MaterializedPart(name, 0, 10, *groups) for name in parts]
    return TableHandle("count", "state", *groups, b"", materialized, list(pieces))


A, B, C = piece("a", 0, 2), piece("b", 2, 5), piece("c", 5, 6)
FIRST, SECOND, LATER = (
    names.gathered_object(Epoch(3), 1),
    names.gathered_object(Epoch(3), 2),
    names.gathered_object(Epoch(4), 1),
)
NARROW = piece("b", 2, 5, groups=(0, 4))
STORED, NEWER = names.changelog_object(Epoch(3), Incarnation(1)), names.changelog_object(Epoch(4), Incarnation(1))
OLD = [piece(STORED, start, stop, offset=start) for start, stop in ((0, 2), (2, 5), (5, 6), (6, 9))]
MERGED = piece(names.changelog_object(Epoch(3), Incarnation(1)), 0, 6)


def halves(known: LogPiece) -> list[LogPiece]:
    """The same range of change sets as two pieces by key group, of which the second is behind the first."""
    second = msgspec.structs.replace(known, offset=known.offset + known.length, key_group_start=4)
    return [msgspec.structs.replace(known, key_group_stop=4), second]


HALVES = halves(MERGED)
AHEAD, NEXT = halves(piece(STORED, 2, 5)), piece(STORED, 5, 7, offset=90)
CUT = [msgspec.structs.replace(each, sqn_stop=4) for each in AHEAD]


@pytest.mark.parametrize(
    ("held", "new", "found"),
    [
        ([handle("m", A)], handle("m", A, B, C), [B, C]),
        ([handle("m", A)], handle("m", A), []),
        ([handle("", A)], handle("m", B), None),
        ([handle("", A, B)], handle("m", B, C), [C]),
        ([handle("", A, B)], handle("m"), None),
        ([handle("m")], handle("m", A), [A]),
        ([handle("m")], handle("n", A), None),
        ([handle("", A)], handle("", piece("a", 0, 4), C), [piece("a", 2, 4), C]),
        ([handle("", A)], handle("", piece("a", 0, 2, offset=10), C), None),
        ([handle("", B)], handle("m", NARROW, C, groups=(0, 4)), [C]),
        (
            [handle("", NARROW, groups=(0, 4)), handle("", groups=(4, 8))],
            handle("", NARROW, C),
            [C],
        ),
        ([handle("", NARROW, groups=(0, 4)), handle("", groups=(4, 8))], handle("m", NARROW, C), None),
        ([handle("", A, again(B, FIRST, 5))], handle("", A, again(B, SECOND, 9), C), [C]),
        ([handle("", A, again(B, FIRST, 5))], handle("m", again(B, SECOND, 9), C), [C]),
        ([handle("", again(B, FIRST, 5, None))], handle("", again(B, SECOND, 9, None), C), None),
        ([handle("", again(B, FIRST, 5))], handle("", again(B, SECOND, 9, 8), C), None),
        ([handle("", again(B, FIRST, 5))], handle("", again(B, LATER, 9), C), None),
        ([handle("m", *OLD[:2])], handle("m", MERGED, OLD[3]), [after(MERGED, 5), OLD[3]]),
        ([handle("m", *OLD[:3])], handle("m", MERGED, OLD[3]), [OLD[3]]),
        ([handle("m", *OLD[:2])], handle("n", MERGED, OLD[3]), None),
        ([handle("m", *OLD[:2])], handle("m", msgspec.structs.replace(MERGED, object=NEWER), OLD[3]), None),
        ([handle("m", *OLD[:2])], handle("m", *HALVES, OLD[3]), [*(after(each, 5) for each in HALVES), OLD[3]]),
        ([handle("m", *halves(OLD[0]))], handle("m", *HALVES, OLD[3]), [*(after(each, 2) for each in HALVES), OLD[3]]),
        ([handle("m", OLD[1])], handle("m", MERGED, OLD[3]), None),
        ([handle("m", *CUT)], handle("m", *AHEAD, NEXT), [*(after(each, 4) for each in AHEAD), NEXT]),
        ([handle("m", A, *CUT)], handle("n", *AHEAD, NEXT), [*(after(each, 4) for each in AHEAD), NEXT]),
        ([handle("m", *AHEAD)], handle("n", *AHEAD, NEXT), [NEXT]),
        ([handle("m", A, B)], handle("n", C, piece("b", 2, 6)), [piece("b", 5, 6)]),
        ([handle("m", OLD[1], NARROW)], handle("m", msgspec.structs.replace(MERGED, key_group_start=4)), None),
        ([], handle("", A), [A]),
        ([], handle("m"), None),
    ],
)
def test_the_new_pieces_follow_the_last_piece_that_both_handles_name(held, new, found):
    assert continuation(held, new) == found


class Follower:
    """Follows a share of the key groups of a job's table; counts how often it was made anew."""

    def __init__(self, store: ObjectStore, backend: StateBackend, start: int, stop: int) -> None:
        self.store, self.backend, self.start, self.stop = store, backend, start, stop
        self.made = self.bytes = 0
        self._make()

    def _make(self) -> None:
        self.table = new_table(self.backend, None, KEYS, VALUES, GROUPS)
        self.follower = TableFollower(self.table, self.start, self.stop)
        self.made += 1

    def follow(self, handles: Sequence[TableHandle]) -> None:
        own = select(handles, "count", "state", self.start, self.stop)
        if self.follower.missing(own) is None:
            self.table.close()
            self._make()
        with ObjectCache(self.store) as fetch:
            try:
                self.follower.follow(own, fetch)
            finally:
                self.bytes += fetch.fetched.bytes_from_store

    def totals(self) -> Counter[int]:
        rows = self.table.snapshot().to_pylist()
        assert len(rows) == len(self.table)
        return Counter({row["k"]: row["n"] for row in rows})


def share(model: Counter[int], start: int, stop: int) -> Counter[int]:
    keys = list(model)
    groups = key_groups(encode_keys(pa.record_batch({"k": pa.array(keys, pa.int64())}), ["k"]), GROUPS)
    return Counter({key: model[key] for key, group in zip(keys, groups, strict=True) if start <= group < stop})


@pytest.mark.parametrize("seed", some(range(6), *range(3)))
def test_a_follower_holds_the_owners_state_at_each_checkpoint_whatever_happens_between(seed, monkeypatch):
    """Materializations, aborted checkpoints, rewinds, restarts at another parallelism, damaged reads."""
    monkeypatch.setattr(logged_table, "GIVEN_UP_MAX", 1 + seed % 3)
    pieces_max = 5 if seed % 2 else POLICY.log_handles_max
    monkeypatch.setattr(test_recovery_restore, "POLICY", replace(POLICY, log_handles_max=pieces_max))
    rng = random.Random(seed)
    inner = memory()
    job = Job(inner, inner, backends=BACKENDS)
    reads = FaultyStore(inner, seeded_faults(seed, 0.02))
    follower = Follower(reads, rng.choice(BACKENDS), *sorted(rng.sample(range(GROUPS + 1), 2)))
    job.start(rng.choice((1, 2, 3)), changelog=seed % 4 > 0)
    for _ in range(25):
        match rng.randrange(8):
            case 0:
                job.rewind()
            case 1 if job.recorded:
                job.start(rng.choice((1, 2, 3)), changelog=rng.random() < 0.8)
            case 2:
                job.checkpoint(complete=False)
            case _:
                keys = [rng.randrange(200) for _ in range(rng.randrange(60))]
                job.run(keys, [rng.randrange(200) for _ in range(rng.randrange(10))])
        if rng.random() < 0.6 and job.checkpoint() and rng.random() < 0.7:
            while True:
                try:
                    follower.follow(job.recorded)
                    break
                except StorageError:
                    continue
            assert follower.totals() == share(+job.recorded_model, follower.start, follower.stop)
    job.stop()
    follower.table.close()


def test_a_follower_that_lags_goes_on_from_what_the_owner_has_merged(monkeypatch):
    monkeypatch.setattr(test_recovery_restore, "POLICY", MaterializationPolicy(log_handles_max=8))
    store = memory()
    job = Job(store, store, backends=[MEMORY])
    follower = Follower(store, MEMORY, 0, GROUPS)
    job.start(1)
    (subtask,) = job.subtasks
    for number in range(120):
        job.run([number % 40, 40 + number], [number % 7])
        assert job.checkpoint()
        until(lambda: not subtask.keyed._merging)
        if number % 13 == 0:
            follower.follow(job.recorded)
            assert follower.totals() == +job.recorded_model
    assert subtask.keyed._log.merges > 10
    assert job.uploader.metrics().get("startedMaterialization", 0.0) == 0.0
    assert follower.made == 1
    job.stop()
    follower.table.close()


def test_a_follower_reads_all_pieces_of_a_range_stored_ahead_that_a_cut_divides():
    """A small batch and a large one are stored ahead as one range, in several pieces by key group."""
    store = memory()
    uploader = Uploader(store, 1, 1, object_bytes_max=16_000, preempt_bytes_max=100_000, persist_delay_s=0.0)
    log = LogId("count", "state", 0, GROUPS)
    writer = ChangelogWriter(log, uploader, merge_changes)
    follower = Follower(store, MEMORY, 0, GROUPS)
    table = StateTable(KEYS, VALUES, GROUPS)
    for batch, keys in enumerate((range(500), range(500, 6500))):
        table.begin(batch)
        slots = table.lookup(pa.record_batch({"k": pa.array(keys, pa.int64())}))
        table.column("n").values[slots] = 1
        table.column("n").valid[slots] = table.present[slots] = True
        changes = table.changes()
        table.commit()
        writer.append(batch, changes)
    for batch, rows in enumerate((500, 6500)):
        pieces = writer.persist(batch).result(60)
        assert len(pieces) > 3
        schema = table.stored_schema().serialize().to_pybytes()
        follower.follow([TableHandle("count", "state", 0, GROUPS, schema, [], pieces)])
        assert follower.totals() == Counter(range(rows))
    assert follower.made == 1
    writer.close()
    uploader.close()


def test_a_follower_reads_the_new_pieces_alone():
    store = memory()
    job = Job(store, store, backends=[MEMORY])
    job.start(1)
    job.run(list(range(5000)), [])
    assert job.checkpoint()
    follower = Follower(store, MEMORY, 0, GROUPS)
    follower.follow(job.recorded)
    whole = follower.bytes
    job.run([1], [])
    assert job.checkpoint()
    follower.follow(job.recorded)
    assert follower.made == 1
    assert follower.bytes - whole < whole / 20
    assert follower.totals() == job.model
    job.stop()


def test_a_table_that_was_being_filled_when_an_object_was_missing_has_to_be_made_anew():
    store = memory()
    job = Job(store, store, backends=[MEMORY])
    job.start(1)
    job.run(list(range(50)), [])
    assert job.checkpoint()
    follower = TableFollower(new_table(MEMORY, None, KEYS, VALUES, GROUPS), 0, GROUPS)
    lost = [msgspec.structs.replace(each, log=[piece("dstl/none", 0, 1, groups=(0, GROUPS))]) for each in job.recorded]
    with ObjectCache(store) as fetch, pytest.raises(StorageError, match="dstl/none"):
        follower.follow(lost, fetch)
    assert follower.missing(job.recorded) is None
    job.stop()


def materialized(job: Job) -> float:
    """The number of materializations that have ended, once none is under way."""
    metrics = job.uploader.metrics
    until(lambda: metrics().get("completedMaterialization", 0.0) == metrics().get("startedMaterialization", 0.0))
    return metrics().get("completedMaterialization", 0.0)


@pytest.mark.parametrize("earlier_completes", [True, False])
def test_a_table_that_does_not_change_takes_its_newest_base_and_no_later_cut_an_older_base(earlier_completes):
    store = memory()
    job = Job(store, store)
    follower = Follower(store, MEMORY, 0, GROUPS)
    job.start(1)
    while not materialized(job):
        job.run([0, 1], [])
        assert job.checkpoint()
    job.idle()
    idle = job.cut(max(job.models))
    job.run([2], [])
    changed = job.cut(max(job.models))
    job.end(idle, complete=earlier_completes)
    assert job.end(changed, complete=True)
    follower.follow(job.recorded)
    assert follower.totals() == +job.recorded_model
    (handle,) = job.recorded
    assert handle.materialized and len(handle.log) == 2, "the newest base, the lead, and the change after it"
    job.stop()
    follower.table.close()


@pytest.mark.parametrize("seed", some(range(4), 0, 1))
def test_a_table_materializes_without_a_follower_starting_anew(seed, monkeypatch):
    """Whatever is aborted, undone or cut while another checkpoint is under way."""
    monkeypatch.setattr(logged_table, "GIVEN_UP_MAX", 100)
    rng = random.Random(seed)
    store = memory()
    job = Job(store, store, backends=BACKENDS)
    follower = Follower(store, BACKENDS[seed % len(BACKENDS)], 0, GROUPS)
    job.start(2)
    for _ in range(40):
        job.run([rng.randrange(200) for _ in range(rng.randrange(1, 30))], [rng.randrange(200)])
        match rng.randrange(10):
            case 0:
                job.rewind()
            case 1:
                job.checkpoint(complete=False)
            case 2:
                earlier = job.cut(max(job.models))
                job.run([1, 2, 3], [])
                later = job.cut(max(job.models))
                job.end(earlier, complete=rng.random() < 0.5)
                job.end(later, complete=rng.random() < 0.5)
            case 3 | 4 | 5 | 6:
                assert job.checkpoint()
        if job.recorded:
            follower.follow(job.recorded)
            assert follower.totals() == +job.recorded_model
    assert follower.made == 1
    until(lambda: job.uploader.metrics()["completedMaterialization"] > 0)
    job.stop()
    follower.table.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_table_without_news_keeps_no_base_beside_that_of_its_checkpoint(restarts):
    store = memory()
    job = Job(store, store)
    job.start(1)
    follower = Follower(store, MEMORY, 0, GROUPS)
    job.run([0], [])
    assert job.checkpoint()
    follower.follow(job.recorded)
    if restarts:
        job.start(1)
    while not materialized(job):
        job.run([1], [])
        materialized(job)
        assert job.checkpoint()
        follower.follow(job.recorded)
    for _ in range(3):
        job.idle()
        assert job.checkpoint()
        follower.follow(job.recorded)
    assert job.held() == job.referenced()
    job.run([2], [])
    assert job.checkpoint()
    follower.follow(job.recorded)
    assert (follower.made, follower.totals()) == (1, job.model)
    job.stop()


def test_a_table_whose_checkpoints_are_given_up_lets_go_of_the_log_that_led_on():
    store = memory()
    job = Job(store, store)
    job.start(1)
    follower = Follower(store, MEMORY, 0, GROUPS)
    job.run([0], [])
    assert job.checkpoint()
    follower.follow(job.recorded)
    for key in range(1, 40):
        job.run([key], [])
        materialized(job)
        job.checkpoint(complete=False)
        log = [name for name in job.held() - job.referenced() if "dstl/" in name]
        assert len(log) <= logged_table.GIVEN_UP_MAX + POLICY.log_handles_max
    assert job.checkpoint()
    follower.follow(job.recorded)
    assert (follower.made, follower.totals()) == (2, job.model)
    job.stop()
