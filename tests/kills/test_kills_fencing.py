"""Two JobMasters on a common storage: the last that took over completes checkpoints, the other nothing. In process."""

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from kills_in_process import Driver, Pause
from kills_pipelines import Calls, Shape, check
from test_kills_deaths import NOT_HERE, PROVOKED, shapes

from holdfast import failpoints
from holdfast.checkpoint import records
from holdfast.errors import Fenced, QueryFailed, StorageError
from holdfast.journal.fence import journal_numbers, newest_checkpoint, read_record
from holdfast.journal.records import Takeover
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import Fault, FaultyStore
from sampling import quick, some

SLOW = Shape(rows=1200, rows_per_batch=40, interval_s=0.005, log_handles_max=2)
LASTING = replace(SLOW, rows=6000)
"""Lasts for longer than another driver needs to start."""
CANDIDATES = {"journal.takeover.listed", "journal.takeover.put"}
"""Before a takeover counts, whoever is paused there and goes on takes over from the other one, and rightly so."""


@pytest.fixture(autouse=True)
def _disarmed(monkeypatch):
    """Records expire at once: these jobs last for some seconds, and meet the steps of expiry all the time."""
    monkeypatch.setattr(records, "EXPIRY_GRACE_S", 0.0)
    yield
    failpoints.disarm()


def storage(folder: Path) -> ObjectStore:
    return open_store((folder / "storage").as_uri())


def epochs(store: ObjectStore) -> list[tuple[int, int]]:
    """The journal: (number, epoch) of each record."""
    return [(number, read_record(store, number).epoch) for number in journal_numbers(store)]


def takeovers(store: ObjectStore) -> list[int]:
    return [number for number in journal_numbers(store) if isinstance(read_record(store, number), Takeover)]


def recorded_rows(store: ObjectStore) -> int:
    """How many rows the newest checkpoint has."""
    _, record = newest_checkpoint(journal_numbers(store), lambda number: read_record(store, number))
    return 0 if record is None else sum(int(each) for of in record.offsets.values() for each in of.values())


def held_at(point: str, shape: Shape, folder: Path) -> tuple[Driver, Pause]:
    """A driver that stands still at a failpoint."""
    pause = Pause()
    if point in PROVOKED:
        failpoints.arm(*PROVOKED[point])
    failpoints.arm(point, pause)
    first = Driver(shape, folder).start()
    while not pause.held.wait(0.01):
        assert not first.ended, f"{point} was never met: {first.error}"
    failpoints.disarm()
    return first, pause


POINTS = {point: point for point in sorted(failpoints.KNOWN.keys() - NOT_HERE.keys())}
QUICK = [point for point in POINTS if point.startswith("sink.") and not point.endswith(".after")]
"""The steps of sinks, which are real here. A pause after a step is, but for a few lines, the pause before the next one.
Simulated JobMasters stand still at any of the other steps while another takes over."""
OTHERS = ["jobmaster.publish.before", "jobmaster.record.stored", "journal.takeover.put"]
"""Steps of the driver itself, which alone completes and publishes."""
ELSEWHERE = ["taskmanager.cut.uploaded", "changelog.upload.before"]
"""Steps of its processes: whatever they still do after the pause reaches the same driver, which is fenced."""


@pytest.mark.parametrize("point", quick(*QUICK, *OTHERS, *ELSEWHERE, of=POINTS))
def test_one_that_stood_still_at_a_failpoint_while_another_took_over_changes_nothing_any_more(point, tmp_path):
    shape = random.Random(point).choice(shapes(point))
    first, pause = held_at(point, shape, tmp_path)
    Driver(shape.in_few_batches(), tmp_path).start().finish()
    check(shape, tmp_path)
    before = epochs(storage(tmp_path))
    pause.go_on()
    first.join()
    check(shape, tmp_path)
    if point not in CANDIDATES:
        assert epochs(storage(tmp_path)) == before, "the first one completed something"
        assert first.error is None or isinstance(first.error, QueryFailed)
    more = shape.with_rows(shape.rows + 3 * shape.rows_per_batch)
    Driver(more.in_few_batches(), tmp_path).start().finish()
    check(more, tmp_path)


