"""Kernels against NumPy."""

import numpy as np
import pytest

from holdfast.state import kernels
from holdfast.state.columns import placed


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
@pytest.mark.parametrize("bits", [0, 1, 11, 12, 40, 64])
def test_argsort_is_stable_whatever_the_values_range_over(count: int, bits: int) -> None:
    rng = np.random.default_rng(count + bits)
    least = rng.integers(2**63, dtype=np.uint64) if bits < 64 else np.uint64(0)
    values = least + (
        rng.integers(2**64 - 1, size=count, dtype=np.uint64, endpoint=True) >> np.uint64(64 - bits)
        if bits
        else np.zeros(count, np.uint64)
    )
    assert kernels.argsort(values).tolist() == np.argsort(values, kind="stable").tolist()


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
@pytest.mark.parametrize("bits", [0, 7, 40, 64])
@pytest.mark.parametrize("group_count", [1, 5, 128, 32768])
def test_stored_heads_are_in_the_order_of_their_bytes(count: int, bits: int, group_count: int) -> None:
    """Groups, differences of tags and row numbers fit a word, or do not."""
    rng = np.random.default_rng(count + bits + group_count)
    tags = rng.integers(2**64 - 1, size=count, dtype=np.uint64, endpoint=True) >> np.uint64(min(64 - bits, 63))
    groups = rng.integers(group_count, size=count).astype(np.int32)
    order, heads = kernels.stored_heads(tags, groups, group_count)
    assert order.tolist() == np.lexsort((tags, groups)).tolist()
    found = heads.view(kernels.STORED_HEAD)
    assert found["group"].tolist() == groups[order].tolist()
    assert found["tag"].astype(np.int64).tolist() == tags[order].view(np.int64).tolist()


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_where_gives_the_numbers_of_set_flags(count: int, share: float) -> None:
    flags = np.random.default_rng(count).random(count) < share
    found = kernels.where(flags)
    assert found.dtype == np.int32
    assert found.tolist() == np.flatnonzero(flags).tolist()


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_rows_come_to_be_in_stable_order_of_their_groups(count: int) -> None:
    groups = np.random.default_rng(count).integers(7, size=count).astype(np.int32)
    targets, in_order = kernels.targets_by_group(groups, 9)
    numbers = placed(np.arange(count, dtype=np.int32), targets)
    assert numbers.tolist() == np.argsort(groups, kind="stable").tolist()
    assert in_order.tolist() == sorted(groups.tolist())


def test_numbers_by_slot_tell_which_row_a_slot_is() -> None:
    assert kernels.numbers_by_slot(np.array([4, 0, 2], np.int32), 6).tolist() == [2, 0, 3, 0, 1, 0]
