"""Planning from the spool: batches end where transactions end, wherever segments and limits lie."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sources.postgres.slot_head import SlotHead
from holdfast.sources.spooled.segments import Segment, SegmentPart
from holdfast.sources.spooled.spool import Spool, SpoolPosition


def head_of(number, sequences, ends, open_xid):
    return SlotHead(
        number=number,
        previous=str(number - 1),
        system="s",
        slot="slot",
        sequences=sequences,
        ends=np.array(ends, np.int32).tobytes(),
        end_lsn=0,
        open_xid=open_xid,
        open_changes=0,
        parts={"t": SegmentPart(0, 1, 0, sequences)},
    )


def spool_of(sizes, pieces):
    """A spool of transactions with these numbers of messages, divided into segments after these messages."""
    ends = np.cumsum(sizes)
    cuts = sorted({*[p for p in pieces if p < ends[-1]], int(ends[-1])})
    spool, first = Spool("changes", False), 0
    for number, stop in enumerate(cuts):
        inside = [int(end) - first for end in ends if first < end <= stop]
        head = head_of(number, stop - first, inside, 0 if stop in ends else 7)
        spool.append(Segment(f"x-{number}", head, 100 * (stop - first)))
        first = stop
    return spool, [0, *cuts], {0, *map(int, ends)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=12),
    st.lists(st.integers(1, 100), max_size=6),
    st.integers(1, 20),
)
def test_every_message_is_planned_once_and_a_boundary_is_refused_just_inside_transactions(sizes, pieces, rows_max):
    spool, starts, allowed = spool_of(sizes, pieces)
    place, seen = SpoolPosition(0, 0), 0
    while place != spool.end:
        end, reads = spool.plan(place, spool.end, rows_max, 10**9)
        assert end != place
        planned = sum(read.stop - read.start for read in reads)
        seen += planned
        assert planned <= rows_max
        assert starts[end.segment] + end.sequence == seen
        assert (spool.refusal(end) == "") == (seen in allowed)
        place = end
    assert seen == sum(sizes)


@pytest.mark.parametrize(
    ("rows_max", "end"), [(100, SpoolPosition(0, 3)), (4, SpoolPosition(0, 3)), (3, SpoolPosition(0, 3))]
)
def test_a_transaction_whose_end_is_not_stored_is_waited_for(rows_max, end):
    head = head_of(0, 6, [3], 7)
    spool = Spool("changes", False)
    spool.append(Segment("x-0", head, 600))
    assert spool.plan(SpoolPosition(0, 0), spool.end, rows_max, 10**9)[0] == end
    assert spool.plan(end, spool.end, 100, 10**9) == (end, [])
    assert spool.plan(end, spool.end, 2, 10**9)[0] == SpoolPosition(0, 5)
    assert spool.last_cut == SpoolPosition(0, 3)
