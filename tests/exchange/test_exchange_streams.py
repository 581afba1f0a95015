"""Claims in columns: each TaskManager's are the same as if every stream were an object of its own."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.streams import Sent, SentStream, SentUnit, Streams, by_task_manager

numbers = st.integers(0, 2**32 - 1)
claims = st.dictionaries(st.integers(0, 70), st.tuples(st.integers(1, 2**63 - 1), numbers), max_size=5)


@given(st.lists(st.tuples(numbers, st.text("0123456789abcdef", min_size=1, max_size=32), claims), max_size=8))
def test_each_task_manager_is_told_its_streams_in_the_order_of_the_units(sent):
    units = [SentUnit(unit, attempt, Sent.of([(tm, *each[tm]) for tm in each])) for unit, attempt, each in sent]
    expected: dict[int, list[SentStream]] = {}
    for unit, attempt, each in sent:
        for task_manager, (rows, digest) in each.items():
            expected.setdefault(task_manager, []).append(SentStream(unit, attempt, rows, digest))
    found = by_task_manager(units)
    assert {task_manager: list(streams) for task_manager, streams in found.items()} == expected
    assert all(Streams.of(each) == found[task_manager] for task_manager, each in expected.items())
