"""How work is divided among units: few rows go out from few senders, many from all."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.graph.plan import PIECES_PER_UNIT_MAX, ROWS_PER_UNIT_MIN, divide, group_reads
from holdfast.sources.base import SplitRead


@given(st.lists(st.integers(0, 5_000), max_size=60), st.integers(1, 20))
def test_every_piece_is_in_one_unit_in_order_and_no_unit_is_empty(rows, units_max):
    parts = divide(rows, units_max)
    assert [place for part in parts for place in part] == list(range(len(rows)))
    assert all(len(part) for part in parts)
    assert len(parts) <= units_max


def test_a_small_batch_takes_few_of_many_senders():
    assert len(divide([1] * 2_000, 512)) == 2_000 // PIECES_PER_UNIT_MAX
    assert len(divide([500] * 4, 512)) == 4
    assert len(divide([20] * 10, 512)) == 1


def test_a_large_batch_takes_all_senders():
    assert len(divide([10_000] * 5_000, 512)) == 512
    assert len(divide([ROWS_PER_UNIT_MIN] * 8, 8)) == 8


def test_reads_of_unknown_size_are_spread_over_all_senders():
    reads = [SplitRead(str(number), None, None) for number in range(8)]
    assert group_reads(reads, 8) == [[read] for read in reads]
