"""Object stores that misbehave as real stores do: requests fail, take long, take effect late, or report falsely."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TypeVar

from holdfast.errors import ObjectExists, StorageError
from holdfast.storage.store import ObjectInfo, ObjectStore

T = TypeVar("T")


class Fault(Enum):
    """The way in which a request goes wrong."""

    FAIL = auto()
    """The request is not carried out, and an I/O error is reported."""
    LOST_ANSWER = auto()
    """The request is carried out, but reported as an I/O error."""
    LATE = auto()
    """`put` and `create`: a time-out is reported, and `land()` carries the request out later, if it is still possible.
    Other requests: FAIL."""
    FALSE_EXISTS = auto()
    """`create`: the request is not carried out, but "exists" is reported. Other requests: FAIL."""
    OWN_EXISTS = auto()
    """`create`: the request is carried out, but "exists" is reported. Other requests: LOST_ANSWER."""


Decide = Callable[[str, str], Fault | None]
"""A function from (operation, name) to the fault of this request, or None. It may block, to delay a request."""


def seeded_faults(seed: int, ratio: float) -> Decide:
    """Return random faults: each request fails with probability `ratio`. The same seed gives the same sequence."""
    rng = random.Random(seed)
    lock = threading.Lock()

    def decide(operation: str, name: str) -> Fault | None:
        with lock:
            return rng.choice(list(Fault)) if rng.random() < ratio else None

    return decide


class FaultyStore:
    """Treats every request as `decide` says; `Fault` describes the possibilities."""

    def __init__(self, inner: ObjectStore, decide: Decide) -> None:
        self.url = inner.url
        self._inner = inner
        self._decide = decide
        self._lock = threading.Lock()
        self._late: list[tuple[str, str, bytes]] = []

    def land(self) -> int:
        """Carry out all requests that are late, in the order in which they were made; return their number."""
        with self._lock:
            late, self._late = self._late, []
        for operation, name, data in late:
            if operation == "put":
                self._inner.put(name, data)
            else:
                self._land_create(name, data)
        return len(late)

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._write("put", name, bytes(data), lambda: self._inner.put(name, data))

    def create(self, name: str, data: bytes) -> None:
        self._write("create", name, data, lambda: self._inner.create(name, data))

    def get(self, name: str) -> bytes:
        return self._request("get", name, lambda: self._inner.get(name))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._request("get_range", name, lambda: self._inner.get_range(name, offset, length))

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        return self._request("list", prefix, lambda: self._inner.list(prefix, after=after))

    def delete(self, names: Sequence[str]) -> None:
        self._request("delete", names[0] if names else "", lambda: self._inner.delete(names))

    def _write(self, operation: str, name: str, data: bytes, call: Callable[[], None]) -> None:
        fault = self._decide(operation, name)
        if fault is Fault.LATE:
            with self._lock:
                self._late.append((operation, name, data))
            raise StorageError(f"{self.url}: {operation} {name!r}: timed out (injected)")
        if operation == "create" and fault is Fault.FALSE_EXISTS:
            raise ObjectExists(f"{self.url}: create {name!r}: exists (injected)")
        if operation == "create" and fault is Fault.OWN_EXISTS:
            call()
            raise ObjectExists(f"{self.url}: create {name!r}: exists (injected, after it was written)")
        self._faulty(operation, name, fault, call)

    def _request(self, operation: str, name: str, call: Callable[[], T]) -> T:
        return self._faulty(operation, name, self._decide(operation, name), call)

    def _faulty(self, operation: str, name: str, fault: Fault | None, call: Callable[[], T]) -> T:
        if fault in (Fault.FAIL, Fault.LATE, Fault.FALSE_EXISTS):
            raise StorageError(f"{self.url}: {operation} {name!r}: failed (injected)")
        result = call()
        if fault in (Fault.LOST_ANSWER, Fault.OWN_EXISTS):
            raise StorageError(f"{self.url}: {operation} {name!r}: answer lost (injected)")
        return result

    def _land_create(self, name: str, data: bytes) -> None:
        try:
            self._inner.create(name, data)
        except ObjectExists:
            return


class SlowStore:
    """Waits before every request.

    `delay_s` is a number of seconds, or a function of (operation, name) that returns it. `wait` can be replaced by a
    clock that a test advances.
    """

    def __init__(
        self,
        inner: ObjectStore,
        delay_s: float | Callable[[str, str], float],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = inner.url
        self._inner = inner
        self._delay_s = delay_s
        self._wait = wait

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._delay("put", name)
        self._inner.put(name, data)

    def create(self, name: str, data: bytes) -> None:
        self._delay("create", name)
        self._inner.create(name, data)

    def get(self, name: str) -> bytes:
        self._delay("get", name)
        return self._inner.get(name)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        self._delay("get_range", name)
        return self._inner.get_range(name, offset, length)

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        self._delay("list", prefix)
        return self._inner.list(prefix, after=after)

    def delete(self, names: Sequence[str]) -> None:
        self._delay("delete", names[0] if names else "")
        self._inner.delete(names)

    def _delay(self, operation: str, name: str) -> None:
        self._wait(self._delay_s(operation, name) if callable(self._delay_s) else self._delay_s)


class ThrottledStore:
    """Every request takes `latency_s`, and all requests share `bytes_per_s` for the bytes that they read and write.

    The transfer of bytes begins when they are requested, so the time that the inner store takes is not added.
    `monotonic` and `wait` can be replaced by a clock that a test advances.
    """

    def __init__(
        self,
        inner: ObjectStore,
        bytes_per_s: float,
        latency_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = inner.url
        self._inner = inner
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._monotonic = monotonic
        self._wait = wait
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._transfer(len(data), self._monotonic())
        self._inner.put(name, data)

    def create(self, name: str, data: bytes) -> None:
        self._transfer(len(data), self._monotonic())
        self._inner.create(name, data)

    def get(self, name: str) -> bytes:
        asked_s = self._monotonic()
        data = self._inner.get(name)
        self._transfer(len(data), asked_s)
        return data

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        asked_s = self._monotonic()
        data = self._inner.get_range(name, offset, length)
        self._transfer(len(data), asked_s)
        return data

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        self._transfer(0, self._monotonic())
        return self._inner.list(prefix, after=after)

    def delete(self, names: Sequence[str]) -> None:
        self._transfer(0, self._monotonic())
        self._inner.delete(names)

    def _transfer(self, size_bytes: int, asked_s: float) -> None:
        """Wait as long as the request takes: the latency, and its bytes after the bytes of earlier requests."""
        with self._lock:
            self._free_at_s = max(self._free_at_s, asked_s + self._latency_s) + size_bytes / self._bytes_per_s
            end_s = self._free_at_s
        self._wait(max(0.0, end_s - self._monotonic()))


class CutOffStore:
    """Passes all requests on until `cut`, and none afterwards, as for a process that was killed."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self._inner = inner
        self._cut = False

    def cut(self) -> None:
        """Let every request fail from now on."""
        self._cut = True

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._reached("put", name).put(name, data)

    def create(self, name: str, data: bytes) -> None:
        self._reached("create", name).create(name, data)

    def get(self, name: str) -> bytes:
        return self._reached("get", name).get(name)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._reached("get_range", name).get_range(name, offset, length)

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        return self._reached("list", prefix).list(prefix, after=after)

    def delete(self, names: Sequence[str]) -> None:
        self._reached("delete", names[0] if names else "").delete(names)

    def _reached(self, operation: str, name: str) -> ObjectStore:
        if self._cut:
            raise StorageError(f"{self.url}: {operation} {name!r}: this process was cut off (injected)")
        return self._inner
