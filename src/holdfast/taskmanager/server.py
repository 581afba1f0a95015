"""The Flight server around a TaskManager: DoPut takes exchanged rows, DoGet gives output, actions are the gateway.

Small rows travel in the bodies of actions (`protocol.parcels`): `receive` takes them, `outputs` gives them.

Only processes of the job can connect (`security.py`); every call says for which incarnation it is meant. The server
binds the host it is given and nothing else. It holds no state: the TaskManager decides about each call.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast.formats.handles import MadeBase
from holdfast.ids import CheckpointId, RunNumber
from holdfast.ports import PortRange
from holdfast.protocol.live_reads import StateRead
from holdfast.protocol.parcels import OutputsRequest, SmallOutput, StreamPart
from holdfast.protocol.taskmanager import (
    Deployment,
    FollowOrder,
    OutputTicket,
    ProcessRequest,
    SectionRows,
    StreamTag,
)
from holdfast.storage.copying import CopyOrder
from holdfast.taskmanager.actions import ActionServer, Handler
from holdfast.taskmanager.executor_signs import await_end
from holdfast.taskmanager.remote import bind, serving, shut_down
from holdfast.taskmanager.taskmanager import TaskManager

_decode = msgspec.msgpack.decode
_sections = msgspec.msgpack.Decoder(list[SectionRows])
_streams = msgspec.msgpack.Decoder(list[StreamPart])


class TaskManagerServer:
    """Serves `task_manager` from construction until `close`."""

    def __init__(self, task_manager: TaskManager, secret: str, host: str, port_range: PortRange | None = None) -> None:
        def make(location: str) -> _Server:
            return _Server(task_manager, secret, location)

        self._what = f"TaskManager {task_manager.index}"
        self._server: _Server = bind(make, host, port_range, self._what)
        self.port: int = self._server.port

    def close(self) -> None:
        """Refuse new calls, and wait a while for those under way."""
        shut_down(self._server, self._what)


class _Server(ActionServer):
    def __init__(self, task_manager: TaskManager, secret: str, location: str) -> None:
        self._task_manager = task_manager
        process = task_manager.process_id
        super().__init__(process.name, _actions(task_manager), secret, location, process)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self.strangers.know(context)
        with serving(f"TaskManager {self._task_manager.index}: exchange"):
            tag = _decode(descriptor.command, type=StreamTag)
            self._task_manager.receive(tag.exchange, _received(reader, tag))

    def do_get(self, context: Any, ticket: Any) -> Any:
        self.strangers.know(context)
        with serving(f"TaskManager {self._task_manager.index}: output"):
            asked = _decode(ticket.ticket, type=OutputTicket)
            self.check_incarnation(asked.incarnation)
            schema = self._task_manager.output_schema(asked.operator)
            batches = self._task_manager.output(asked.run, asked.batch, asked.operator, asked.subtask)
            return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, batches))


def _received(reader: Any, tag: StreamTag) -> Iterator[tuple[str, int, int, pa.RecordBatch]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        yield from _by_section(tag, _sections.decode(chunk.app_metadata), chunk.data)


def _by_section(
    tag: StreamTag, sections: list[SectionRows], rows: pa.RecordBatch
) -> Iterator[tuple[str, int, int, pa.RecordBatch]]:
    start = 0
    for section in sections:
        yield tag.operator, tag.input, section.subtask, rows.slice(start, section.rows)
        start += section.rows


def _receive(task_manager: TaskManager, streams: list[StreamPart]) -> None:
    for each in streams:
        task_manager.receive(each.tag.exchange, _by_section(each.tag, each.sections, each.batch()))


def _outputs(task_manager: TaskManager, asked: OutputsRequest) -> list[SmallOutput | None]:
    found = task_manager.small_outputs(asked)
    schemas = (task_manager.output_schema(operator) for operator, _ in asked.outputs)
    return [None if rows is None else SmallOutput.of(schema, rows) for schema, rows in zip(schemas, found, strict=True)]


def _actions(task_manager: TaskManager) -> dict[str, Handler]:
    numbers = msgspec.msgpack.Decoder(list[int])
    completed = msgspec.msgpack.Decoder(tuple[RunNumber, CheckpointId, str, list[MadeBase]])

    def of_numbers(method: Callable[..., Any]) -> Handler:
        return lambda body: method(*numbers.decode(body))

    return {
        "deploy": lambda body: task_manager.deploy(_decode(body, type=Deployment)),
        "follow": lambda body: task_manager.follow(_decode(body, type=FollowOrder)),
        "process": lambda body: task_manager.process(_decode(body, type=ProcessRequest)),
        "commit": of_numbers(task_manager.commit),
        "undo": of_numbers(task_manager.undo),
        "cut": of_numbers(task_manager.cut),
        "complete": lambda body: task_manager.complete(*completed.decode(body)),
        "abort_checkpoint": of_numbers(task_manager.abort_checkpoint),
        "receive": lambda body: _receive(task_manager, _streams.decode(body)),
        "outputs": lambda body: _outputs(task_manager, _decode(body, type=OutputsRequest)),
        "read_state": lambda body: task_manager.read_state(_decode(body, type=StateRead)),
        "copy": lambda body: task_manager.copy(_decode(body, type=CopyOrder)),
        "stop": lambda body: task_manager.stop(),
        "await_end": lambda body: await_end(task_manager.stopped, _decode(body, type=bool)),
    }
