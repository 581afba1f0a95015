"""The skew of key groups: exact enough by a sample, silent where rows are few, and looked at seldom."""

from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.settings import RocksDBState
from holdfast.state.backends import new_table
from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.table import StateTable
from holdfast.taskmanager.key_group_skew import PAUSE_RATIO, KeyGroupSkew

GROUPS = 16
ALL_KEYS = np.arange(200_000)
GROUP_OF = key_groups(encode_keys(pa.record_batch({"k": ALL_KEYS}), ["k"]), GROUPS)


def skew_of(*batches: np.ndarray) -> tuple[KeyGroupSkew, StateTable]:
    table = StateTable(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]), GROUPS)
    skew = KeyGroupSkew(table, GROUPS, GROUPS, count().__next__)
    for number, keys in enumerate(batches, start=1):
        commit(table, number, keys)
        skew.look()
    return skew, table


def commit(table: StateTable, number: int, keys: np.ndarray) -> None:
    table.begin(number)
    table.present[table.lookup(pa.record_batch({"k": keys}))] = True
    table.commit()


def test_even_keys_have_a_skew_of_about_one() -> None:
    skew, _ = skew_of(ALL_KEYS)
    assert skew.value is not None and 1.0 <= skew.value < 1.2


def test_a_key_group_with_half_of_the_rows_is_seen() -> None:
    full, others = ALL_KEYS[GROUP_OF == 3], ALL_KEYS[GROUP_OF != 3][:10_000]
    keys = np.random.default_rng(1).permutation(np.concatenate([full[:10_000], others]))
    skew, _ = skew_of(keys)
    assert skew.value is not None and 7.0 < skew.value < 9.5, "half of the rows instead of a sixteenth"


def test_few_rows_say_nothing_and_small_changes_are_not_looked_at() -> None:
    skew, table = skew_of(ALL_KEYS[:100])
    assert skew.value is None
    skew, table = skew_of(ALL_KEYS[:10_000])
    before = skew.value
    assert before is not None
    full = ALL_KEYS[GROUP_OF == 3]
    table.begin(2)
    table.present[table.lookup(pa.record_batch({"k": full[full >= 10_000][:900]}))] = True
    table.commit()
    skew.look()
    assert skew.value == before
    table.begin(3)
    table.present[table.lookup(pa.record_batch({"k": full[full >= 10_000][900:2_000]}))] = True
    table.commit()
    skew.look()
    assert skew.value is not None and skew.value > before


@pytest.mark.parametrize("cached", [0, 50], ids=["uncached", "with a cache"])
def test_rows_in_rocksdb_are_walked_in_pieces_far_apart_until_their_skew_is_known(tmp_path: Path, cached: int) -> None:
    backend = RocksDBState(cache_max_entries=cached)
    table = new_table(backend, str(tmp_path), pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]), GROUPS)
    try:
        now_s, looks = 0.0, 0

        def later() -> float:
            """Each look at the clock is a second later: a piece takes a second."""
            nonlocal now_s
            now_s += 1.0
            return now_s

        skew = KeyGroupSkew(table, GROUPS, GROUPS, later)
        full, others = ALL_KEYS[GROUP_OF == 3][:10_000], ALL_KEYS[GROUP_OF != 3][:10_000]
        commit(table, 1, np.concatenate([full, others]))
        while skew.value is None:
            skew.look()
            looks += 1
        assert 7.5 < skew.value < 8.5, "all rows are counted: half of them are in one of 16 groups"
        assert looks > 3 * PAUSE_RATIO, "between two pieces there is a pause"
        commit(table, 2, ALL_KEYS[GROUP_OF == 5][:10_000])
        skew.look()
        assert skew.value > 7.5, "the figure stays until the next is known"
    finally:
        table.close()
