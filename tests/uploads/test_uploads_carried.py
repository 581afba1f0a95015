"""Small objects of logs that travel: their bytes go along until their place is known, and their place never changes."""

import pytest

from holdfast.errors import CheckpointFailed
from holdfast.formats.handles import HERE
from holdfast.storage import names
from holdfast.uploads.carried import Carried

GATHERED = names.gathered_object(1, 3)


def manifest(offset: int, checkpoint: int = 3) -> str:
    name = GATHERED if checkpoint == 3 else names.gathered_object(1, checkpoint)
    return names.manifest_part(name, offset, 50, 0)


def added(carried: Carried, data: bytes) -> str:
    name = carried.add(data)
    assert name is not None
    return name


def test_an_object_goes_along_until_its_place_is_known_and_keeps_that_place() -> None:
    carried = Carried(100)
    first, second = added(carried, b"first"), added(carried, b"2nd")
    composed = carried.compose(3, [first, "dstl/1", second, first])
    assert composed.log == b"first2nd"
    assert composed.places == {first: (HERE, -8), second: (HERE, -3)}
    assert carried.in_store([first, "dstl/1"]) == ["dstl/1"]

    third = added(carried, b"third")
    assert carried.compose(4, [first, second, third]).log == b"first2ndthird", "the checkpoint before is still open"
    carried.completed(3, manifest(1000))
    composed = carried.compose(5, [first, second, third])
    assert composed.log == b"third"
    assert composed.places == {first: (GATHERED, 992), second: (GATHERED, 997), third: (HERE, -5)}
    assert carried.in_store([first, second]) == [GATHERED]

    carried.completed(4, manifest(2000, checkpoint=4))
    assert carried.compose(6, [first]).places == {first: (GATHERED, 992)}, "a later place is not taken"


def test_an_acknowledgement_says_which_places_were_known_when_it_was_composed() -> None:
    carried = Carried(100)
    name = added(carried, b"log")
    assert carried.compose(1, [name]).informed == -1
    carried.completed(1)
    composed = carried.compose(2, [name])
    assert (composed.informed, composed.log) == (1, b"log"), "news without a place leaves the bytes to go along again"


def test_objects_of_a_checkpoint_that_did_not_complete_go_along_with_the_next() -> None:
    carried = Carried(100)
    name = added(carried, b"log")
    carried.compose(1, [name])
    assert carried.compose(2, [name]).log == b"log"
    carried.completed(2, manifest(100))
    carried.completed(1, manifest(700))
    assert carried.in_store([name]) == [GATHERED]
    assert carried.compose(3, [name]).places == {name: (GATHERED, 97)}


def test_past_the_bound_an_object_is_stored_by_its_owner_until_a_place_frees_memory() -> None:
    carried = Carried(10)
    name = added(carried, b"12345678")
    assert carried.add(b"123") is None
    carried.compose(1, [name])
    carried.completed(1, manifest(100))
    assert carried.add(b"123") is not None
    assert Carried(0).add(b"1") is None


def test_forgotten_objects_leave_nothing_and_those_of_the_store_are_for_the_caller_to_delete() -> None:
    carried = Carried(10)
    name = added(carried, b"12345678")
    assert carried.forget([name, "dstl/1"]) == ["dstl/1"]
    assert carried.add(b"12345678") is not None
    with pytest.raises(CheckpointFailed, match="given up") as failure:
        carried.compose(1, [name])
    assert failure.value.soft
    carried.completed(1, manifest(100))


def test_logs_that_their_process_stores_with_the_manifest_have_their_place_at_once() -> None:
    carried = Carried(100)
    name = added(carried, b"log")
    carried.compose(1, [name])
    own = names.changelog_object(1, 2)
    carried.stored(1, names.manifest_behind_logs(own, 100, 50, 1, 0))
    composed = carried.compose(2, [name])
    assert (composed.log, composed.places) == (b"", {name: (own, 97)})
    assert carried.in_store([name]) == [own]


def test_only_objects_that_a_manifest_is_to_follow_may_be_larger_than_an_acknowledgement_takes_along() -> None:
    carried = Carried(10, awaited_bytes_max=100)
    assert carried.add(bytes(50)) is None
    name = carried.add(bytes(50), awaited=True)
    assert name is not None
    assert carried.add(bytes(51), awaited=True) is None, "no more is kept than is stored together"
    assert carried.add(bytes(5)) is None
    carried.forget([name])
    assert carried.add(bytes(5)) is not None
