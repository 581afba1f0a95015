"""Manifests: round trip, refusals, the golden file."""

import itertools
import os
import random
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace
from obstore.store import MemoryStore

from holdfast.errors import CorruptObject, ObjectNotFound
from holdfast.formats.handles import HERE, LogPiece, Manifest, MaterializedPart, TableHandle
from holdfast.formats.manifests import VERSION, decode_manifest, encode_manifest, load_manifests
from holdfast.storage import names
from holdfast.storage.framing import frame
from holdfast.storage.obstore_store import ObstoreStore

GOLDEN = Path(__file__).parent / "golden"
JOB = "0123456789abcdef" * 2


PLACE = "000000000001/000000000001/" + "0" * 32


def travelling() -> Manifest:
    """A manifest with a log beside it, 240 bytes before its start."""
    made = manifest()
    [handle] = made.tables
    part = replace(handle.materialized[0], object=f"shared/{PLACE}")
    log = [replace(handle.log[0], object=f"dstl/{PLACE}"), LogPiece(HERE, -240, 200, 5, 6, 0, 8, 19)]
    return replace(made, tables=[replace(handle, materialized=[part], log=log)])


def manifest(checkpoint_id: int = 4) -> Manifest:
    part = MaterializedPart("shared/1/1/a", 0, 100, 0, 8, head_crc=2**32 - 1)
    piece = LogPiece("dstl/1/1/b", 16, 200, 3, 5, 2, 8, 17)
    handle = TableHandle("count", "state", 0, 8, b"schema", [part], [piece])
    return Manifest(1, checkpoint_id, 2, 3, 99, [handle], JOB)


def test_a_manifest_comes_back_as_it_was():
    assert decode_manifest("m", encode_manifest(manifest())) == manifest()


LATER = f"dstl/{2:012d}/{1:012d}/{'0f' * 16}"


@pytest.mark.parametrize("name", ["dstl/1", "shared/../job", names.manifest(1, 4, 2), LATER])
def test_a_manifest_that_names_other_objects_than_state_of_its_time_is_refused(name: str) -> None:
    """Objects that no record names any more are deleted."""
    named = [replace(each, log=[LogPiece(name, 16, 200, 3, 5, 2, 8)], materialized=[]) for each in manifest().tables]
    with pytest.raises(CorruptObject, match=r"refers to .* expected an object"):
        decode_manifest(names.manifest(1, 4, 2), encode_manifest(replace(manifest(), tables=named)))


def test_manifests_are_loaded_in_the_order_of_their_names():
    store = ObstoreStore("memory://", MemoryStore())
    for number in range(20):
        store.put(f"m/{number}", encode_manifest(manifest(number)))
    wanted = [f"m/{number}" for number in reversed(range(20))]
    assert [each.checkpoint_id for each in load_manifests(store, wanted)] == list(reversed(range(20)))
    assert load_manifests(store, []) == []
    with pytest.raises(ObjectNotFound, match="m/20"):
        load_manifests(store, ["m/1", "m/20"])


def test_lost_manifests_are_counted_and_the_ways_out_are_named():
    store = ObstoreStore("memory://", MemoryStore())
    store.put("m/1", encode_manifest(manifest(1)))
    message = "2 of the 3 manifests of the checkpoint are missing, the first is 'm/7'.*journal/.*backup.*start_from"
    with pytest.raises(ObjectNotFound, match=message):
        load_manifests(store, ["m/7", "m/1", "m/8"])


