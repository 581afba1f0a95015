"""The decorators of the store: each adds the behaviour in its name and nothing else."""

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import ObjectExists, ObjectNotFound, StorageError
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore
from holdfast.testing.stores import Fault, FaultyStore, SlowStore, ThrottledStore, seeded_faults


class Script:
    """Gives the faults in order, then none; keeps the requests it was asked about."""

    def __init__(self, *faults: Fault | None) -> None:
        self.faults = list(faults)
        self.requests: list[tuple[str, str]] = []

    def __call__(self, operation: str, name: str) -> Fault | None:
        self.requests.append((operation, name))
        return self.faults.pop(0) if self.faults else None


@pytest.fixture
def inner() -> ObjectStore:
    from uuid import uuid4

    from holdfast.storage.store import open_store

    return open_store(f"memory://{uuid4().hex}")


def test_retrying_repeats_reads_puts_lists_and_deletes_with_growing_pauses(inner: ObjectStore) -> None:
    inner.put("a/x", b"12")
    calls = (
        lambda store: store.put("a/y", b""),
        lambda store: store.get("a/x"),
        lambda store: store.get_range("a/x", 0, 1),
        lambda store: store.list("a/"),
        lambda store: store.delete(["a/x"]),
    )
    for call in calls:
        script, pauses = Script(Fault.FAIL, Fault.LOST_ANSWER, Fault.FAIL), list[float]()
        call(RetryingStore(FaultyStore(inner, script), wait=pauses.append))
        assert len(script.requests) == 4
        assert 0.05 <= pauses[0] <= 0.1 <= pauses[1] <= 0.2 <= pauses[2] <= 0.4


def test_retrying_gives_up_with_the_last_error(inner: ObjectStore) -> None:
    script = Script(*[Fault.FAIL] * 9)
    with pytest.raises(StorageError, match="injected"):
        RetryingStore(FaultyStore(inner, script), attempts_max=3, wait=lambda _: None).get("x")
    assert len(script.requests) == 3


def test_retrying_never_repeats_a_create(inner: ObjectStore) -> None:
    script = Script(Fault.FAIL)
    with pytest.raises(StorageError):
        RetryingStore(FaultyStore(inner, script), wait=lambda _: None).create("x", b"")
    assert script.requests == [("create", "x")]


def test_retrying_takes_not_found_for_an_answer(inner: ObjectStore) -> None:
    script = Script()
    with pytest.raises(ObjectNotFound):
        RetryingStore(FaultyStore(inner, script), wait=lambda _: None).get("x")
    assert script.requests == [("get", "x")]


def test_a_retrying_store_needs_an_attempt(inner: ObjectStore) -> None:
    with pytest.raises(ValueError, match="attempts_max"):
        RetryingStore(inner, attempts_max=0)


@pytest.mark.parametrize(
    ("fault", "error", "written"),
    [
        (Fault.FAIL, StorageError, False),
        (Fault.LOST_ANSWER, StorageError, True),
        (Fault.LATE, StorageError, False),
        (Fault.FALSE_EXISTS, ObjectExists, False),
        (Fault.OWN_EXISTS, ObjectExists, True),
    ],
)
def test_a_faulty_create_does_what_its_fault_says(
    inner: ObjectStore, fault: Fault, error: type[StorageError], written: bool
) -> None:
    with pytest.raises(error):
        FaultyStore(inner, Script(fault)).create("x", b"1")
    assert bool(inner.list("")) == written


def test_a_late_put_lands_when_told_and_a_late_create_only_if_it_still_can(inner: ObjectStore) -> None:
    faulty = FaultyStore(inner, Script(Fault.LATE, Fault.LATE, Fault.LATE))
    for call in (
        lambda: faulty.put("a", b"late"),
        lambda: faulty.create("b", b"late"),
        lambda: faulty.create("c", b"late"),
    ):
        with pytest.raises(StorageError, match="timed out"):
            call()
    inner.create("b", b"first")
    assert faulty.land() == 3
    assert [inner.get(name) for name in "abc"] == [b"late", b"first", b"late"]
    assert faulty.land() == 0


def test_seeded_faults_are_the_same_for_the_same_seed() -> None:
    one, same, other = seeded_faults(7, 0.3), seeded_faults(7, 0.3), seeded_faults(8, 0.3)
    sequence = [one("get", "x") for _ in range(200)]
    assert sequence == [same("get", "x") for _ in range(200)]
    assert sequence != [other("get", "x") for _ in range(200)]
    assert set(sequence) == {None, *Fault}


def test_slow_asks_for_each_request_how_long(inner: ObjectStore) -> None:
    waited: list[float] = []
    store = SlowStore(inner, lambda operation, name: {"put": 3.0}.get(operation, 0.0), wait=waited.append)
    store.put("x", b"")
    store.get("x")
    assert waited == [3.0, 0.0]


def test_requests_to_a_throttled_store_share_its_bandwidth_after_its_latency(inner: ObjectStore) -> None:
    waited: list[float] = []
    store = ThrottledStore(inner, 100.0, 0.5, monotonic=lambda: 0.0, wait=waited.append)
    store.put("a/x", b"1" * 50)
    assert store.get("a/x") == b"1" * 50
    store.get_range("a/x", 10, 20)
    store.list("a/")
    assert waited == pytest.approx([1.0, 1.5, 1.7, 1.7])


def test_what_a_throttled_store_reads_is_under_way_from_when_it_was_asked_for(inner: ObjectStore) -> None:
    waited: list[float] = []
    clock = ManualClock()
    reading = SlowStore(inner, lambda operation, name: 0.3 if operation == "get" else 0.0, wait=clock.advance)
    store = ThrottledStore(reading, 100.0, 0.5, monotonic=clock.monotonic, wait=waited.append)
    inner.put("a/x", b"1" * 50)
    store.get("a/x")
    store.get("a/x")
    assert waited == pytest.approx([0.7, 0.9])
