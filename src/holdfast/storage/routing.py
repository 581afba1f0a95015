"""A store whose objects lie in several storages: logs in a quick storage, materialized tables spread over several.

    job, journal/, sources/, staging/, …         the main storage, which is the job's URL
    dstl/, gathered/   of epoch e                the storage for the changelog of epoch e
    shared/            of epoch e                one of the shared storages of epoch e, by the object's UUID

The takeover that began an epoch says where its objects lie, and never changes. So a name leads to its object whatever
the settings are today, names stay relative, and a reader needs to know the main storage alone. Objects of an epoch
without a takeover in the journal lie in the main storage: they were copied there from a savepoint. After a lost
takeover, listings show its objects nevertheless, and deletions look for them everywhere.

This module does not know the journal: it is given functions that read it (`journal.other_storages`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from holdfast.errors import CorruptObject, HoldfastError, ObjectNotFound, SettingsError, StorageError
from holdfast.ids import Epoch
from holdfast.printable import logger
from holdfast.storage import names
from holdfast.storage.store import CHANGELOG_OPTIONS, SHARED_OPTIONS, ObjectInfo, ObjectStore, own_options
from holdfast.storage.urls import provider_of

log = logger(__name__)


class Site(NamedTuple):
    """A storage beside the main one. `options`: the prefix of storage options that are for it alone."""

    url: str
    options: str


MAIN = Site("", "")


class OtherStorages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """URLs of the storages besides the main one in which the objects of an epoch lie."""

    changelog: str = ""
    """Storage of logs and gathered objects; empty: the main storage."""
    shared: tuple[str, ...] = ()
    """Storages over which materialized objects are spread; empty: the main storage."""

    def site_of(self, name: names.RoutedName) -> Site:
        """Return the storage in which an object lies."""
        found = self.sites_of(names.SHARED if isinstance(name, names.SharedName) else names.CHANGELOG)
        return found[int(name.uuid, 16) % len(found)]

    def sites_of(self, folder: str) -> list[Site]:
        """Return the storages of all objects in a folder, for example `shared/`."""
        if folder == names.SHARED:
            return [Site(url, SHARED_OPTIONS) for url in self.shared] or [MAIN]
        return [Site(self.changelog, CHANGELOG_OPTIONS) if self.changelog else MAIN]

    def sites(self) -> list[Site]:
        """Return all storages besides the main one."""
        return [site for folder in (names.CHANGELOG, names.SHARED) for site in self.sites_of(folder) if site != MAIN]


NO_OTHERS = OtherStorages()

ReadTakeover = Callable[[ObjectStore, Epoch], OtherStorages | None]
"""A function that reads from the main storage where an epoch's objects lie; None if the record with its number does not
say. Raises `ObjectNotFound` if there is no such record."""

ListNumbers = Callable[[ObjectStore], Iterable[int]]
"""A function that lists the numbers of the journal's records in the main storage."""

CheckOwner = Callable[[ObjectStore, Site, ObjectStore], None]
"""A function that raises an error unless another storage belongs to the job whose main storage is given."""

OpenSite = Callable[[Site, bool], ObjectStore]
"""A function that opens a storage; with True it makes the folder of a `file://` URL."""


class PartlyDeleted(StorageError):
    """Some storages deleted their objects, and others did not; `left` names the objects that may be left."""

    def __init__(self, error: HoldfastError, left: frozenset[str]) -> None:
        super().__init__(str(error))
        self.left = left