def test_every_flipped_bit_and_every_truncation_is_noticed_with_the_objects_name():
    data = encode_manifest(manifest())
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptObject, match="manifests/m"):
            decode_manifest("manifests/m", bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(CorruptObject, match="manifests/m"):
            decode_manifest("manifests/m", data[:length])


def test_another_version_and_another_content_are_refused():
    with pytest.raises(CorruptObject, match=rf"m: format version {VERSION + 1}"):
        decode_manifest("m", frame(b"HFMF", VERSION + 1, b""))
    with pytest.raises(CorruptObject, match="m: is no manifest"):
        decode_manifest("m", frame(b"HFMF", VERSION, zlib.compress(b"\x91\x01")))
    with pytest.raises(CorruptObject, match="m: is no manifest"):
        decode_manifest("m", frame(b"HFMF", VERSION, b"not compressed"))


def test_the_golden_manifest_is_read_as_it_was_written():
    """`REWRITE_GOLDEN=1` writes the golden file anew: only for a new version."""
    golden = GOLDEN / "manifest-4.bin"
    beside = travelling()
    if os.environ.get("REWRITE_GOLDEN"):
        golden.write_bytes(encode_manifest(beside))
    place = names.manifest_part(names.gathered_object(1, 4), 900, 50, 2)
    placed_beside = decode_manifest(place, encode_manifest(beside))
    assert decode_manifest(place, golden.read_bytes()) == placed_beside
    assert golden.read_bytes() == encode_manifest(beside)


def test_a_manifest_of_version_3_is_read():
    assert decode_manifest("golden", (GOLDEN / "manifest-3.bin").read_bytes()) == manifest()


def test_a_manifest_in_a_gathered_object_says_where_the_logs_beside_it_lie():
    gathered = names.gathered_object(1, 4)
    [handle] = decode_manifest(names.manifest_part(gathered, 900, 50, 2), encode_manifest(travelling())).tables
    assert [(each.object, each.offset) for each in handle.log] == [("dstl/" + PLACE, 16), (gathered, 660)]


def test_a_manifest_behind_its_logs_says_where_they_lie_and_is_refused_for_another_checkpoint():
    own = names.changelog_object(1, 7)
    [handle] = decode_manifest(names.manifest_behind_logs(own, 900, 50, 4, 2), encode_manifest(travelling())).tables
    assert [(each.object, each.offset) for each in handle.log] == [("dstl/" + PLACE, 16), (own, 660)]
    with pytest.raises(CorruptObject, match=own):
        decode_manifest(names.manifest_behind_logs(own, 900, 50, 5, 2), encode_manifest(travelling()))


@pytest.mark.parametrize("place", [(names.gathered_object(1, 5), 900), (names.gathered_object(1, 4), 200)])
def test_a_manifest_in_another_checkpoints_object_or_with_a_log_before_its_start_is_refused(place):
    name, offset = place
    with pytest.raises(CorruptObject, match=name):
        decode_manifest(names.manifest_part(name, offset, 50, 2), encode_manifest(travelling()))


def test_a_log_beside_the_manifest_is_refused_where_there_is_no_gathered_object():
    with pytest.raises(CorruptObject, match="expected an object below"):
        decode_manifest(names.manifest(1, 4, 2), encode_manifest(travelling()))


def test_a_manifest_of_version_2_is_read_without_checksums_and_job():
    read = decode_manifest("golden", (GOLDEN / "manifest-2.bin").read_bytes())
    [handle] = read.tables
    assert read.job is None and [each.head_crc for each in handle.ranges()] == [None, None]
    [part], [piece] = handle.materialized, handle.log
    part, piece = replace(part, head_crc=2**32 - 1), replace(piece, head_crc=17)
    assert replace(read, job=JOB, tables=[replace(handle, materialized=[part], log=[piece])]) == manifest()


def test_a_task_manager_of_many_logs_keeps_its_manifest_small() -> None:
    """8 subtasks of 6 tables, 64 pieces each: the pieces of a cut lie in the same object, whose name is random."""
    objects = [names.changelog_object(1, 1) for _ in range(64)]
    handles = [
        TableHandle(
            "count",
            f"state-{table}",
            subtask * 16,
            subtask * 16 + 16,
            random.Random(table).randbytes(600),
            [],
            [
                LogPiece(name, 16 + log * 700 + n, 700 + n, n, n + 1, subtask * 16, subtask * 16 + 16)
                for n, name in enumerate(objects)
            ],
        )
        for log, (subtask, table) in enumerate(itertools.product(range(8), range(6)))
    ]
    assert len(encode_manifest(Manifest(1, 1, 1, 1, 1, handles))) < 64_000