def test_one_that_has_only_to_publish_notices_that_another_took_over_and_cleaned_up(tmp_path):
    shape = Shape(rows=400, sink="parquet", interval_s=0.005)
    first, pause = held_at("sink.parquet.copied", shape, tmp_path)
    while recorded_rows(storage(tmp_path)) < shape.rows:
        assert not first.ended, first.error
    Driver(shape.with_rows(shape.rows + 3 * shape.rows_per_batch), tmp_path).start().finish()
    pause.go_on()
    first.join()
    assert isinstance(first.error, QueryFailed) and isinstance(first.error.__cause__, Fenced)


def test_one_whose_sink_refuses_after_another_took_over_says_that_it_was_fenced(tmp_path, monkeypatch):
    shape = Shape(rows=400, sink="callback", interval_s=0.005)
    first, pause = held_at("sink.callback.before", shape, tmp_path)
    while recorded_rows(storage(tmp_path)) < shape.rows:
        assert not first.ended, first.error
    Driver(shape.with_rows(shape.rows + 3 * shape.rows_per_batch), tmp_path).start().finish()

    def refuse(self: Calls, table: pa.Table, number: int) -> None:
        raise ValueError("the target knows a later number")

    monkeypatch.setattr(Calls, "note", refuse)
    pause.go_on()
    first.join()
    assert isinstance(first.error, QueryFailed) and isinstance(first.error.__cause__, Fenced)


def test_one_that_has_to_restore_after_another_took_over_says_that_it_was_fenced(tmp_path):
    first, pause = held_at("jobmaster.failover", SLOW, tmp_path)
    Driver(SLOW.in_few_batches(), tmp_path).start().finish()
    pause.go_on()
    first.join()
    assert isinstance(first.error, QueryFailed) and isinstance(first.error.__cause__, Fenced)
    check(SLOW, tmp_path)


@pytest.mark.parametrize("sink", some(["callback", "delta", "parquet"], 1))
def test_one_that_is_alive_is_fenced_in_the_middle_of_its_work(sink, tmp_path):
    shape = replace(LASTING, sink=sink)
    first, pause = held_at("jobmaster.expire.after", shape, tmp_path)
    pause.go_on()
    Driver(shape.in_few_batches(), tmp_path).start().finish()
    first.join()
    assert isinstance(first.error, QueryFailed) and isinstance(first.error.__cause__, Fenced)
    check(shape, tmp_path)


def test_a_candidate_paused_between_listing_and_put_starts_over_when_the_number_it_takes_was_freed(tmp_path):
    first, pause = held_at("jobmaster.expire.after", LASTING, tmp_path)
    candidacy = Pause()
    failpoints.arm("journal.takeover.listed", candidacy)
    second = Driver(LASTING.in_few_batches(), tmp_path).start()
    assert candidacy.held.wait(60)
    failpoints.disarm()
    free = max(journal_numbers(storage(tmp_path))) + 1
    pause.go_on()
    while free in journal_numbers(storage(tmp_path)) or max(journal_numbers(storage(tmp_path))) < free + 2:
        assert not first.ended, f"the number {free} was not freed: {journal_numbers(storage(tmp_path))}, {first.error}"
    candidacy.go_on()
    second.finish()
    first.join()
    assert isinstance(first.error, QueryFailed) and isinstance(first.error.__cause__, Fenced)
    assert free in takeovers(storage(tmp_path)), "put at the freed number, it does not count"
    assert max(takeovers(storage(tmp_path))) > free
    check(LASTING, tmp_path)