class RoutingStore:
    """An `ObjectStore` that has a main store, and others which it opens when an object in them is wanted."""

    def __init__(
        self,
        main: ObjectStore,
        read_takeover: ReadTakeover,
        list_numbers: ListNumbers,
        check_owner: CheckOwner,
        open_site: OpenSite,
    ) -> None:
        self.url = main.url
        self._read_takeover = read_takeover
        self._list_numbers = list_numbers
        self._check_owner = check_owner
        self._open_site = open_site
        self._stores: dict[Site, ObjectStore] = {MAIN: main}
        self._owned = {MAIN}
        """Storages in which this process may delete."""
        self._known: dict[int, OtherStorages | None] = {}
        """The answers of records, by number; bounded by the starts of the job and the records in listings."""

    def at(self, site: Site, *, make: bool = False) -> ObjectStore:
        """Open a storage, and keep it open. Raises `SettingsError`, `StorageError`."""
        if site not in self._stores:
            self._stores.setdefault(site, self._open_site(site, make))
        return self._stores[site]

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self.at(self._site_of(name)).put(name, data)

    def create(self, name: str, data: bytes) -> None:
        self.at(self._site_of(name)).create(name, data)

    def get(self, name: str) -> bytes:
        data = self.at(self._site_of(name)).get(name)
        self._found(name)
        return data

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        data = self.at(self._site_of(name)).get_range(name, offset, length)
        self._found(name)
        return data

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        sites: Sequence[Site]
        top, epoch = f"{prefix.partition('/')[0]}/" if prefix else "", names.epoch_of_folder(prefix)
        if top and top not in names.ROUTED_FOLDERS:
            return self.at(MAIN).list(prefix, after=after)
        if epoch is not None and (storages := self._storages(epoch)) is not None:
            sites, former = storages.sites_of(top), frozenset[Site]()
        else:
            sites, former = self._all_sites()
        found: dict[str, ObjectInfo] = {}
        for site in sites:
            for info in self._listed(site, prefix, after, site in former):
                if self._lies_in(site, info.name):
                    found[info.name] = info
        return sorted(found.values())

    def delete(self, names_: Sequence[str]) -> None:
        """Delete objects: those in the main storage first, since the records among them name the others.

        Nothing is deleted in a storage that is not known to be the job's own, whatever a takeover says. A storage that
        fails does not keep the others from deleting, except the main storage: records would name what is gone. Raises
        the first error, or `PartlyDeleted` if some of the names are deleted.
        """
        by_site: dict[Site, list[str]] = {MAIN: []}
        for name in names_:
            for site in self._sites_for_deletion(name):
                by_site.setdefault(site, []).append(name)
        self.at(MAIN).delete(by_site.pop(MAIN))
        left, errors = set[str](), list[HoldfastError]()
        for site, found in by_site.items():
            try:
                self._delete_at(site, found)
            except HoldfastError as error:
                left.update(found)
                errors.append(error)
        if errors:
            raise errors[0] if left.issuperset(names_) else PartlyDeleted(errors[0], frozenset(left)) from errors[0]

    def sites(self) -> Sequence[Site]:
        """Return all storages besides the main one that the job has ever used. Raises `StorageError`."""
        return [site for site in self._all_sites()[0] if site != MAIN]

    def former_sites(self) -> frozenset[Site]:
        """Return the storages that only earlier starts of the job used. Raises `StorageError`."""
        return self._all_sites()[1]

    def _delete_at(self, site: Site, found: Sequence[str]) -> None:
        if site not in self._owned:
            self._check_owner(self.at(MAIN), site, self.at(site))
            self._owned.add(site)
        self.at(site).delete(found)

    def _site_of(self, name: str) -> Site:
        parsed = names.parse(name)
        storages = self._storages(parsed.epoch) if isinstance(parsed, names.RoutedName) else None
        if storages is None or not isinstance(parsed, names.RoutedName):
            return MAIN
        return storages.site_of(parsed)

    def _storages(self, epoch: Epoch) -> OtherStorages | None:
        """Return where an epoch's objects lie; None: in the main storage, as far as is known.

        Raises `StorageError`, and `CorruptObject` if the takeover cannot be read.
        """
        if epoch not in self._known:
            try:
                self._known[epoch] = self._read_takeover(self.at(MAIN), epoch)
            except ObjectNotFound:
                return None
        return self._known[epoch]

    def _found(self, name: str) -> None:
        """Remember that an epoch without a takeover has its objects in the main storage, so that nobody asks again."""
        parsed = names.parse(name)
        if isinstance(parsed, names.RoutedName):
            self._known.setdefault(parsed.epoch, None)

    def _all_sites(self) -> tuple[Sequence[Site], frozenset[Site]]:
        """Return all storages that are known, and those that only former starts used."""
        for number in self._list_numbers(self.at(MAIN)):
            with suppress(ObjectNotFound, CorruptObject):  # it has expired, or verification reports it
                self._storages(Epoch(number))
        said = {epoch: each.sites() for epoch, each in self._known.copy().items() if each is not None}
        known = {site for sites in said.values() for site in sites}
        now = said[max(said)] if said else []
        return list(dict.fromkeys([*self._stores, *sorted(known)])), frozenset(known.difference(now))

    def _listed(self, site: Site, prefix: str, after: str | None, is_former: bool) -> Collection[ObjectInfo]:
        try:
            return self.at(site).list(prefix, after=after)
        except (StorageError, SettingsError) as error:  # a setting without which it cannot be opened may be gone
            if not is_former:
                raise
            self.passed_over(site, error)
            return ()

    def passed_over(self, site: Site, error: HoldfastError) -> None:
        """Warn that a storage of earlier starts is left out."""
        log.warning("%s: %s, which only earlier starts of this job used, is passed over: %s", self.url, site.url, error)

    def _lies_in(self, site: Site, name: str) -> bool:
        parsed = names.parse(name)
        if not isinstance(parsed, names.RoutedName):
            return site == MAIN
        storages = self._known.get(parsed.epoch)
        return storages is None or storages.site_of(parsed) == site

    def _sites_for_deletion(self, name: str) -> Iterable[Site]:
        parsed = names.parse(name)
        if not isinstance(parsed, names.RoutedName):
            return [MAIN]
        storages = self._storages(parsed.epoch)
        return list(self._stores) if storages is None else [storages.site_of(parsed)]


def routing_of(store: ObjectStore) -> RoutingStore | None:
    """Return the routing store of a job's storage, below what lies over it; None if the store is a single storage."""
    found: ObjectStore | None = store
    while found is not None and not isinstance(found, RoutingStore):
        found = getattr(found, "inner", None)
    return found


def options_of(site: Site, main_url: str, storage_options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with which a storage is opened: those of the main storage if both are of one provider, and
    those with the storage's prefix, which is left out."""
    shared = own_options(storage_options) if provider_of(site.url) == provider_of(main_url) else {}
    prefixed = {key: value for key, value in storage_options.items() if key.startswith(site.options)}
    return shared | {key.removeprefix(site.options): value for key, value in prefixed.items()}
