"""Tells an observer about every request to the store; decides nothing."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from holdfast.clock import Clock
from holdfast.storage.store import ObjectInfo, ObjectStore

T = TypeVar("T")


class Request(NamedTuple):
    """One request as it ended. `size_bytes` counts what was sent or received where it succeeded."""

    operation: str
    name: str
    seconds: float
    size_bytes: int
    failed: bool


class InstrumentedStore:
    """Calls `observe` after each request, in the thread that made it."""

    def __init__(self, inner: ObjectStore, observe: Callable[[Request], None], clock: Clock) -> None:
        self.url = inner.url
        self._inner = inner
        self._observe = observe
        self._clock = clock

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._timed("put", name, lambda: self._inner.put(name, data), lambda _: len(data))

    def create(self, name: str, data: bytes) -> None:
        self._timed("create", name, lambda: self._inner.create(name, data), lambda _: len(data))

    def get(self, name: str) -> bytes:
        return self._timed("get", name, lambda: self._inner.get(name), len)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._timed("get_range", name, lambda: self._inner.get_range(name, offset, length), len)

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        return self._timed("list", prefix, lambda: self._inner.list(prefix, after=after), lambda _: 0)

    def delete(self, names: Sequence[str]) -> None:
        self._timed("delete", names[0] if names else "", lambda: self._inner.delete(names), lambda _: 0)

    def _timed(self, operation: str, name: str, call: Callable[[], T], size: Callable[[T], int]) -> T:
        begun = self._clock.monotonic()
        succeeded = False
        size_bytes = 0
        try:
            result = call()
            succeeded, size_bytes = True, size(result)
            return result
        finally:
            self._observe(Request(operation, name, self._clock.monotonic() - begun, size_bytes, not succeeded))
