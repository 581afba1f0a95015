"""Publication of groups: which errors may pass, which end the query, and no group is published after the end."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from holdfast.checkpoint import events
from holdfast.errors import CorruptObject, PublishFailed, StorageError
from holdfast.ids import JournalNumber
from holdfast.jobmaster.checkpoints.publisher import Publisher
from holdfast.journal.codec import encode_committables
from holdfast.sinks.base import PublishContext, Sink, StageContext
from holdfast.sinks.staging import StagedRows, encode
from journal_kit import fresh_store

JOB = "0" * 32
GROUP = [encode(StagedRows(1, 3, 0, 3, data=data)) for data in (b"one", b"two")]


@dataclass
class NotedSink(Sink):
    """Shows groups in a list, or fails with `error`; `gate` holds a publication up."""

    error: Exception | None = None
    shown: list[tuple[int, list[bytes], bytes]] = field(default_factory=list)
    discarded: list[bytes] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    kind = "noted"

    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        return []

    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        self.entered.set()
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        self.shown.append((number, list(committables), context.layout))

    def discard(self, committables: Iterable[bytes], context: PublishContext) -> None:
        self.discarded += committables


@contextmanager
def publishing(sink: NotedSink, open_gate: bool = True) -> Iterator[Publisher]:
    """A publisher whose store has a group, `group`, of two committables."""
    store = fresh_store()
    store.put("group", encode_committables("out", GROUP, b"as it was"))
    store.put("damaged", b"no group")
    if open_gate:
        sink.gate.set()
    publisher = Publisher(sink, PublishContext(JOB, "out", store, pa.schema([])), store)
    try:
        yield publisher
    finally:
        sink.gate.set()
        publisher.close()


def outcome_of(sink: NotedSink, name: str = "group") -> events.Event:
    posted: list[events.Event] = []
    with publishing(sink) as publisher:
        publisher.publish(events.Publish("out", JournalNumber(8), name), posted.append)
    (event,) = posted
    return event


def test_a_group_is_published_under_its_number_by_the_layout_of_its_time() -> None:
    sink = NotedSink()
    assert outcome_of(sink) == events.Published("out", JournalNumber(8))
    assert sink.shown == [(8, GROUP, b"as it was")]


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (StorageError("the store is away"), True),
        (ConnectionError("refused"), True),
        (StorageError("File name too long: …"), False),
        (PublishFailed("the table has another schema"), False),
        (CorruptObject("a staged file is damaged"), False),
        (ValueError("a mistake of the sink"), False),
    ],
)
def test_only_errors_of_input_and_output_may_pass(error: Exception, may_pass: bool) -> None:
    event = outcome_of(NotedSink(error=error))
    assert isinstance(event, events.PublicationFailed)
    assert event.io is may_pass
    assert str(error) in event.reason


def test_a_group_that_cannot_be_read_ends_the_query() -> None:
    for name in ("damaged", "missing"):
        event = outcome_of(NotedSink(), name)
        assert isinstance(event, events.PublicationFailed) and not event.io


def test_groups_that_wait_at_the_end_are_left_to_the_record_which_still_has_them() -> None:
    sink, posted = NotedSink(), list[events.Event]()
    with publishing(sink, open_gate=False) as publisher:
        publisher.publish(events.Publish("out", JournalNumber(8), "group"), posted.append)
        publisher.publish(events.Publish("out", JournalNumber(9), "group"), posted.append)
        assert sink.entered.wait(60)
        closing = threading.Thread(target=publisher.close)
        closing.start()
        sink.gate.set()
        closing.join(60)
        publisher.publish(events.Publish("out", JournalNumber(10), "group"), posted.append)
    assert [event.number for event in posted if isinstance(event, events.Published)][:1] == [8]
    assert all(number != 10 for number, *_ in sink.shown)


def test_discarding_gives_the_sink_the_committables_of_the_stored_group() -> None:
    sink = NotedSink()
    with publishing(sink) as publisher:
        publisher.discard("group")
    assert sink.discarded == GROUP
