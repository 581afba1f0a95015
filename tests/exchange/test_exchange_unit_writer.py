import pyarrow as pa
import pytest
from exchange_kit import divided
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.exchange import unit_writer as module
from holdfast.exchange.unit_writer import UnitAttempt, UnitWriter
from holdfast.graph.program import OperatorTarget
from holdfast.protocol.streams import SentStream
from holdfast.protocol.taskmanager import ExchangeRoute, ExchangeRoutes, SectionRows, StreamTag
from holdfast.taskmanager.digest import Section, fold, of_sections

TARGET = OperatorTarget("op", 0, ("k",))
SCHEMA = pa.schema([("k", pa.int64()), ("i", pa.int64())])


class NotingWriter(UnitWriter):
    """Keeps messages instead of sending them, cut into sections as a TaskManager would."""

    def __init__(self, owners: list[int]) -> None:
        routes = [ExchangeRoute(index, 10 + index, f"grpc://tm{index}:1") for index in sorted(set(owners))]
        super().__init__(ExchangeRoutes("job", routes, owners, 128), UnitAttempt(3, 7, 0, 2, "attempt"))
        self.messages: list[tuple[int, StreamTag, pa.RecordBatch]] = []
        self.arrived: dict[tuple[int, int], list[pa.RecordBatch]] = {}

    def abort(self) -> None:
        self.messages.clear()

    def _deliver(self, task_manager: int, tag: StreamTag, sections: list[SectionRows], rows: pa.RecordBatch) -> None:
        self.messages.append((task_manager, tag, rows))
        assert sum(section.rows for section in sections) == rows.num_rows
        start = 0
        for section in sections:
            piece = rows.slice(start, section.rows)
            self.arrived.setdefault((task_manager, section.subtask), []).append(piece)
            start += section.rows

    def _end(self) -> None:
        return None

    def _wait(self) -> None:
        return None


def rows(keys: list[int], first: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(keys, pa.int64()), pa.array(range(first, first + len(keys)), pa.int64())], schema=SCHEMA
    )


@pytest.fixture
def small_messages(monkeypatch):
    monkeypatch.setattr(module, "ROWS_PER_MESSAGE_MIN", 8)
    monkeypatch.setattr(module, "ROWS_PER_MESSAGE_MAX", 16)


@settings(max_examples=20, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(-5, 5), max_size=40), max_size=6),
    owners=st.lists(st.integers(0, 2), min_size=1, max_size=7),
)
def test_each_subtask_gets_its_rows_in_order_from_its_own_task_manager_and_the_totals_say_so(batches, owners):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_PER_MESSAGE_MIN", 8)
        patch.setattr(module, "ROWS_PER_MESSAGE_MAX", 16)
        sender = NotingWriter(owners)
        sent, first = [], 0
        for keys in batches:
            sent.append(rows(keys, first))
            first += len(keys)
            assert len(sender.send(TARGET, sent[-1])) == 0
        sent_streams = sender.finish().streams(2, "attempt")
    whole = pa.concat_batches(sent) if sent else rows([])
    expected = {(owners[subtask], subtask): part for subtask, part in divided(whole, ["k"], len(owners), 128)}
    assert {key: pa.concat_batches(pieces) for key, pieces in sender.arrived.items()} == expected
    sections: dict[int, dict[Section, tuple[int, int]]] = {}
    for (index, subtask), pieces in sender.arrived.items():
        sections.setdefault(index, {})["op", 0, subtask] = sum(p.num_rows for p in pieces), digest(pieces)
    assert sent_streams == {index: SentStream(2, "attempt", *of_sections(each)) for index, each in sections.items()}


def digest(pieces: list[pa.RecordBatch]) -> int:
    value = 0
    for piece in pieces:
        value = fold(value, piece)
    return value


def test_small_batches_wait_for_more_and_large_ones_are_cut(small_messages):
    sender = NotingWriter([0])
    for _ in range(7):
        sender.send(TARGET, rows([1]))
    assert sender.messages == []
    sender.send(TARGET, rows(list(range(40))))
    assert [message.num_rows for _, _, message in sender.messages] == [16, 16, 15]
    sender.send(TARGET, rows([1]))
    sender.finish()
    assert [message.num_rows for _, _, message in sender.messages] == [16, 16, 15, 1]


def test_streams_carry_the_incarnation_of_their_task_manager():
    sender = NotingWriter([1, 0])
    sender.send(TARGET, rows(list(range(50))))
    sender.finish()
    assert {index: tag.exchange.incarnation for index, tag, _ in sender.messages} == {0: 10, 1: 11}
    assert {(tag.exchange.run, tag.exchange.batch, tag.exchange.unit) for _, tag, _ in sender.messages} == {(3, 7, 2)}


def test_one_subtask_is_sent_the_rows_themselves():
    sender = NotingWriter([0])
    batch = rows(list(range(100)))
    sender.send(TARGET, batch)
    sender.finish()
    [(_, _, message)] = sender.messages
    assert message.column("k").buffers()[1].address == batch.column("k").buffers()[1].address


def test_only_rows_with_null_keys_are_left_out_and_named():
    sender = NotingWriter([0, 0])
    batch = pa.record_batch([pa.array([4, None, 4, None], pa.int64()), pa.array([0, 1, 2, 3])], schema=SCHEMA)
    assert sender.send(TARGET, batch).tolist() == [1, 3]
    sender.finish()
    [(_, _, message)] = sender.messages
    assert message.column("i").to_pylist() == [0, 2]


def test_without_rows_there_are_no_streams():
    sender = NotingWriter([0])
    sender.send(TARGET, rows([]))
    assert len(sender.finish()) == 0
