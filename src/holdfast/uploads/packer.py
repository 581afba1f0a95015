"""Gathering and packing: requests of logs become objects, as long as there is room for objects in flight.

    ask ──► gathering ──due──► groups, in order ──► pack, in the lane "encode" ──► `upload`, an object at a time
                                                      └─ pauses without room, until `go_on`

Invariants: an object holds the pieces of a single group. A group is encoded by one call at a time, and at most
`ENCODERS_MAX` groups are; groups begin in the order of their requests. The packer knows neither names nor the store; it
calls `upload` with no lock held.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast.formats.log_objects import LogId
from holdfast.uploads.gathering import Gathering
from holdfast.uploads.in_flight import InFlight
from holdfast.uploads.packing import PackedObject, PersistRequest, Release, pack
from holdfast.uploads.scheduling import Scheduler, report_failure

ENCODING = "encode"
"""The lane in which requests are encoded."""
ENCODERS_MAX = 2
"""Groups that are encoded at once. A checkpoint of large logs waits longer for compression than for the store, and
its threads compete for processors with those of batches. A higher value makes such checkpoints shorter, and batches
beside them longer."""


class _Group(NamedTuple):
    """The objects of requests that are being packed, and the bytes of these requests."""

    objects: Iterator[PackedObject]
    size_bytes: int


class Packer:
    """Makes objects of the requests of all logs of a TaskManager.

    Parameters
    ----------
    split_at
        Tells the bytes at which the objects of a group are split; only a single key group's changes can be larger.
    upload
        Takes each object as soon as it is full, and calls `go_on` once the object was stored or has failed.
    release
        Releases the stored objects of a request that failed.
    """

    def __init__(
        self,
        gathering: Gathering[LogId, PersistRequest],
        in_flight: InFlight,
        split_at: Callable[[Sequence[PersistRequest]], int],
        scheduler: Scheduler,
        upload: Callable[[PackedObject], None],
        release: Release,
    ) -> None:
        self._gathering = gathering
        self._in_flight = in_flight
        self._split_at = split_at
        self._scheduler = scheduler
        self._upload = upload
        self._release = release
        self._lock = threading.Lock()
        self._logs: set[LogId] = set()
        self._cancel_wait: Callable[[], None] | None = None
        self._groups: deque[Sequence[PersistRequest]] = deque()
        """Gathered requests whose encoding has not begun."""
        self._paused: deque[_Group] = deque()
        """Groups whose encoding has begun, and waits for room."""
        self._encoders = self._starting = 0
        """Calls in the lane that encode, or are about to; those that are about to."""
        self._closed = False

    def register(self, log: LogId) -> None:
        """Register a log: from now on the requests of a cut wait for it too."""
        with self._lock:
            if log in self._logs:
                raise ValueError(f"log {log} is registered already: a table has a single writer")
            self._logs.add(log)

    @property
    def logs(self) -> int:
        """The number of registered logs."""
        return len(self._logs)

    def unregister(self, log: LogId) -> None:
        """Unregister a log: requests no longer wait for it."""
        with self._lock:
            self._logs.discard(log)
        self._gather()

    def ask(self, log: LogId, request: PersistRequest | None) -> bool:
        """Take a request, or note that a log has nothing new. Returns False if the packer is closed and takes no
        requests."""
        with self._lock:
            if self._closed:
                return False
            self._gathering.ask(log, self._scheduler.monotonic(), request, request.size_bytes if request else 0)
        if request is not None:
            self._in_flight.asked(request.size_bytes)
            request.future.add_done_callback(lambda _: self._in_flight.answered())
        self._gather()
        return True

    def go_on(self) -> None:
        """Encode the waiting requests, if there is room. Called whenever there may be room again."""
        with self._lock:
            waits = len(self._paused) + len(self._groups) > self._starting
            start = waits and self._encoders < ENCODERS_MAX and self._in_flight.room(self._encoders)
            self._encoders += start
            self._starting += start
        if start:
            self._scheduler.submit(ENCODING, self._encode).add_done_callback(report_failure)

    def close(self) -> list[PersistRequest]:
        """Take no more requests; return the requests whose encoding has not begun."""
        with self._lock:
            self._closed = True
            waiting = [*self._gathering.take(), *(request for group in self._groups for request in group)]
            self._groups.clear()
        self._gather()
        return waiting

    def _gather(self) -> None:
        """Take the gathered requests if they are due; otherwise look again once they are due."""
        with self._lock:
            if self._cancel_wait is not None:
                self._cancel_wait()
                self._cancel_wait = None
            due_s = self._gathering.due_in_s(self._scheduler.monotonic(), self._logs)
            if due_s:
                self._cancel_wait = self._scheduler.call_later(due_s, self._gather)
            elif due_s is not None:
                self._groups.append(self._gathering.take())
        self.go_on()

    def _encode(self) -> None:
        with self._lock:
            self._starting -= 1
        group = self._next_group(None)
        self.go_on()  # further groups may have another encoder
        while group is not None:
            packed = next(group.objects, None)
            if packed is not None:
                self._in_flight.started(packed.length)
                self._upload(packed)
            else:
                self._in_flight.encoded(group.size_bytes)
            group = self._next_group(None if packed is None else group)

    def _next_group(self, begun: _Group | None) -> _Group | None:
        """Return the group that this call has begun, or else a paused one or the next; None without room or requests:
        then the call ends."""
        with self._lock:
            room = self._in_flight.room(self._encoders - self._starting - 1)
            if begun is not None and not room:
                self._paused.appendleft(begun)
            elif room and begun is None and self._paused:
                begun = self._paused.popleft()
            elif room and begun is None and self._groups:
                requests = self._groups.popleft()
                size_bytes = sum(request.size_bytes for request in requests)
                begun = _Group(pack(requests, self._split_at(requests), self._release), size_bytes)
            if begun is None or not room:
                self._encoders -= 1
                return None
            return begun
