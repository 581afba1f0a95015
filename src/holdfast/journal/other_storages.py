"""The storages of a job besides its own: how readers find them, and how each is kept for one job.

    journal/<epoch>   in the job's storage: a takeover, which says where the objects of its epoch lie
    owner             in every other storage: the job's id, and the URL of the job's storage

A job's folder that was copied or moved has the old URLs of the other storages in its takeovers. Two folders with one id
would then delete each other's objects there, so a start and `holdfast gc` refuse a storage whose `owner` names another
job or another folder, and nobody deletes in a storage without reading its `owner` first.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.errors import JobRefused, ObjectNotFound, SettingsError, StorageError
from holdfast.ids import Epoch, JobId, JournalNumber
from holdfast.journal.codec import StoredOwner, decode_job, decode_owner, encode_owner
from holdfast.journal.fence import exists, journal_numbers, read_record
from holdfast.journal.records import Takeover
from holdfast.storage import names
from holdfast.storage.reach import check_reachable
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.routing import OpenSite, OtherStorages, RoutingStore, Site, options_of, routing_of
from holdfast.storage.store import SHARED_OPTIONS, ObjectStore, open_store
from holdfast.storage.urls import plain_url


def open_job_store(url: str, storage_options: Mapping[str, str] | None = None, *, make: bool = True) -> RoutingStore:
    """Open the storage of a job, with all other storages in which its objects lie. Raises as `open_store` does.

    The store does not retry. Nothing is read before an object is wanted that may lie elsewhere.
    """
    return routed(open_store(url, storage_options, make=make), storage_options)


def routed(
    main: ObjectStore, storage_options: Mapping[str, str] | None = None, open_site: OpenSite | None = None
) -> RoutingStore:
    """Return a job's store whose own storage is `main`. `open_site` replaces the function that opens the others."""
    options = storage_options or {}

    def opened(site: Site, make: bool) -> ObjectStore:
        return open_store(site.url, options_of(site, main.url, options), make=make, whose=setting_of(site))

    return RoutingStore(main, _read_takeover, journal_numbers, _check_before_deletion, open_site or opened)


def setting_of(site: Site) -> str:
    """Return the setting of `Job` that names the storage, for messages."""
    return "shared_storages" if site.options == SHARED_OPTIONS else "changelog_storage"


def check_all_reachable(url: str, storage_options: Mapping[str, str], storages: OtherStorages) -> None:
    """Check that the job's storage and all others answer. Raises as `storage.reach.check_reachable` does."""
    check_reachable(url, storage_options)
    for site in storages.sites():
        check_reachable(site.url, options_of(site, url, storage_options), setting_of(site))


def opened_with_options(
    store: ObjectStore, storage_options: Mapping[str, str], storages: OtherStorages
) -> Sequence[tuple[ObjectStore, tuple[str, dict[str, str]]]]:
    """Open the other storages of a job's store; return each with its URL and its options."""
    routing, found = routing_of(store), []
    for site in storages.sites():
        assert routing is not None
        options = options_of(site, store.url, storage_options)
        found.append((RetryingStore(routing.at(site, make=True)), (site.url, options)))
    return found


def claim(store: ObjectStore, job: JobId, storages: OtherStorages) -> None:
    """Mark the other storages as this job's, and check the storages of earlier starts.

    Raises
    ------
    JobRefused
        A storage belongs to another job, or is itself the storage of a job or a savepoint.
    StorageError
        A storage does not answer.
    """
    routing = routing_of(store)
    if routing is None:
        assert not storages.sites(), "a store that knows no other storages would keep all objects in the job's own"
        return
    own = StoredOwner(job, plain_url(store.url))
    for site in storages.sites():
        other = RetryingStore(routing.at(site, make=True))
        if not exists(other, names.owner()):
            _refuse_used(site, other)
            with suppress(StorageError):  # whether it was written is found out by reading it
                other.create(names.owner(), encode_owner(own))
        _check_owner(site, other, own)
    check_owners(store, job, storages)


def other_urls(store: ObjectStore) -> list[str]:
    """Return the URLs of all storages besides the main one that a job has ever used. Raises `StorageError`."""
    routing = routing_of(store)
    return [] if routing is None else sorted({site.url for site in routing.sites()})


def check_owners(store: ObjectStore, job: JobId, storages: OtherStorages | None = None) -> None:
    """Check that all storages that the job has ever used are its own. Storages that do not answer are passed over, and
    former ones that today's settings cannot open: who needs an object in them will say so.

    `storages`: the storages of the start that checks; None: those of the newest start are not former.

    Raises `JobRefused`, and `SettingsError` if a storage that is not former cannot be opened.
    """
    routing = routing_of(store)
    if routing is None:
        return
    sites = routing.sites()
    former = routing.former_sites() if storages is None else frozenset(sites).difference(storages.sites())
    for site in sites:
        try:
            _check_owner(site, RetryingStore(routing.at(site)), StoredOwner(job, plain_url(store.url)))
        except StorageError:
            continue
        except SettingsError as error:
            if site not in former:
                raise
            routing.passed_over(site, error)


def refuse_other_storage(store: ObjectStore) -> None:
    """Raise `JobRefused` if a folder holds objects of a job whose own storage lies elsewhere."""
    with suppress(ObjectNotFound):
        found = decode_owner(names.owner(), store.get(names.owner()))
        raise JobRefused(
            f"{store.url}: the folder holds logs or tables of job id {found.job}, whose storage is {found.storage}: "
            "name a folder of its own"
        )


def _refuse_used(site: Site, other: ObjectStore) -> None:
    for name in (names.job(), names.savepoint()):
        if exists(other, name):
            raise JobRefused(
                f"{setting_of(site)} {site.url!r}: the folder has an object {name!r}: it is the storage of a job, or a "
                "savepoint. Name a folder that only this job uses"
            )


def _check_owner(site: Site, other: ObjectStore, own: StoredOwner) -> None:
    found = decode_owner(f"{site.url}: {names.owner()}", other.get(names.owner()))
    if found != own:
        raise JobRefused(
            f"{setting_of(site)} {site.url!r} belongs to job id {found.job} with the storage {found.storage}; this is "
            f"job id {own.job} with the storage {own.storage}. Name a folder that only this job uses. If it is the "
            "same job, whose storage was copied or moved: two copies would delete each other's objects there. Start "
            "from a savepoint instead, job.start(start_from=<url>); or, if the other copy is gone for good, delete the "
            f"object {names.owner()!r} in {site.url}, and start again"
        )


def _check_before_deletion(main: ObjectStore, site: Site, other: ObjectStore) -> None:
    """Check the owner of a storage whose URL comes from a takeover. Raises `StorageError` if there is none, and
    `JobRefused`."""
    job = decode_job(names.job(), main.get(names.job())).job_id
    _check_owner(site, other, StoredOwner(job, plain_url(main.url)))


def _read_takeover(main: ObjectStore, epoch: Epoch) -> OtherStorages | None:
    record = read_record(main, JournalNumber(epoch))
    return record.storages if isinstance(record, Takeover) else None
