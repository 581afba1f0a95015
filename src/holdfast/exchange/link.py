"""Sending of a unit's rows to a TaskManager, by a thread of its own, so that preparing rows overlaps with sending.

Each (operator, input) has its own DoPut stream, since a stream has a single schema. The queue is bounded: a TaskManager
that takes rows slowly slows the sender down. After an error the thread drops further rows, and the next call raises the
error.
"""

import contextlib
import queue
import threading
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import TaskManagerLost
from holdfast.protocol.taskmanager import SectionRows, StreamTag
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.remote import remote_error

MESSAGES_WAITING_MAX = 4
ABORT_WAIT_S_MAX = 1.0

_encode = msgspec.msgpack.encode


class _Message(NamedTuple):
    tag: StreamTag
    sections: list[SectionRows]
    rows: pa.RecordBatch


class Link:
    """Connection of a single thread to a TaskManager; the link's own thread ends with `wait` or `abort`."""

    def __init__(self, client: TaskManagerClient) -> None:
        self._client = client
        self._messages: queue.Queue[_Message | None] = queue.Queue(MESSAGES_WAITING_MAX)
        self._error: Exception | None = None
        self._aborted = False
        self._thread = threading.Thread(target=self._run, name=f"exchange-link-{client.peer.number}", daemon=True)
        self._thread.start()

    def send(self, tag: StreamTag, sections: list[SectionRows], rows: pa.RecordBatch) -> None:
        """Queue a message; wait while the queue is full. Raises the error of an earlier message."""
        if self._error is not None:
            raise self._error
        self._messages.put(_Message(tag, sections, rows))

    def end(self) -> None:
        """End the messages; does not wait."""
        self._messages.put(None)

    def wait(self) -> None:
        """Wait, after `end`, until the TaskManager has everything. Raises the first error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def abort(self) -> None:
        """Stop sending; errors no longer matter. Waits only briefly for a TaskManager that takes no more rows."""
        self._aborted = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._messages.get_nowait()
        self._messages.put(None)
        self._thread.join(ABORT_WAIT_S_MAX)

    def _run(self) -> None:
        streams: dict[tuple[str, int], tuple[Any, Any]] = {}
        while (message := self._messages.get()) is not None:
            if self._error is not None or self._aborted:
                continue
            try:
                self._write(streams, message)
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                self._error = remote_error(error, self._lost)
        self._finish(streams)

    def _write(self, streams: dict[tuple[str, int], tuple[Any, Any]], message: _Message) -> None:
        key = (message.tag.operator, message.tag.input)
        if key not in streams:
            streams[key] = self._client.put(message.tag, message.rows.schema)
        streams[key][0].write_with_metadata(message.rows, _encode(message.sections))

    def _finish(self, streams: dict[tuple[str, int], tuple[Any, Any]]) -> None:
        for writer, _ in streams.values():
            try:
                writer.close()
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                if self._error is None:
                    self._error = remote_error(error, self._lost)

    def _lost(self, reason: str) -> TaskManagerLost:
        return TaskManagerLost(
            f"{self._client.peer} at {self._client.address} went away while rows were sent to it: {reason}"
        )
