"""Small rows of a unit travel in the body of a single call to a TaskManager, larger ones as streams of Flight."""

from collections import Counter

import pyarrow as pa
import pytest

from holdfast.errors import StaleCall, TaskManagerLost
from holdfast.exchange.connections import Connections
from holdfast.exchange.links import FlightLinks
from holdfast.exchange.unit_writer import UnitAttempt
from holdfast.graph.program import OperatorTarget
from holdfast.protocol import parcels
from holdfast.protocol.streams import SentUnit, by_task_manager
from holdfast.protocol.taskmanager import ExchangeRoute, ProcessRequest
from holdfast.taskmanager import server as served
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.remote import address
from taskmanager_kit import COUNT, INPUT, SECRET, OneTaskManager, counting, program, rows

OPERATORS = ("one", "two", "three")
LARGE = range(20_000)


class CalledTaskManager(OneTaskManager):
    """A TaskManager behind Flight that hosts several operators; `calls` counts what arrives at its server."""

    def __init__(self, tmp_path, monkeypatch):
        super().__init__(tmp_path)
        self.calls = Counter()
        for method in ("do_put", "do_get", "do_action"):
            monkeypatch.setattr(served._Server, method, self._counted(getattr(served._Server, method), method))
        self.server = served.TaskManagerServer(self.task_manager, SECRET, "127.0.0.1")
        self.address = address("127.0.0.1", self.server.port)
        self.client = TaskManagerClient(ExchangeRoute(0, 1, self.address), SECRET)
        self.connections = Connections(SECRET)
        self.links = FlightLinks(self.routes(self.address), self.connections)
        shipped = program(*(counting(name) for name in OPERATORS))
        self.task_manager.deploy(self.deployment(shipped=shipped, subtasks=self.subtasks([], OPERATORS)))

    def _counted(self, method, name):
        def call(server, context, *arguments):
            self.calls[arguments[0].type if name == "do_action" else name] += 1
            return method(server, context, *arguments)

        return call

    def push(self, keys_of):
        """Send keys to each operator, as the outputs of a unit do; return their claims."""
        senders = [self.links.open_writer(UnitAttempt(1, 0, 0, 0, name)) for name in keys_of]
        for sender, (name, keys) in zip(senders, keys_of.items(), strict=True):
            sender.send(OperatorTarget(name, 0, ("k",)), rows(*keys))
        for sender in senders:
            sender.end()
        return [SentUnit(0, sender.unit.attempt, sender.wait()) for sender in senders]

    def process(self, sent):
        for level in (1, 2, 3):
            streams = by_task_manager([each for each in sent if OPERATORS.index(each.attempt) == level - 1])
            self.task_manager.process(ProcessRequest(1, 0, 0, level, streams[0]))

    def pulled(self, operator):
        pieces = [piece for subtask in (0, 1) for piece in self.links.output(1, 0, operator, subtask)]
        found = pa.Table.from_batches(pieces)
        return dict(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True))

    def close(self):
        self.connections.close()
        self.client.close()
        self.server.close()
        self.task_manager.close()


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = CalledTaskManager(tmp_path, monkeypatch)
    yield made
    made.close()


def test_small_rows_of_all_targets_of_a_unit_travel_in_one_call_and_their_outputs_in_one_answer(world):
    keys_of = {"one": [1, 2, 2, 3], "two": [5], "three": [7, 8]}
    world.process(world.push(keys_of))
    assert world.calls == {"receive": 1}
    world.links.expect(1, 0, [(name, subtask) for name in OPERATORS for subtask in (0, 1)])
    assert {name: world.pulled(name) for name in OPERATORS} == {
        name: dict(Counter(keys)) for name, keys in keys_of.items()
    }
    assert world.calls == {"receive": 1, "outputs": 1}


