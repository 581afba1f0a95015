"""`<storage>/job`: created once, whoever starts and whatever the store answers."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import JobRefused, ObjectNotFound, StorageError
from holdfast.journal.codec import StoredJob, encode_job
from holdfast.journal.job import LAYOUT_VERSION, open_job, read_job
from holdfast.testing.stores import Fault, FaultyStore
from journal_kit import Steered, fresh_store, no_wait, start


def test_a_job_keeps_its_id_and_max_parallelism() -> None:
    store = fresh_store()
    first = open_job(store, 128, wait=no_wait)
    assert len(first.job_id) == 32
    assert first == open_job(store, 256, wait=no_wait) == read_job(store)


def test_of_many_that_start_at_once_all_get_the_same_job() -> None:
    store = fresh_store()
    with ThreadPoolExecutor(8) as threads:
        jobs = set(threads.map(lambda turn: open_job(store, 128 + turn, wait=no_wait), range(8)))
    assert jobs == {read_job(store)}


@pytest.mark.parametrize("fault", list(Fault))
def test_an_unclear_answer_to_the_creation_is_read_back(fault: Fault) -> None:
    inner = fresh_store()
    steered = Steered(inner, {("create", 1): fault, ("get", 2): Fault.FAIL})
    job = open_job(steered.store, 128, wait=no_wait)
    steered.store.land()
    assert job == read_job(inner)


def test_another_max_parallelism_is_refused_only_where_the_user_has_set_it() -> None:
    store = fresh_store()
    open_job(store, 128, wait=no_wait)
    with pytest.raises(JobRefused, match=r"max_parallelism is 128 .* found a job with 64: set max_parallelism=128"):
        open_job(store, 64, explicit=True, wait=no_wait)


@pytest.mark.parametrize("foreign", [b"", b"a file of somebody else's", encode_job(StoredJob("x", 1, 1))[:-1]])
def test_a_foreign_object_in_its_place_is_refused_and_left_alone(foreign: bytes) -> None:
    store = fresh_store()
    store.put("job", foreign)
    with pytest.raises(JobRefused, match="does not belong to a job"):
        open_job(store, 128, wait=no_wait)
    assert store.get("job") == foreign


def test_an_unknown_layout_is_refused() -> None:
    store = fresh_store()
    store.put("job", encode_job(StoredJob("0" * 32, LAYOUT_VERSION + 1, 128)))
    with pytest.raises(JobRefused, match="layout version 2, expected 1"):
        open_job(store, 128, wait=no_wait)


def test_a_journal_without_a_job_is_refused() -> None:
    store = fresh_store()
    start(store)
    with pytest.raises(JobRefused, match="'job' is missing"):
        open_job(store, 128, wait=no_wait)
    with pytest.raises(ObjectNotFound):
        read_job(store)


def test_a_store_that_does_not_answer_is_an_io_error_after_a_bound() -> None:
    steered = Steered(fresh_store(), {("get", turn): Fault.FAIL for turn in range(1, 20)})
    with pytest.raises(StorageError, match="neither read nor created after 4 attempts"):
        open_job(steered.store, 128, attempts_max=4, wait=no_wait)
    assert steered.counts == {"get": 4}


class Unconditional(FaultyStore):
    """A store that takes conditions and ignores them."""

    def create(self, name: str, data: bytes) -> None:
        self.put(name, data)


@pytest.mark.parametrize("there", [False, True])
def test_a_store_that_ignores_the_condition_of_put_if_absent_is_refused(there: bool) -> None:
    inner = fresh_store()
    if there:
        open_job(inner, 128, wait=no_wait)
    for _ in range(2):
        with pytest.raises(JobRefused, match=r"ignores the condition of put-if-absent \(If-None-Match: \*\)"):
            open_job(Unconditional(inner, lambda operation, name: None), 128, wait=no_wait)
    assert open_job(inner, 128, wait=no_wait) == read_job(inner)


def test_a_store_whose_answers_stay_unclear_is_not_refused_for_its_conditions() -> None:
    inner = fresh_store()
    open_job(inner, 128, wait=no_wait)
    faulty = FaultyStore(inner, lambda operation, name: Fault.FAIL if operation == "create" else None)
    with pytest.raises(StorageError, match="after 10 attempts"):
        open_job(faulty, 128, wait=no_wait)
