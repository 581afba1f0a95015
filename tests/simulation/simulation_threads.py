"""Threads, locks, queues, executors, time and chance, as Holdfast's modules find them during a simulation.

With the interfaces of the real ones, upon the fibers and the clock of a `Runtime`: `running` says which.
Outside of every fiber (in the test itself) locks are free, and there are no executors. A real thread beside the
simulation, of a job of an earlier test that is still ending, gets the real ones (`is_foreign`).
"""

import concurrent.futures
import queue
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from greenlet import GreenletExit
from simulation_runtime import Fiber, Runtime

_runtime: Runtime | None = None
_chance, _others_chance = random.Random(0), random.Random()
REAL_RESULT, REAL_EXCEPTION = Future.result, Future.exception
_REAL_MONOTONIC, _REAL_TIME, _REAL_SLEEP = time.monotonic, time.time, time.sleep
EPOCH_S = 1_700_000_000.0


def runtime() -> Runtime:
    assert _runtime is not None, "no simulation is running"
    return _runtime


def is_foreign() -> bool:
    """True if the caller is a real thread beside the simulation that runs."""
    return _runtime is not None and threading.get_ident() != _runtime.thread


def fiber() -> Fiber | None:
    return None if _runtime is None or is_foreign() else _runtime.current


class _Simulated:
    """A stand-in: a foreign thread that makes one gets what `_real` makes."""

    _real: Callable[..., Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._real(*args, **kwargs) if is_foreign() else super().__new__(cls)


class Lock(_Simulated):
    """`threading.Lock`."""

    _real = threading.Lock

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[tuple[Fiber, int]] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if _runtime is None or _runtime.current is None:
            assert not self._held, "a lock is held that the test itself wants"
            self._held = True
            return True
        if blocking:
            _runtime.give_way()
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        deadline_s = None if timeout < 0 else _runtime.now_s + timeout
        while self._held:
            self._waiting.append(_runtime.waiter())
            if not _runtime.block(None if deadline_s is None else deadline_s - _runtime.now_s) and self._held:
                return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        while self._waiting and not runtime().wake(self._waiting.popleft()):
            continue

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class RLock(Lock):
    """`threading.RLock`."""

    _real = threading.RLock

    def __init__(self) -> None:
        super().__init__()
        self._owner: Fiber | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held and self._owner is fiber():
            self._count += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._owner, self._count = fiber(), 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = None
            super().release()


class Condition(_Simulated):
    """`threading.Condition`."""

    _real = threading.Condition

    def __init__(self, lock: Any = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: deque[tuple[Fiber, int]] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        waiter = runtime().waiter()
        self._waiting.append(waiter)
        depth = self._lock._count if isinstance(self._lock, RLock) else 1
        for _ in range(depth):
            self._lock.release()
        woken = runtime().block(timeout)
        if not woken and waiter in self._waiting:
            self._waiting.remove(waiter)
        for _ in range(depth):
            self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline_s = None if timeout is None else runtime().now_s + timeout
        while not (result := predicate()):
            left_s = None if deadline_s is None else deadline_s - runtime().now_s
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        while n > 0 and self._waiting:
            n -= runtime().wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Event(_Simulated):
    """`threading.Event`."""

    _real = threading.Event

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[tuple[Fiber, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            runtime().wake(waiter)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            runtime().give_way(always=True)
        else:
            self._waiting.append(runtime().waiter())
            runtime().block(timeout)
        return self._set


class Semaphore(_Simulated):
    """`threading.Semaphore`, bounded or not."""

    _real = threading.Semaphore

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._changed = Condition(Lock())

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._changed:
            if not self._value and not blocking:
                return False
            if not self._changed.wait_for(lambda: self._value, timeout):
                return False
            self._value -= 1
            return True

    def release(self, n: int = 1) -> None:
        with self._changed:
            self._value += n
            self._changed.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Thread(_Simulated):
    """`threading.Thread`."""

    _real = threading.Thread

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name
        self.daemon = daemon
        self._call = target
        self._args = tuple(args)
        self._kwargs = kwargs or {}
        self.fiber: Fiber | None = None

    @property
    def ident(self) -> int | None:
        """None until it is started."""
        return None if self.fiber is None else id(self.fiber)

    def run(self) -> None:
        if self._call is not None:
            self._call(*self._args, **self._kwargs)

    def start(self) -> None:
        self.fiber = runtime().spawn(self.run, self.name)

    def is_alive(self) -> bool:
        return self.fiber is not None and not self.fiber.done

    def join(self, timeout: float | None = None) -> None:
        if self.fiber is not None and not self.fiber.done and self.fiber is not fiber():
            self.fiber.joining.append(runtime().waiter())
            runtime().block(timeout)


class Timer(Thread):
    """`threading.Timer`."""

    _real = threading.Timer

    def __init__(self, interval: float, function: Callable[..., Any], args: Any = None, kwargs: Any = None) -> None:
        super().__init__(target=function, name="timer", args=args or (), kwargs=kwargs)
        self._interval_s = interval
        self._cancelled = Event()

    def run(self) -> None:
        if not self._cancelled.wait(self._interval_s):
            super().run()

    def cancel(self) -> None:
        self._cancelled.set()


class SimpleQueue(_Simulated):
    """`queue.SimpleQueue` and `queue.Queue`, without a bound."""

    _real = queue.Queue

    def __init__(self, maxsize: int = 0) -> None:
        assert maxsize <= 0, "bounded queues are not simulated yet"
        self._items: deque[Any] = deque()
        self._waiting: deque[tuple[Fiber, int]] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        while self._waiting:
            runtime().wake(self._waiting.popleft())

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        deadline_s = None if timeout is None else runtime().now_s + timeout
        while not self._items:
            left_s = None if deadline_s is None else deadline_s - runtime().now_s
            if not block or (left_s is not None and left_s <= 0):
                raise queue.Empty
            self._waiting.append(runtime().waiter())
            runtime().block(left_s)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class ThreadPoolExecutor(_Simulated):
    """`concurrent.futures.ThreadPoolExecutor`: at most so many fibers at once, in order."""

    _real = concurrent.futures.ThreadPoolExecutor

    def __init__(
        self, max_workers: int | None = None, thread_name_prefix: str = "pool", initializer: None = None
    ) -> None:
        self._max = max_workers or 4
        self._name = thread_name_prefix or "pool"
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._fibers = 0
        self._ended = Event()
        self._shutdown = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._work.append((future, lambda: fn(*args, **kwargs)))
        if self._fibers < self._max:
            self._fibers += 1
            runtime().spawn(self._run, self._name)
        return future

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        futures = [self.submit(fn, *args) for args in zip(*iterables, strict=False)]
        return iter([future.result(timeout) for future in futures])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shutdown = True
        if cancel_futures:
            while self._work:
                self._work.popleft()[0].cancel()
        while wait and self._fibers:
            self._ended.clear()
            self._ended.wait()

    def _run(self) -> None:
        self._drain()
        self._fibers -= 1
        self._ended.set()

    def _drain(self) -> None:
        while self._work:
            future, call = self._work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except GreenletExit:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def __enter__(self) -> "ThreadPoolExecutor":
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown(wait=True)


def _await(future: Future[Any], timeout: float | None) -> None:
    if fiber() is None or future.done():
        return
    waiter = runtime().waiter()
    future.add_done_callback(lambda _: runtime().wake(waiter))
    runtime().block(timeout)
    if not future.done():
        raise concurrent.futures.TimeoutError


def result(self: Future[Any], timeout: float | None = None) -> Any:
    if is_foreign():
        return REAL_RESULT(self, timeout)
    _await(self, timeout)
    return REAL_RESULT(self, 0)


def exception(self: Future[Any], timeout: float | None = None) -> BaseException | None:
    if is_foreign():
        return REAL_EXCEPTION(self, timeout)
    _await(self, timeout)
    return REAL_EXCEPTION(self, 0)


def wait(fs: Iterable[Future[Any]], timeout: float | None = None, return_when: str = "ALL_COMPLETED") -> Any:
    futures = list(fs)
    if is_foreign():
        return concurrent.futures.wait(futures, timeout, return_when)
    deadline_s = None if timeout is None else runtime().now_s + timeout
    while True:
        done = [future for future in futures if future.done()]
        failed = any(not future.cancelled() and future.exception() is not None for future in done)
        if (
            len(done) == len(futures)
            or (done and return_when == "FIRST_COMPLETED")
            or (failed and return_when == "FIRST_EXCEPTION")
            or (deadline_s is not None and runtime().now_s >= deadline_s)
        ):
            return concurrent.futures.wait(futures, 0)
        waiter = runtime().waiter()
        for future in futures:
            if not future.done():
                future.add_done_callback(lambda _, waiter=waiter: runtime().wake(waiter))  # type: ignore[misc]
        runtime().block(None if deadline_s is None else deadline_s - runtime().now_s)


def as_completed(fs: Iterable[Future[Any]], timeout: float | None = None) -> Iterator[Future[Any]]:
    futures = list(fs)
    if is_foreign():
        yield from concurrent.futures.as_completed(futures, timeout)
        return
    while futures:
        wait(futures, timeout, "FIRST_COMPLETED")
        done = [future for future in futures if future.done()]
        if not done:
            raise concurrent.futures.TimeoutError
        futures = [future for future in futures if future not in done]
        yield from done


def monotonic() -> float:
    return _REAL_MONOTONIC() if _runtime is None or is_foreign() else _runtime.now_s


def now() -> float:
    return _REAL_TIME() if _runtime is None or is_foreign() else EPOCH_S + _runtime.now_s


def sleep(seconds: float) -> None:
    if is_foreign():
        _REAL_SLEEP(seconds)
    else:
        runtime().sleep(seconds)


def chance() -> random.Random:
    """The seed's chance; for a foreign thread another, so that it takes no number of the seed's."""
    return _others_chance if is_foreign() else _chance


def uuid4() -> uuid.UUID:
    return uuid.UUID(int=chance().getrandbits(128), version=4)


@contextmanager
def running(made: Runtime, seed: int) -> Iterator[None]:
    """Run everything on that runtime."""
    global _runtime
    _chance.seed(seed)
    _runtime = made
    try:
        yield
    finally:
        made.close()
        _runtime = None
