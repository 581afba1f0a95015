"""The skew of key groups: exact enough by a sample, silent where rows are few, and looked at seldom."""

import numpy as np
import pyarrow as pa

from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.table import StateTable
from holdfast.taskmanager.key_group_skew import KeyGroupSkew

GROUPS = 16
ALL_KEYS = np.arange(200_000)
GROUP_OF = key_groups(encode_keys(pa.record_batch({"k": ALL_KEYS}), ["k"]), GROUPS)


def skew_of(*batches: np.ndarray) -> tuple[KeyGroupSkew, StateTable]:
    table = StateTable(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]), GROUPS)
    skew = KeyGroupSkew(table, GROUPS, GROUPS)
    for number, keys in enumerate(batches, start=1):
        table.begin(number)
        table.present[table.lookup(pa.record_batch({"k": keys}))] = True
        table.commit()
        skew.look()
    return skew, table


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
