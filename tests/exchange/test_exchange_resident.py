"""A sender over Flight: the call with an order returns at once; a sender that hangs tells which split it reads; orders
end when they are cancelled."""

import threading
from collections.abc import Iterator
from typing import ClassVar

import msgspec
import pytest

import holdfast as hf
from holdfast.errors import SenderLost, StaleCall
from holdfast.exchange.local import LocalLinks
from holdfast.exchange.resident import Order, OrderCommon, ResidentSender
from holdfast.exchange.resident_server import ResidentClient, ResidentServer
from holdfast.exchange.task import LevelRequest, UnitResult
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.plan import Unit
from holdfast.ids import ProcessId, Role
from holdfast.protocol.taskmanager import ExchangeRoutes
from holdfast.sources.base import SourceBatch, SplitRead
from holdfast.storage.store import open_store
from holdfast.taskmanager.remote import address
from holdfast.taskmanager.security import new_secret

SECRET = new_secret()
SENDER = ProcessId(Role.SENDER, 0, 1)
WAIT_S_MAX = 20.0


class Hanging(hf.SequenceSource):
    """Hangs in split 1 until the test lets it go."""

    reads: ClassVar[threading.Event] = threading.Event()
    go: ClassVar[threading.Event] = threading.Event()

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        if read.split == "1":
            self.reads.set()
            assert self.go.wait(WAIT_S_MAX)
        yield from super().read(read)


class NoLinks:
    def links(self, routes: ExchangeRoutes) -> LocalLinks:
        return LocalLinks(routes, {})


@pytest.fixture
def client() -> Iterator[ResidentClient]:
    job = hf.Job(None, name="resident", storage="memory://resident")
    job.read(Hanging(12, splits=3, name="numbers")).write(hf.NoopSink(name="out"))
    program = build_program(job.declared, without_spark, None)
    sender = ResidentSender(program, open_store(job.storage), NoLinks())
    server = ResidentServer(sender, SENDER, SECRET, "127.0.0.1")
    try:
        with ResidentClient(SENDER, address("127.0.0.1", server.port), SECRET) as made:
            yield made
    finally:
        Hanging.go.set()
        server.close()


def order(attempt: int) -> Order:
    reads = [SplitRead(str(split), 0, 4, 4) for split in range(3)]
    request = LevelRequest("job", 1, 1, 1, 0)
    common = OrderCommon(request, ExchangeRoutes("job", [], [], 8))
    return Order(msgspec.Raw(msgspec.msgpack.encode(common)), attempt, [Unit(0, 0, reads=reads)])


def test_a_sender_that_hangs_tells_which_split_it_reads_and_nothing_between_orders(client: ResidentClient):
    found: list[UnitResult] = []
    running = threading.Thread(target=lambda: found.extend(client.run(order(7))))
    running.start()
    assert Hanging.reads.wait(WAIT_S_MAX)
    assert client.split(7) == "1"
    assert client.split(6) == ""
    Hanging.go.set()
    running.join(WAIT_S_MAX)
    assert [(result.rows, result.failure) for result in found] == [(12, None)]
    assert client.split(7) == ""
    with pytest.raises(StaleCall):
        list(client.run(order(7)))


def test_the_call_with_an_order_returns_while_its_first_unit_is_worked_off(client: ResidentClient):
    Hanging.reads.clear()
    Hanging.go.clear()
    answers: list[Iterator[UnitResult]] = []
    calling = threading.Thread(target=lambda: answers.append(client.run(order(9))), daemon=True)
    calling.start()
    assert Hanging.reads.wait(WAIT_S_MAX)
    calling.join(WAIT_S_MAX)
    assert len(answers) == 1 and not Hanging.go.is_set(), "otherwise senders work one after the other"
    Hanging.go.set()
    assert [result.rows for result in answers[0]] == [12]


def test_an_order_that_is_cancelled_ends_without_a_result_and_one_that_was_cancelled_before_does_nothing(
    client: ResidentClient,
):
    Hanging.reads.clear()
    Hanging.go.clear()
    answer = client.run(order(11))
    assert Hanging.reads.wait(WAIT_S_MAX)
    client.cancel(12)
    Hanging.go.set()
    with pytest.raises(StaleCall, match="attempt 11 was cancelled"):
        next(answer)
    Hanging.reads.clear()
    with pytest.raises(StaleCall, match="attempt 12 was cancelled"):
        next(client.run(order(12)))
    assert not Hanging.reads.is_set()
    assert [result.rows for result in client.run(order(13))] == [12]


def test_a_sender_that_is_gone_tells_nothing(client: ResidentClient):
    with ResidentClient(SENDER, address("127.0.0.1", 1), SECRET) as nobody, pytest.raises(SenderLost):
        nobody.split(1)
