"""Kernels against NumPy."""

import numpy as np
import pytest

from holdfast.state import kernels


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
