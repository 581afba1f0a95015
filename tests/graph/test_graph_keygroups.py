import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import SettingsError
from holdfast.graph.keygroups import default_max_parallelism, key_group_range, subtask_of
from holdfast.state.keys import encode_keys, key_groups


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (2, 128), (85, 128), (86, 256), (128, 256), (171, 256), (172, 512), (20_000, 32_768), (32_768, 32_768)],
)
def test_default_max_parallelism_is_flinks(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(1, 128), (3, 128), (7, 10), (10, 10), (128, 128)])
def test_ranges_cover_every_key_group_once_and_agree_with_subtask_of(parallelism: int, max_parallelism: int) -> None:
    owned = []
    for subtask in range(parallelism):
        start, stop = key_group_range(subtask, parallelism, max_parallelism)
        assert all(subtask_of(group, parallelism, max_parallelism) == subtask for group in range(start, stop))
        owned += range(start, stop)
    assert owned == list(range(max_parallelism))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: default_max_parallelism(0), "parallelism is 0"),
        (lambda: key_group_range(2, 2, 128), "subtask is 2"),
        (lambda: key_group_range(0, 129, 128), "parallelism is 129"),
        (lambda: key_group_range(0, 1, 40_000), "max_parallelism is 40000"),
    ],
)
def test_settings_out_of_range_are_refused_with_what_is_allowed(call: object, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        call()  # type: ignore[operator]


def test_key_groups_of_known_keys_never_change() -> None:
    """Key groups are stored with every job: a change of these values would lose its state."""
    columns = {
        "int": pa.array([0, 1, -1, 2**63 - 1, -(2**63)], pa.int64()),
        "small": pa.array([0, 1, -1, 127, -128], pa.int8()),
        "flag": pa.array([True, False, True, False, True]),
        "day": pa.array([0, 1, -1, 20_000, 40_000], pa.date32()),
        "time": pa.array([0, 1, -1, 10**15, 10**18], pa.timestamp("us")),
        "text": pa.array(["", "a", "AA", "ORD", "grüße, a longer one than 32 bytes"]),
    }
    rows = pa.record_batch(columns)
    found = {name: key_groups(encode_keys(rows, [name]), 128).tolist() for name in columns}
    found["pair"] = key_groups(encode_keys(rows, ["text", "day"]), 128).tolist()
    found["modulo 100"] = key_groups(encode_keys(rows, ["int"]), 100).tolist()
    assert found == GOLDEN


def test_hashes_are_splitmix64_and_xxh64() -> None:
    integers = encode_keys(pa.record_batch({"k": pa.array([0], pa.int64())}), ["k"])
    assert integers.hashes.tolist() == [0xE220A8397B1DCDAF]
    texts = ["", "a", "abc", "Nobody inspects the spammish repetition"]
    known = [0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B, 0x44BC2CF5AD770999, 0xFBCEA83C8A378BF1]
    assert encode_keys(pa.record_batch({"k": pa.array(texts)}), ["k"]).hashes.tolist() == known


def test_keys_spread_evenly_over_key_groups() -> None:
    groups = key_groups(encode_keys(pa.record_batch({"k": pa.array(np.arange(128_000))}), ["k"]), 128)
    counts = np.bincount(groups, minlength=128)
    assert counts.min() > 850
    assert counts.max() < 1150


GOLDEN: dict[str, list[int]] = {
    "int": [47, 65, 32, 39, 91],
    "small": [47, 65, 32, 24, 57],
    "flag": [65, 47, 65, 47, 65],
    "day": [47, 65, 32, 30, 72],
    "time": [47, 65, 32, 91, 15],
    "text": [25, 91, 54, 98, 102],
    "pair": [65, 27, 109, 3, 77],
    "modulo 100": [35, 65, 36, 39, 15],
}
