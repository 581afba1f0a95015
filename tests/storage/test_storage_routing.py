"""A store over several storages: where objects lie, and what listings and deletions see of them."""

import logging
import uuid

import pytest

from holdfast.errors import CorruptObject, ObjectNotFound, SettingsError, StorageError
from holdfast.ids import Epoch, Incarnation
from holdfast.storage import names
from holdfast.storage.routing import OtherStorages, PartlyDeleted, RoutingStore, Site, options_of
from holdfast.storage.store import ObjectStore, open_store

QUICK, A, B = "memory://quick", "memory://a", "memory://b"


class Routed:
    """A job's storage with takeovers that say where objects lie, over new stores in memory."""

    def __init__(self, takeovers: dict[int, OtherStorages | None]) -> None:
        self.takeovers = takeovers
        self.asked: list[int] = []
        self.damaged: set[int] = set()
        self.away: set[str] = set()
        self.why: type[StorageError | SettingsError] = StorageError
        self._run = uuid.uuid4().hex
        self.foreign: set[str] = set()
        self.main = self.at("memory://main")
        self.store = self.again()

    def again(self) -> RoutingStore:
        numbers, opened = lambda main: list(self.takeovers), lambda site, _: self._open(site)
        return RoutingStore(self.main, self._read, numbers, self._check, opened)

    def at(self, url: str) -> ObjectStore:
        return open_store(f"{url}-{self._run}")

    def lying(self, url: str) -> list[str]:
        return [info.name for info in self.at(url).list("")]

    def _open(self, site: Site) -> ObjectStore:
        if site.url in self.away:
            raise self.why(f"{site.url}: there is no such bucket")
        return self.at(site.url)

    def _check(self, main: ObjectStore, site: Site, other: ObjectStore) -> None:
        if site.url in self.foreign:
            raise StorageError(f"{site.url} belongs to another job")

    def _read(self, main: ObjectStore, epoch: Epoch) -> OtherStorages | None:
        self.asked.append(epoch)
        if epoch in self.damaged:
            raise CorruptObject(f"journal/{epoch} is damaged")
        if epoch not in self.takeovers:
            raise ObjectNotFound(f"journal/{epoch}")
        return self.takeovers[epoch]


def log(epoch: int) -> str:
    return names.changelog_object(Epoch(epoch), Incarnation(3))


def table(epoch: int) -> str:
    return names.shared_object(Epoch(epoch), Incarnation(3))


def test_logs_and_tables_lie_where_the_takeover_of_their_epoch_says_and_all_else_in_the_main_storage() -> None:
    routed = Routed({1: OtherStorages(QUICK, (A, B))})
    logs, tables = [log(1), names.gathered_object(Epoch(1), 4)], [table(1) for _ in range(20)]
    rest = [names.job(), names.source_chunk(Epoch(1)), names.manifest(Epoch(1), 4, 0), "unknown"]
    for name in (*logs, *tables, *rest):
        routed.store.put(name, name.encode())
    assert routed.lying(QUICK) == sorted(logs)
    assert {*routed.lying(A), *routed.lying(B)} == set(tables)
    assert len(routed.lying(A)) in range(2, 19), "tables are spread"
    assert routed.lying("memory://main") == sorted(rest)
    reader = routed.again()
    assert all(reader.get(name) == name.encode() for name in (*logs, *tables, *rest))
    assert reader.get_range(logs[0], 5, 3) == logs[0].encode()[5:8]
    assert routed.asked == [1, 1], "each process asks once"


def test_objects_are_found_after_the_settings_have_changed() -> None:
    routed = Routed({1: OtherStorages(QUICK), 2: OtherStorages(), 3: OtherStorages(A, (B,))})
    found = [log(1), log(2), log(3), table(1), table(3)]
    for name in found:
        routed.store.put(name, b"x")
    assert routed.lying(QUICK) == [found[0]] and routed.lying(A) == [found[2]] and routed.lying(B) == [found[4]]
    store = routed.again()
    assert [info.name for info in store.list(names.CHANGELOG)] == found[:3]
    assert [info.name for info in store.list(names.CHANGELOG, after=found[0])] == found[1:3]
    assert [info.name for info in store.list(names.incarnation_folders(Epoch(3), Incarnation(3))[1])] == [found[4]]
    assert [info.name for info in store.list("")] == sorted(found)
    store.delete(found)
    assert not any(map(routed.lying, (QUICK, A, B, "memory://main")))


