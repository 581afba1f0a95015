"""The callers' side of a TaskManager's server: the gateway for the JobMaster, the pull for tasks.

A call to an unreachable TaskManager raises `TaskManagerLost` at once and does not wait for a replacement. Errors of the
TaskManager come back as their own classes (`remote.py`). Only the program of a `Deployment` is ever unpickled, by the
TaskManager; a process without the job's secret cannot connect.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import HoldfastError, TaskManagerLost
from holdfast.formats.handles import MadeBase
from holdfast.ids import BatchNumber, CheckpointId, ProcessId, Role, RunNumber
from holdfast.protocol.live_reads import StateRead, StateRows
from holdfast.protocol.parcels import OutputsRequest, SmallOutput, StreamPart
from holdfast.protocol.taskmanager import (
    CommitAnswer,
    Deployment,
    ExchangeRoute,
    FollowAnswer,
    FollowOrder,
    OutputTicket,
    ProcessRequest,
    ProcessResult,
    StreamTag,
)
from holdfast.storage.copying import CopiedObject, CopyOrder
from holdfast.taskmanager.remote import CallBody, calling
from holdfast.taskmanager.security import connect

T = TypeVar("T")


class ProcessClient:
    """The calls that every long-running process supports: to copy objects, and to end. Thread-safe."""

    def __init__(self, process: ProcessId, address: str, secret: str, call_timeout_s: float | None = None) -> None:
        self.peer = process
        self.address = address
        self._flight = connect(address, secret)
        self._options = flight.FlightCallOptions(timeout=call_timeout_s)

    def copy(self, order: CopyOrder) -> list[CopiedObject]:
        return self._call("copy", order, list[CopiedObject])

    def stop(self) -> None:
        """Ask the process to end; it deletes nothing in the store."""
        self._call("stop", (), type(None))

    def await_end(self, looks: bool = False) -> str:
        """Block until the process is asked to end; return an empty text.

        With `looks`, return before that with the reason once the process sees that its executor is about to be removed.
        Raises `TaskManagerLost` or `SenderLost` if it dies first.
        """
        return self._call("await_end", looks, str)

    def close(self) -> None:
        self._flight.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _call(self, action: str, arguments: Any, answer: type[T]) -> T:
        with calling(self._lost):
            results = list(self._flight.do_action((action, self._body(arguments)), self._options))
            return msgspec.msgpack.decode(results[0].body.to_pybytes(), type=answer)

    def _body(self, arguments: Any) -> bytes:
        return msgspec.msgpack.encode(CallBody(self.peer.incarnation, msgspec.Raw(msgspec.msgpack.encode(arguments))))

    def _lost(self, reason: str) -> HoldfastError:
        return TaskManagerLost(f"{self.peer} at {self.address} cannot be reached: {reason}")


class TaskManagerClient(ProcessClient):
    """`TaskManagerGateway` and `OutputReader` over Flight. Safe for use from several threads."""

    def __init__(self, route: ExchangeRoute, secret: str, call_timeout_s: float | None = None) -> None:
        process = ProcessId(Role.TASK_MANAGER, route.task_manager, route.incarnation)
        super().__init__(process, route.address, secret, call_timeout_s)

    def deploy(self, deployment: Deployment) -> str:
        return self._call("deploy", deployment, str)

    def follow(self, order: FollowOrder) -> FollowAnswer:
        return self._call("follow", order, FollowAnswer)

    def process(self, request: ProcessRequest) -> ProcessResult:
        return self._call("process", request, ProcessResult)

    def commit(self, run: RunNumber, batch: BatchNumber) -> CommitAnswer:
        return self._call("commit", (run, batch), CommitAnswer)

    def undo(self, run: RunNumber) -> None:
        self._call("undo", (run,), type(None))

    def cut(self, run: RunNumber, checkpoint_id: CheckpointId, batch: BatchNumber) -> None:
        self._call("cut", (run, checkpoint_id, batch), type(None))

    def complete(
        self, run: RunNumber, checkpoint_id: CheckpointId, part: str = "", bases: Sequence[MadeBase] = ()
    ) -> None:
        self._call("complete", (run, checkpoint_id, part, list(bases)), type(None))

    def abort_checkpoint(self, run: RunNumber, checkpoint_id: CheckpointId) -> None:
        self._call("abort_checkpoint", (run, checkpoint_id), type(None))

    def read_state(self, read: StateRead) -> StateRows:
        return self._call("read_state", read, StateRows)

    def put(self, tag: StreamTag, schema: pa.Schema) -> Any:
        """Open a stream of rows; return Flight's (writer, reader), whose errors are not translated."""
        return self._flight.do_put(flight.FlightDescriptor.for_command(msgspec.msgpack.encode(tag)), schema)

    def receive(self, streams: list[StreamPart]) -> None:
        """Send small rows of streams, all in a single call."""
        self._call("receive", streams, type(None))

    def outputs(self, asked: OutputsRequest) -> list[SmallOutput | None]:
        """Fetch outputs in a single call, in their order; None in place of each output that is not small."""
        return self._call("outputs", asked, list[SmallOutput | None])

    def output(self, run: RunNumber, batch: BatchNumber, operator: str, subtask: int) -> Iterator[pa.RecordBatch]:
        """The output of a subtask in a batch, streamed, without copying.

        Raises
        ------
        TaskManagerLost
            If the TaskManager cannot be reached, or ends while streaming.
        StaleCall
            If the output is not held any more, or the run is not the current run.
        """
        ticket = OutputTicket(self.peer.incarnation, run, batch, operator, subtask)
        with calling(self._lost):
            reader = self._flight.do_get(flight.Ticket(msgspec.msgpack.encode(ticket)), self._options)
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
                yield chunk.data
