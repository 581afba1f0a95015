"""Other storages of a job: each is marked as the job's own, and refused where it belongs to another job or folder."""

import uuid

import pytest

from holdfast.errors import JobRefused, ObjectNotFound, SettingsError
from holdfast.ids import Epoch, Incarnation, JobId
from holdfast.journal.fence import take_over
from holdfast.journal.job import open_job
from holdfast.journal.other_storages import check_owners, claim, open_job_store, routed
from holdfast.storage import names
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.routing import OtherStorages, RoutingStore, Site
from holdfast.storage.store import ObjectStore, open_store

JOB, OTHER = JobId("0" * 32), JobId("1" * 32)


def url(name: str) -> str:
    return f"memory://{name}-{uuid.uuid4().hex}"


@pytest.fixture
def main() -> RoutingStore:
    return open_job_store(url("main"))


def test_a_takeover_tells_every_reader_where_the_objects_of_its_epoch_lie(main: RoutingStore) -> None:
    storages = OtherStorages(url("quick"), (url("tables"),))
    epoch = take_over(main, job=JOB, storages=storages).epoch
    log, table = names.changelog_object(epoch, Incarnation(1)), names.shared_object(epoch, Incarnation(1))
    main.put(log, b"log")
    main.put(table, b"table")
    assert open_store(storages.changelog).get(log) == b"log"
    assert open_store(storages.shared[0]).get(table) == b"table"
    take_over(main, job=JOB, storages=OtherStorages())
    again = open_job_store(main.url)
    assert (again.get(log), again.get(table)) == (b"log", b"table")
    assert [site.url for site in again.sites()] == sorted([storages.changelog, *storages.shared])
    later = names.changelog_object(Epoch(2), Incarnation(1))
    again.put(later, b"")
    assert open_store(main.url).get(later) == b""


def test_a_storage_is_claimed_once_and_stays_the_job_s(main: RoutingStore) -> None:
    storages = OtherStorages(url("quick"), (url("tables"),))
    for _ in range(2):
        claim(RetryingStore(main), JOB, storages)
    assert [info.name for info in open_store(storages.changelog).list("")] == [names.owner()]


def test_a_storage_of_another_job_is_refused(main: RoutingStore) -> None:
    storages = OtherStorages("", (url("tables"),))
    claim(RetryingStore(main), JOB, storages)
    with pytest.raises(JobRefused, match=rf"shared_storages .* belongs to job id {JOB} with the storage {main.url}/"):
        claim(RetryingStore(open_job_store(url("another"))), OTHER, storages)


def test_a_storage_whose_job_was_copied_to_another_folder_is_refused_by_starts_and_clean_up(
    main: RoutingStore,
) -> None:
    storages = OtherStorages(url("quick"))
    claim(RetryingStore(main), JOB, storages)
    take_over(main, job=JOB, storages=storages)
    copy = open_job_store(url("copy"))
    for info in main.list("journal/"):
        copy.put(info.name, main.get(info.name))
    for refused in (
        lambda: claim(RetryingStore(copy), JOB, storages),
        lambda: claim(RetryingStore(copy), JOB, OtherStorages()),
        lambda: check_owners(RetryingStore(copy), JOB),
    ):
        with pytest.raises(JobRefused, match="copied or moved: two copies would delete each other's objects"):
            refused()
    check_owners(RetryingStore(main), JOB)
    open_store(storages.changelog).delete([names.owner()])
    claim(RetryingStore(copy), JOB, storages)


def test_only_a_former_storage_may_be_one_that_today_s_settings_cannot_open(
    main: RoutingStore, caplog: pytest.LogCaptureFixture
) -> None:
    take_over(main, job=JOB, storages=OtherStorages("az://logs/x"))

    def opened(site: Site, make: bool) -> ObjectStore:
        raise SettingsError("azure_storage_account_name is missing")

    again = RetryingStore(routed(open_store(main.url), open_site=opened))
    with pytest.raises(SettingsError, match="azure_storage_account_name"):
        check_owners(again, JOB)
    claim(again, JOB, OtherStorages())
    assert "az://logs/x, which only earlier starts of this job used, is passed over" in caplog.text
    take_over(main, job=JOB, storages=OtherStorages())
    check_owners(RetryingStore(routed(open_store(main.url), open_site=opened)), JOB)


def test_a_forged_takeover_leads_no_deletion_into_the_storage_of_another_job(main: RoutingStore) -> None:
    open_job(RetryingStore(main), 8)
    other = open_store(url("other"))
    theirs = names.changelog_object(Epoch(1), Incarnation(1))
    open_job(RetryingStore(other), 8)
    other.put(theirs, b"log")
    take_over(main, storages=OtherStorages(other.url))
    with pytest.raises(ObjectNotFound, match="owner"):
        main.delete([theirs])
    claim(RetryingStore(open_job_store(url("third"))), OTHER, OtherStorages(used := url("used")))
    take_over(main, storages=OtherStorages(used))
    with pytest.raises(JobRefused, match="belongs to job id"):
        main.delete([names.changelog_object(Epoch(2), Incarnation(1))])
    assert other.get(theirs) == b"log"


@pytest.mark.parametrize("name", ["job", "savepoint"])
def test_the_storage_of_a_job_and_a_savepoint_are_no_other_storages(main: RoutingStore, name: str) -> None:
    used = url("used")
    open_store(used).put(name, b"")
    with pytest.raises(JobRefused, match=rf"changelog_storage .* has an object '{name}'"):
        claim(RetryingStore(main), JOB, OtherStorages(used))


def test_no_job_begins_in_another_job_s_other_storage(main: RoutingStore) -> None:
    storages = OtherStorages(url("quick"))
    claim(RetryingStore(main), JOB, storages)
    with pytest.raises(JobRefused, match=f"of job id {JOB}, whose storage is {main.url}/: name a folder of its own"):
        open_job(RetryingStore(open_store(storages.changelog)), 8)


def test_every_spelling_of_a_folder_s_url_is_the_same_folder(tmp_path: object) -> None:
    storages = OtherStorages(f"file://{tmp_path}/quick")
    claim(RetryingStore(open_job_store(f"file://{tmp_path}/main")), JOB, storages)
    claim(RetryingStore(open_job_store(f"file://{tmp_path}/other/../main/")), JOB, storages)
    store: ObjectStore = RetryingStore(open_job_store(f"file://{tmp_path}/main-2"))
    with pytest.raises(JobRefused):
        claim(store, JOB, storages)