def test_rows_beyond_the_bound_travel_as_streams_beside_small_ones(world):
    keys_of = {"one": LARGE, "two": [5], "three": [7]}
    world.process(world.push(keys_of))
    assert world.calls == {"do_put": 1, "receive": 1}
    world.links.expect(1, 0, [(name, subtask) for name in OPERATORS for subtask in (0, 1)])
    assert {name: world.pulled(name) for name in OPERATORS} == {
        name: dict(Counter(keys)) for name, keys in keys_of.items()
    }
    assert world.calls["outputs"] == world.calls["do_get"] == 1


def test_a_parcel_that_is_full_leaves_further_rows_to_streams(world, monkeypatch):
    [sent] = [rows(*range(100))]
    monkeypatch.setattr("holdfast.exchange.parcels.PARCEL_BYTES_MAX", int(2.5 * parcels.size_of([sent])))
    world.process(world.push(dict.fromkeys(OPERATORS, range(100))))
    assert world.calls == {"receive": 1, "do_put": 1}


def test_outputs_that_nobody_expects_or_that_are_asked_for_again_are_streamed(world):
    world.process(world.push({"one": [1], "two": [2], "three": [3]}))
    assert world.pulled("one") == world.pulled("one") == {1: 1}
    assert world.calls == {"receive": 1, "do_get": 4}


def test_the_rows_of_a_unit_that_gave_up_are_not_sent_with_those_of_others(world):
    senders = [world.links.open_writer(UnitAttempt(1, 0, 0, 0, attempt)) for attempt in ("given up", "kept")]
    for sender in senders:
        sender.send(OperatorTarget("one", 0, ("k",)), rows(1, 2))
        sender.end()
    senders[0].abort()
    senders[1].wait()
    assert [key.attempt for key in world.task_manager._inputs._attempts] == ["kept"]


def test_a_refused_parcel_fails_all_of_its_senders_with_the_error(world):
    world.task_manager.undo(3)
    senders = [world.links.open_writer(UnitAttempt(1, 0, 0, 0, attempt)) for attempt in ("a", "b")]
    for sender in senders:
        sender.send(OperatorTarget("one", 0, ("k",)), rows(1, 2))
        sender.end()
    for sender in senders:
        with pytest.raises(StaleCall, match="run 3 has begun"):
            sender.wait()
    world.links.expect(1, 0, [("one", 0), ("one", 1)])
    with pytest.raises(StaleCall, match="run 3 has begun"):
        world.links.output(1, 0, "one", 0)


def test_rows_for_a_task_manager_that_is_gone_are_lost_or_dropped_as_those_of_streams(world):
    world.server.close()
    sender = world.links.open_writer(UnitAttempt(1, 0, 0, 0, "a"))
    sender.send(COUNT, rows(1, 2))
    with pytest.raises(TaskManagerLost, match="TaskManager 0"):
        sender.finish()


def test_rows_of_every_layout_come_out_of_a_parcel_as_they_went_in():
    table = pa.record_batch(
        {
            "text": pa.array(["a", None, "ccc", ""]),
            "list": pa.array([[1], None, [], [2, None]], pa.list_(pa.int32())),
            "map": pa.array([[("x", 1)], [], None, [("y", None)]], pa.map_(pa.string(), pa.int64())),
            "struct": pa.array([{"a": 1}, None, {"a": None}, {"a": 2}], pa.struct([("a", pa.int64())])),
            "flag": pa.array([True, None, False, True]),
            "exact": pa.array([1, 2, None, 3], pa.decimal128(30, 2)),
            "none": pa.nulls(4),
        }
    )
    for part in (table, table.slice(1, 2), table.slice(3), table.slice(0, 0)):
        [back] = parcels.SmallOutput.of(part.schema, [part])
        assert back.equals(part) and back.schema.equals(part.schema, check_metadata=True)
    with_notes = rows(1).replace_schema_metadata({"note": "kept"})
    [back] = parcels.SmallOutput.of(INPUT.with_metadata({"note": "kept"}), [with_notes])
    assert back.schema.metadata == {b"note": b"kept"}