def test_objects_of_epochs_without_a_takeover_lie_in_the_main_storage() -> None:
    """Copies from a savepoint are such objects."""
    routed = Routed({9: OtherStorages(QUICK, (A,))})
    copied = table(4)
    routed.store.put(copied, b"x")
    assert routed.lying("memory://main") == [copied]
    store, routed.asked = routed.again(), []
    assert [store.get(copied), store.get(copied), store.get_range(copied, 0, 1)] == [b"x"] * 3
    assert routed.asked == [4], "where an object was found, nobody asks again"


def test_an_object_is_missing_only_in_the_storage_in_which_it_has_to_lie() -> None:
    routed = Routed({1: OtherStorages(QUICK)})
    name = log(1)
    routed.main.put(name, b"a copy in the wrong place")
    with pytest.raises(ObjectNotFound, match="quick"):
        routed.store.get(name)
    assert routed.store.list(names.CHANGELOG) == []


def test_listings_show_objects_of_a_lost_takeover_and_deletions_look_for_them_everywhere() -> None:
    routed = Routed({1: OtherStorages(QUICK), 2: OtherStorages(QUICK), 5: None})
    lost = [log(2), log(5)]
    routed.at(QUICK).put(lost[1], b"")
    routed.store.put(lost[0], b"")
    del routed.takeovers[2]
    store = routed.again()
    assert [info.name for info in store.list(names.CHANGELOG)] == lost
    store.delete(lost)
    assert routed.lying(QUICK) == []


def test_a_damaged_takeover_is_named_and_listings_go_on() -> None:
    routed = Routed({1: OtherStorages(QUICK), 2: OtherStorages(QUICK)})
    names_ = [log(1), log(2)]
    for name in names_:
        routed.store.put(name, b"")
    routed.damaged = {1}
    store = routed.again()
    with pytest.raises(CorruptObject, match="journal/1"):
        store.get(names_[0])
    assert [info.name for info in store.list(names.CHANGELOG)] == names_


@pytest.mark.parametrize("why", [StorageError, SettingsError])
def test_a_storage_of_earlier_starts_that_is_gone_is_passed_over_and_the_newest_start_s_is_not(
    caplog: pytest.LogCaptureFixture, why: type[StorageError | SettingsError]
) -> None:
    routed = Routed({1: OtherStorages(QUICK), 2: OtherStorages(A)})
    routed.why = why
    kept = log(2)
    routed.store.put(kept, b"")
    routed.away = {QUICK}
    with caplog.at_level(logging.WARNING):
        assert [info.name for info in routed.again().list(names.CHANGELOG)] == [kept]
    assert f"{QUICK}, which only earlier starts of this job used, is passed over" in caplog.text
    routed.away = {A}
    with pytest.raises(why, match="no such bucket"):
        routed.again().list(names.CHANGELOG)


def test_nothing_is_deleted_in_a_storage_of_others_whatever_a_takeover_says() -> None:
    routed = Routed({1: OtherStorages(QUICK, (A,)), 2: OtherStorages(B)})
    theirs, own = log(1), table(1)
    for name in (theirs, own):
        routed.store.put(name, b"")
    routed.foreign = {QUICK}
    with pytest.raises(StorageError, match="belongs to another job"):
        routed.again().delete([names.job(), theirs])
    routed.again().delete([own])
    assert routed.lying(QUICK) == [theirs] and routed.lying(A) == []


@pytest.mark.parametrize("why", [StorageError, SettingsError])
def test_a_storage_that_is_gone_does_not_keep_the_others_from_deleting(why: type[StorageError | SettingsError]) -> None:
    routed = Routed({1: OtherStorages(QUICK, (A,))})
    lost, own = log(1), table(1)
    for name in (lost, own, names.job()):
        routed.store.put(name, b"")
    routed.away, routed.why = {QUICK}, why
    with pytest.raises(PartlyDeleted, match="no such bucket") as raised:
        routed.again().delete([lost, own, names.job()])
    assert raised.value.left == {lost}
    assert not routed.lying(A) and not routed.lying("memory://main")
    with pytest.raises(why, match="no such bucket"):
        routed.again().delete([lost])


def test_options_with_a_prefix_are_for_one_kind_of_storage_and_the_others_for_the_same_provider() -> None:
    given = {"aws_region": "eu-west-1", "changelog.aws_s3_express": "true", "shared.aws_region": "us-east-1"}
    logs, tables = OtherStorages("s3a://quick/x", ("s3://b/x",)).sites()
    assert options_of(logs, "s3://main/x", given) == {"aws_region": "eu-west-1", "aws_s3_express": "true"}
    assert options_of(tables, "s3://main/x", given) == {"aws_region": "us-east-1"}
    assert options_of(logs, "file:///main", given) == {"aws_s3_express": "true"}
    open_store("memory://main", given)