class LateStore(FaultyStore):
    """A store that reports each put of a record, from the `nth` on, as timed out; all land when `land` is called."""

    def __init__(self, inner: ObjectStore, nth: int, folder: str = "journal/") -> None:
        self._left = nth
        self._folder = folder
        super().__init__(inner, self._late)

    def _late(self, operation: str, name: str) -> Fault | None:
        if operation not in ("put", "create") or not name.startswith(self._folder):
            return None
        self._left -= 1
        return Fault.LATE if self._left < 0 else None

    @property
    def waiting(self) -> bool:
        return self._left < 0


def late_driver(folder: Path, nth: int, what: str = "journal/") -> tuple[Driver, LateStore]:
    late = LateStore(storage(folder), nth, what)
    driver = Driver(SLOW, folder, late).start()
    while not late.waiting:
        assert not driver.ended, f"no put was late: {driver.error}"
    return driver, late


def test_a_record_that_lands_after_the_takeover_of_another_completes_nothing(tmp_path):
    first, late = late_driver(tmp_path, 4)
    Driver(SLOW.in_few_batches(), tmp_path).start().finish()
    before = epochs(storage(tmp_path))
    assert late.land() > 0
    assert epochs(storage(tmp_path)) == before
    first.join()
    assert isinstance(first.error, QueryFailed) and isinstance(first.error.__cause__, Fenced)
    check(SLOW, tmp_path)


def test_a_record_that_lands_before_the_takeover_of_another_is_its_base(tmp_path):
    first, late = late_driver(tmp_path, 4)
    first.store.die()
    assert late.land() > 0
    base = max(number for number, _ in epochs(storage(tmp_path)))
    second = Driver(SLOW.in_few_batches(), tmp_path).start()
    second.finish()
    first.join()
    check(SLOW, tmp_path)
    assert min(takeovers(storage(tmp_path))[1:]) == base + 1


def test_a_takeover_that_lands_after_a_later_one_stops_nobody_and_changes_nothing(tmp_path):
    late = LateStore(storage(tmp_path), 0)
    candidate = Driver(SLOW, tmp_path, late).start()
    while not late.waiting:
        assert not candidate.ended
    candidate.store.die()
    candidate.join()
    first, pause = held_at("jobmaster.expire.after", SLOW, tmp_path)
    late.land()
    pause.go_on()
    first.finish()
    check(SLOW, tmp_path)


@pytest.mark.parametrize("folder", some(["gathered/", "shared/"], 0))
def test_objects_that_land_late_are_named_by_nobody_and_change_nothing(folder, tmp_path):
    first, late = late_driver(tmp_path, 4, folder)
    Driver(SLOW.in_few_batches(), tmp_path).start().finish()
    late.land()
    first.store.die()
    first.join()
    check(SLOW, tmp_path)
    more = SLOW.with_rows(SLOW.rows + 100)
    Driver(more, tmp_path).start().finish()
    check(more, tmp_path)


@pytest.mark.parametrize(
    "fault", some([Fault.FALSE_EXISTS, Fault.OWN_EXISTS, Fault.LOST_ANSWER, Fault.FAIL, Fault.LATE], 0, 2)
)
def test_whatever_the_store_answers_to_the_put_of_a_record_the_job_goes_on_and_counts_once(fault, tmp_path):
    puts = 0

    def decide(operation: str, name: str) -> Fault | None:
        nonlocal puts
        if operation != "create" or not name.startswith("journal/"):
            return None
        puts += 1
        return fault if puts % 3 == 0 else None

    Driver(SLOW, tmp_path, FaultyStore(storage(tmp_path), decide)).start().finish()
    assert puts >= 3
    check(SLOW, tmp_path)


def test_a_start_on_a_store_that_does_not_answer_takes_nothing_over(tmp_path):
    first, pause = held_at("jobmaster.expire.after", SLOW, tmp_path)
    silent = FaultyStore(storage(tmp_path), lambda operation, name: Fault.FAIL if operation == "create" else None)
    second = Driver(SLOW, tmp_path, silent).start()
    pause.go_on()
    first.finish()
    second.store.die()
    second.join()
    assert not isinstance(first.error, StorageError)
    check(SLOW, tmp_path)
