"""Promises of the control loop to callers that asked for a checkpoint, wait for publication or for the end of the
current batch, and to a failover that waits for its base.

Any thread makes a promise; the control thread keeps it. Promises that are open when the query ends fail.
"""

import contextlib
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import NamedTuple

from holdfast.checkpoint import events
from holdfast.errors import CheckpointFailed
from holdfast.ids import NO_BATCH, BatchNumber, Epoch, JournalNumber
from holdfast.journal.records import CheckpointRecord


class RestartCheckpoint(NamedTuple):
    """Checkpoint to restart from: its number in the journal, and its record. None for the beginning."""

    number: JournalNumber | None
    record: CheckpointRecord | None

    def batch_in(self, epoch: Epoch) -> BatchNumber:
        """Return its last batch in the numbering of that epoch; -1 if it was recorded before that epoch."""
        return self.record.batch if self.record is not None and self.record.epoch == epoch else NO_BATCH


class Promises:
    """Promises that are not kept yet, by request."""

    def __init__(self) -> None:
        self._checkpoints: dict[str, Future[JournalNumber | None]] = {}
        self._base: Future[RestartCheckpoint] | None = None
        self._publication: deque[Future[None]] = deque()
        self._standstill: dict[str, Future[None]] = {}

    def checkpoint(self, request_id: str) -> "Future[JournalNumber | None]":
        """Promise the outcome of a request; it fails with `CheckpointFailed`."""
        promise: Future[JournalNumber | None] = Future()
        self._checkpoints[request_id] = promise
        return promise

    def resolve(self, command: events.Resolve) -> None:
        promise = self._checkpoints.pop(command.request_id, None)
        if promise is None:
            return
        if command.failure is None:
            promise.set_result(command.number)
        else:
            promise.set_exception(CheckpointFailed(command.failure, soft=command.soft))

    def publication(self) -> "Future[None]":
        """Promise that every recorded group is published; it fails with `CheckpointFailed`."""
        promise: Future[None] = Future()
        self._publication.append(promise)
        return promise

    @property
    def publication_is_awaited(self) -> bool:
        return bool(self._publication)

    def published(self) -> None:
        """Keep the promises of publication."""
        with contextlib.suppress(IndexError):
            while True:
                self._publication.popleft().set_result(None)

    def standstill(self, who: str) -> "Future[None]":
        """Promise that no batch is under way, since `who` has paused planning; it fails with `CheckpointFailed`."""
        promise: Future[None] = Future()
        self._standstill[who] = promise
        return promise

    def stands_still(self, paused_by: Iterable[str]) -> None:
        """Keep the promises to those who have paused planning."""
        for who in paused_by:
            promise = self._standstill.pop(who, None)
            if promise is not None:
                promise.set_result(None)

    def await_base(self, promise: "Future[RestartCheckpoint]") -> None:
        self._base = promise

    def base_chosen(self, base: RestartCheckpoint) -> None:
        if self._base is not None:
            promise, self._base = self._base, None
            promise.set_result(base)

    def fail_all(self) -> None:
        """Fail the open requests, because the query ends."""
        while self._checkpoints:
            with contextlib.suppress(KeyError):
                promise = self._checkpoints.popitem()[1]
                promise.set_exception(CheckpointFailed("the query ended before the checkpoint completed"))
        while self._standstill:
            with contextlib.suppress(KeyError):
                promise_of_standstill = self._standstill.popitem()[1]
                promise_of_standstill.set_exception(
                    CheckpointFailed("the query ended before the batch under way was committed")
                )
        with contextlib.suppress(IndexError):
            while True:
                ended = CheckpointFailed("the query ended before everything was published")
                self._publication.popleft().set_exception(ended)
