"""The bound on bytes that wait to be stored. A thread that makes further bytes must wait.

    asked ──encoded──► in flight ──stored or failed──► gone

Encoding continues only while there is `room` in flight. The future `available` is not done while the bytes of requests
and the bytes in flight together exceed the bound. Thread-safe; never waits, and makes no calls under its lock.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from holdfast.uploads.scheduling import done


class InFlight:
    """Counts bytes and objects.

    Parameters
    ----------
    bytes_max
        Bound on the bytes in flight, which only a single larger object may exceed.
    object_bytes_max
        Bytes that are set aside for the next object, whose size is known only once it is encoded.
    objects_max
        Uploads at once.
    monotonic
        The clock, in seconds, that measures for how long there was no room.
    """

    def __init__(self, bytes_max: int, object_bytes_max: int, objects_max: int, monotonic: Callable[[], float]) -> None:
        self._bytes_max = bytes_max
        self._object_bytes_max = object_bytes_max
        self._objects_max = objects_max
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._requests = 0
        self._asked_bytes = 0
        self._bytes = 0
        self._objects = 0
        self._available: Future[None] = done()
        self._full_since_s = 0.0
        self._full_s = 0.0
        self._closed = False

    def room(self, others: int = 0) -> bool:
        """Return whether another object may be made, while so many others are being made."""
        with self._lock:
            objects, set_aside = self._objects + others, (1 + others) * self._object_bytes_max
            fits = not objects or self._bytes + set_aside <= self._bytes_max
            return fits and objects < self._objects_max

    def available(self) -> "Future[None]":
        """Return a future that is done while makers of changes need not wait."""
        with self._lock:
            return self._available

    def asked(self, size_bytes: int) -> None:
        """Note a request, with the number of its bytes before encoding."""
        self._change(requests=1, asked_bytes=size_bytes)

    def encoded(self, size_bytes: int) -> None:
        """Note that requests of `size_bytes` were encoded: from now on, their objects count as in flight."""
        self._change(asked_bytes=-size_bytes)

    def started(self, size_bytes: int) -> None:
        """Note that the upload of an object has begun."""
        self._change(bytes_=size_bytes, objects=1)

    def ended(self, size_bytes: int) -> None:
        """Note that an object was stored, or has failed."""
        self._change(bytes_=-size_bytes, objects=-1)

    def answered(self) -> None:
        """Note that a request was answered."""
        self._change(requests=-1)

    def close(self) -> None:
        """Release all who wait, now and later."""
        with self._lock:
            self._closed = True
        self._change()

    def metrics(self) -> dict[str, float]:
        """Gauges of the requests and bytes that wait now, and of the time without room."""
        with self._lock:
            full = not self._available.done()
            full_s = self._full_s + (self._monotonic() - self._full_since_s if full else 0.0)
            return {
                "uploadQueueSize": float(self._requests),
                "uploadBytesInFlight": float(self._bytes),
                "uploadBackPressured": float(full),
                "uploadBackPressuredTimeMs": full_s * 1000.0,
            }

    def _change(self, requests: int = 0, asked_bytes: int = 0, bytes_: int = 0, objects: int = 0) -> None:
        with self._lock:
            self._requests += requests
            self._asked_bytes += asked_bytes
            self._bytes += bytes_
            self._objects += objects
            full = self._asked_bytes + self._bytes > self._bytes_max and not self._closed
            was_full = not self._available.done()
            if full and not was_full:
                self._available = Future()
                self._full_since_s = self._monotonic()
            freed = self._available if was_full and not full else None
            if freed is not None:
                self._full_s += self._monotonic() - self._full_since_s
                self._available = done()
        if freed is not None:
            freed.set_result(None)
