"""Parcels: small rows of a unit's links to the same TaskManager, sent together in a single call (`protocol.parcels`).

    link.end ──take──► parcel ──the first link.wait──► a call to the TaskManager ──► outcome, for all of its links

A single thread uses it, since the units of a process run in turn.
"""

from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.protocol.parcels import PARCEL_BYTES_MAX, StreamPart, size_of
from holdfast.protocol.taskmanager import SectionRows, StreamTag
from holdfast.taskmanager.client import TaskManagerClient


class LinkMessage(NamedTuple):
    """Rows of a stream, whose parts belong to the subtasks of `sections`, in order."""

    tag: StreamTag
    sections: list[SectionRows]
    rows: pa.RecordBatch


class Parcel:
    """Messages to a TaskManager, each of which belongs to a link. It is sent once."""

    def __init__(self, client: TaskManagerClient) -> None:
        self.is_sent = False
        self._client = client
        self._messages: dict[object, list[LinkMessage]] = {}
        self._bytes = 0
        self._error: HoldfastError | None = None

    def take(self, link: object, messages: list[LinkMessage]) -> bool:
        """Take all messages of a link; False if there is no room for them."""
        size = size_of(each.rows for each in messages)
        if self._bytes + size > PARCEL_BYTES_MAX:
            return False
        self._messages[link] = messages
        self._bytes += size
        return True

    def drop(self, link: object) -> None:
        """Leave the messages of a link out, unless they are sent already."""
        self._messages.pop(link, None)

    def send(self) -> None:
        """Send all messages, unless that was done already. If it failed, every call raises the error."""
        if not self.is_sent:
            self.is_sent = True
            messages, self._messages = self._messages, {}
            try:
                self._client.receive([StreamPart.of(*each) for found in messages.values() for each in found])
            except HoldfastError as error:
                self._error = error
        if self._error is not None:
            raise self._error


class Parcels:
    """The parcels that are being filled, one for each TaskManager."""

    def __init__(self) -> None:
        self._filling: dict[TaskManagerClient, Parcel] = {}

    def to(self, client: TaskManagerClient) -> Parcel:
        """The parcel to a TaskManager that is being filled."""
        found = self._filling.get(client)
        if found is None or found.is_sent:
            found = self._filling[client] = Parcel(client)
        return found
