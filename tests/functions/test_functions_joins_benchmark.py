"""The benchmark of joins counts every row that is kept."""

from benchmarks.joins import measure


def test_the_benchmark_of_joins_counts_all_that_is_kept() -> None:
    found = measure(keys=50, rows=2_000)
    assert (found["heads"], found["rows"]) == (50, 2_000)
    assert found["bytes_per_row"] > 24, "at least the row itself"
