"""Sending of a unit's rows to a TaskManager on its own thread, so that rows are prepared while others are sent.

A unit of a few rows does not need that: its messages wait for its end, and are sent in a parcel, without a thread.

Other messages go as streams of Flight, one for each (operator, input), since a stream has a single schema. The queue is
bounded: a TaskManager that takes rows slowly slows the sender down. After an error the thread drops further rows, and
the next call raises the error.
"""

import contextlib
import queue
import threading
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import TaskManagerLost
from holdfast.exchange.parcels import LinkMessage, Parcel, Parcels
from holdfast.protocol.taskmanager import SectionRows, StreamTag
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.remote import remote_error

MESSAGES_WAITING_MAX = 4
FEW_ROWS_MAX = 4096
"""Greatest number of rows in a message that waits for the end of its unit, as long as no larger message has come. To
send it takes less time than to start a thread. With a higher value, rows are sent later."""
ABORT_WAIT_S_MAX = 1.0

_encode = msgspec.msgpack.encode


class Link:
    """Connection of a single thread to a TaskManager; the link's own thread, if any, ends with `wait` or `abort`."""

    def __init__(self, client: TaskManagerClient, parcels: Parcels) -> None:
        self._client = client
        self._parcels = parcels
        self._parcel: Parcel | None = None
        """The parcel with all messages, if they are few."""
        self._messages: queue.Queue[LinkMessage | None] = queue.Queue(MESSAGES_WAITING_MAX)
        self._error: Exception | None = None
        self._aborted = False
        self._streams: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._thread: threading.Thread | None = None

    def send(self, tag: StreamTag, sections: list[SectionRows], rows: pa.RecordBatch) -> None:
        """Queue a message; wait while the queue is full. Raises the error of an earlier message."""
        if self._error is not None:
            raise self._error
        if self._thread is None and (rows.num_rows > FEW_ROWS_MAX or self._messages.full()):
            self._start()
        self._messages.put(LinkMessage(tag, sections, rows))

    def end(self) -> None:
        """End the messages; does not wait for the TaskManager."""
        if self._thread is not None:
            self._messages.put(None)
            return
        few, parcel = self._taken_out(), self._parcels.to(self._client)
        if parcel.take(self, few):
            self._parcel = parcel
            return
        for message in few:
            self._take(message)

    def wait(self) -> None:
        """Wait, after `end`, until the TaskManager has everything. Raises the first error."""
        if self._parcel is not None:
            self._parcel.send()
        elif self._thread is not None:
            self._thread.join()
        else:
            self._finish()
        if self._error is not None:
            raise self._error

    def abort(self) -> None:
        """Stop sending; later errors are ignored. Waits only briefly for a TaskManager that takes no more rows."""
        self._aborted = True
        if self._parcel is not None:
            self._parcel.drop(self)
        self._taken_out()
        if self._thread is None and not self._streams:
            return
        self._messages.put(None)
        thread = self._thread or self._start()
        thread.join(ABORT_WAIT_S_MAX)

    def _taken_out(self) -> list[LinkMessage]:
        """Take out the messages that wait."""
        found: list[LinkMessage] = []
        with contextlib.suppress(queue.Empty):
            while (message := self._messages.get_nowait()) is not None:
                found.append(message)
        return found

    def _start(self) -> threading.Thread:
        name = f"exchange-link-{self._client.peer.number}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        return self._thread

    def _run(self) -> None:
        while (message := self._messages.get()) is not None:
            self._take(message)
        self._finish()

    def _take(self, message: LinkMessage | None) -> None:
        """Send a message, unless an earlier message could not be sent, or the link was aborted."""
        if message is None or self._error is not None or self._aborted:
            return
        try:
            self._write(message)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._error = remote_error(error, self._lost)

    def _write(self, message: LinkMessage) -> None:
        key = (message.tag.operator, message.tag.input)
        if key not in self._streams:
            self._streams[key] = self._client.put(message.tag, message.rows.schema)
        self._streams[key][0].write_with_metadata(message.rows, _encode(message.sections))

    def _finish(self) -> None:
        streams, self._streams = self._streams, {}
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
