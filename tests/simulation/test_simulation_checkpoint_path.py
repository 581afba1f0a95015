"""The benchmark of the requests that a checkpoint waits for runs, and finds two rounds."""

import pytest

from benchmarks.checkpoint_path import LARGE_BYTES, SMALL_BYTES, measure


@pytest.mark.parametrize(("size_bytes", "requests"), [(SMALL_BYTES, 4), (LARGE_BYTES, 3 + 4)])
def test_a_checkpoint_is_stored_in_two_rounds_of_requests(size_bytes: int, requests: int) -> None:
    found = measure(3, 2, size_bytes, 2, lambda _: 0.05).report()
    assert (found["sequential_requests"], found["requests"]) == (2, requests)
    assert (found["data_p99_ms"], found["p99_ms"]) == (50.0, 100.0)
