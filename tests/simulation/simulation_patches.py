"""Patches of Holdfast's modules, which find simulated threads, locks, time and chance during a simulation.

`simulated` replaces the real ones in the globals of every module of Holdfast's, in defaults of its functions and in
fields of its dataclasses; the code itself is real, unchanged. Parts that are not simulated are refused by name.
"""

import concurrent.futures
import functools
import importlib
import pkgutil
import queue
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import simulation_threads as made
from simulation_threads import Condition, Event, Lock, RLock, Semaphore, SimpleQueue, Thread, ThreadPoolExecutor, Timer

import holdfast


class Only:
    """A module of which just these names exist: a simulation must know all that it runs."""

    def __init__(self, name: str, **attributes: Any) -> None:
        self._name = name
        self.__dict__.update(attributes)

    def __getattr__(self, attribute: str) -> Any:
        raise AttributeError(f"{self._name}.{attribute} is not simulated: add it to simulation_threads")


_THREADING = Only(
    "threading",
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    Semaphore=Semaphore,
    BoundedSemaphore=Semaphore,
    Thread=Thread,
    Timer=Timer,
    get_ident=lambda: threading.get_ident() if made.is_foreign() else id(made.fiber()),
    current_thread=lambda: made.fiber() or threading.current_thread(),
    main_thread=threading.main_thread,
)
_TIME = Only(
    "time",
    monotonic=made.monotonic,
    perf_counter=made.monotonic,
    thread_time=made.monotonic,
    process_time=made.monotonic,
    monotonic_ns=lambda: int(made.monotonic() * 1e9),
    perf_counter_ns=lambda: int(made.monotonic() * 1e9),
    time=made.now,
    time_ns=lambda: int(made.now() * 1e9),
    sleep=made.sleep,
)
_QUEUE = Only("queue", SimpleQueue=SimpleQueue, Queue=SimpleQueue, Empty=queue.Empty)
_RANDOM = Only(
    "random",
    Random=random.Random,
    uniform=lambda low, high: made.chance().uniform(low, high),
    random=lambda: made.chance().random(),
)
_UUID = Only("uuid", uuid4=made.uuid4, UUID=uuid.UUID)
_PLACED = [
    (threading, _THREADING),
    (time, _TIME),
    (queue, _QUEUE),
    (random, _RANDOM),
    (uuid, _UUID),
    (threading.Lock, Lock),
    (threading.RLock, RLock),
    (threading.Condition, Condition),
    (threading.Event, Event),
    (threading.Thread, Thread),
    (time.sleep, made.sleep),
    (time.monotonic, made.monotonic),
    (time.perf_counter, made.monotonic),
    (time.time, made.now),
    (queue.SimpleQueue, SimpleQueue),
    (uuid.uuid4, made.uuid4),
    (concurrent.futures.ThreadPoolExecutor, ThreadPoolExecutor),
    (concurrent.futures.wait, made.wait),
    (concurrent.futures.as_completed, made.as_completed),
]
_REPLACEMENTS = {id(real): other for real, other in _PLACED}
REAL_PLACES = ("holdfast.spark", "holdfast.cli")
"""Not simulated, and not imported."""

Put = Callable[[], None]


@contextmanager
def simulated() -> Iterator[None]:
    """Let Holdfast's modules use the simulated parts within the context."""
    try:
        for put, _ in _all_places():
            put()
        Future.result, Future.exception = made.result, made.exception  # type: ignore[method-assign]
        yield
    finally:
        Future.result, Future.exception = made.REAL_RESULT, made.REAL_EXCEPTION  # type: ignore[method-assign]
        for _, undo in _all_places():
            undo()


@functools.cache
def _all_places() -> list[tuple[Put, Put]]:
    """Looked for once: every module is imported by then."""
    return list(_places())


def _places() -> Iterator[tuple[Put, Put]]:
    for module in _modules():
        for name, value in list(vars(module).items()):
            simulated_one = _REPLACEMENTS.get(id(value))
            if simulated_one is not None:
                yield _setting(vars(module), name, simulated_one)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                yield from _in_class(value)
            elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
                yield from _in_function(value)


def _modules() -> list[Any]:
    for info in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not info.name.startswith(REAL_PLACES):
            importlib.import_module(info.name)
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("holdfast") and not name.startswith(REAL_PLACES)
    ]


def _in_class(found: type) -> Iterator[tuple[Put, Put]]:
    for value in list(vars(found).values()):
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            yield from _in_function(function)


def _in_function(function: FunctionType) -> Iterator[tuple[Put, Put]]:
    """Defaults, and the factories that a dataclass's `__init__` closes over."""
    defaults = function.__defaults__ or ()
    replaced = tuple(_REPLACEMENTS.get(id(value), value) for value in defaults)
    if replaced != defaults:
        yield _attribute(function, "__defaults__", replaced)
    for name, value in (function.__kwdefaults__ or {}).items():
        if id(value) in _REPLACEMENTS:
            yield _setting(function.__kwdefaults__, name, _REPLACEMENTS[id(value)])
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if id(value) in _REPLACEMENTS:
            yield _attribute(cell, "cell_contents", _REPLACEMENTS[id(value)])


def _setting(where: dict[str, Any], name: str, value: Any) -> tuple[Put, Put]:
    before = where[name]
    return lambda: where.__setitem__(name, value), lambda: where.__setitem__(name, before)


def _attribute(where: Any, name: str, value: Any) -> tuple[Put, Put]:
    before = getattr(where, name)
    return lambda: setattr(where, name, value), lambda: setattr(where, name, before)
