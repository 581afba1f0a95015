"""Asynchronous functions as declared with `stream.map_async(fn, schema, …)`, and their checks.

    async def enrich(row):
        answer = await ask(row.user)
        return {"user": row.user, "score": answer.score}

    class Enrich(hf.AsyncFunction):
        async def open(self, ctx):
            self.session = aiohttp.ClientSession()

        async def call(self, row):
            async with self.session.get(f"{URL}/{row.user}") as answer:
                return {"user": row.user, "score": (await answer.json())["score"]}

        async def close(self):
            await self.session.close()

A function travels to the senders by cloudpickle. Each process opens its own copy before the first call.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from holdfast.clock import Clock, SystemClock
from holdfast.errors import SettingsError
from holdfast.quantities import Duration, duration_s, whole_number

T = TypeVar("T", bound="Closable")

CAPACITY = 1_000
BREAKER = 100
KEPT_ANSWERS = 10_000


@dataclass(frozen=True)
class CallContext:
    """Facts for a function that is being opened. `capacity`: greatest number of calls that the process makes at
    once."""

    capacity: int


class AsyncFunction:
    """A function that awaits something, with resources that are opened once in each process.

    All of its methods run on one event loop.
    """

    async def open(self, ctx: CallContext) -> None:
        """Open clients, pools and models; called once in each process before the first call. `ctx`: the process's
        means."""
        return

    async def close(self) -> None:
        """Close what `open` opened; called when a process ends in good order, not when it is killed."""
        return

    async def call(self, rows: Any) -> Any:
        """Answer a row, or with `map_async(batch=…)` a `pyarrow.RecordBatch`.

        A row is a named tuple. The answer to it is a dict or a tuple with the declared columns, a list of such rows, or
        None for no row. The answer to a record batch is a record batch with the declared columns, of any length.
        """
        raise NotImplementedError(f"{type(self).__name__}.call")


class _Function(AsyncFunction):
    """A coroutine function that needs nothing to be opened."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.call = fn  # type: ignore[method-assign, assignment]


@dataclass(frozen=True)
class CallPlace:
    """The unit in which calls are made: the batch and its run, the number of units that run side by side, and the
    clock."""

    batch: int = -1
    run: int = 0
    side_by_side: int = 1
    clock: Clock = field(default_factory=SystemClock)
    check: Callable[[], None] = lambda: None
    """Raises if the result of the calls is no longer wanted."""


@dataclass(frozen=True)
class CallSettings:
    """Numbers of a `map_async`, which explains them. Times are in seconds."""

    capacity: int
    ordered: bool
    timeout_s: float | None
    retries: int
    retry_delay_s: float
    retry_on: tuple[type[BaseException], ...]
    rate: float | None
    batch: int | None
    breaker: int | None
    kept_answers: int


def checked_settings(
    capacity: int,
    ordered: bool,
    timeout: Duration | None,
    retries: int,
    retry_delay: Duration,
    retry_on: type[BaseException] | tuple[type[BaseException], ...],
    rate: float | None,
    batch: int | None,
    breaker: int | None,
    kept_answers: int,
) -> CallSettings:
    """Check the settings of a `map_async`. Raises `SettingsError`, which names the setting and its value."""
    whole_number(capacity, "capacity", 1)
    whole_number(retries, "retries", 0)
    whole_number(kept_answers, "kept_answers", 0)
    for value, name in ((batch, "batch"), (breaker, "breaker")):
        if value is not None:
            whole_number(value, name, 1)
    timeout_s = None if timeout is None else duration_s(timeout, "timeout")
    if timeout_s is not None and timeout_s <= 0:
        raise SettingsError(f"timeout={timeout!r}: allowed is anything above zero, or None for no time-out")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9):
        raise SettingsError(f"rate={rate!r}: allowed is a number of calls a second above zero, or None for no limit")
    kinds = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise SettingsError(f"retry_on={retry_on!r}: allowed is an exception class, or a tuple of them")
    delay_s = duration_s(retry_delay, "retry_delay")
    return CallSettings(capacity, bool(ordered), timeout_s, retries, delay_s, kinds, rate, batch, breaker, kept_answers)


def as_function(fn: Any) -> AsyncFunction:
    """Return a coroutine function, or an object with an asynchronous call, as an `AsyncFunction`."""
    if isinstance(fn, AsyncFunction):
        if type(fn).call is AsyncFunction.call:
            raise SettingsError(f"{type(fn).__name__} has no `async def call(self, rows)`, which answers rows")
        return fn
    called = vars(type(fn)).get("__call__")
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(called):
        return _Function(fn)
    raise SettingsError(
        f"map_async({getattr(fn, '__name__', fn)!r}): expected a function that is declared with `async def`, or an "
        "hf.AsyncFunction; use map_batches for a function that does not wait"
    )


def name_of(function: AsyncFunction) -> str:
    """Return the name of a function for messages."""
    named = function.call if isinstance(function, _Function) else type(function)
    return str(getattr(named, "__name__", type(named).__name__))


class Closable(Protocol):
    """An object that a process holds for a function, and that can be closed."""

    def close(self) -> None: ...


class AsyncCalls:
    """A step's function with its settings. It is sent to the senders without the resources that a process has
    opened."""

    def __init__(self, function: AsyncFunction, settings: CallSettings, schema: pa.Schema) -> None:
        self.function = function
        self.settings = settings
        self.schema = schema
        self._lock = threading.Lock()
        self._opened: Any = None

    def __str__(self) -> str:
        return f"map_async({name_of(self.function)})"

    def __reduce__(self) -> tuple[type["AsyncCalls"], tuple[AsyncFunction, CallSettings, pa.Schema]]:
        return AsyncCalls, (self.function, self.settings, self.schema)

    def __call__(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        raise AssertionError("the calls of a step are made by `answered`")

    def opened(self, make: Callable[[], T]) -> T:
        """Return what this process holds for the function; it is made at the first call."""
        with self._lock:
            if self._opened is None:
                self._opened = make()
            found: T = self._opened
            return found

    def close(self) -> None:
        """Close the objects that this process holds for the function; a later call creates them again."""
        with self._lock:
            held, self._opened = self._opened, None
        if held is not None:
            held.close()
