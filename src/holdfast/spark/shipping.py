"""Modules that travel by value (`Job(ship_modules=[…])`), because executors do not have them.

Functions reach executors in two ways: with the program, which `cloudpickle` pickles, and as Spark's own user-defined
functions, which PySpark pickles with its own copy of `cloudpickle`. Both must know the modules during pickling only.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import cloudpickle
from pyspark import cloudpickle as pyspark_cloudpickle

_PICKLERS: tuple[Any, ...] = (cloudpickle, pyspark_cloudpickle)

_lock = threading.Lock()
_users: Counter[tuple[str, str]] = Counter()


@contextmanager
def shipped_by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Include the modules' code in everything that is pickled inside the context. The user's registrations are kept."""
    taken: list[tuple[Any, ModuleType]] = []
    with _lock:
        for pickler in _PICKLERS:
            for module in modules:
                key = (pickler.__name__, module.__name__)
                if _users[key] or module.__name__ not in pickler.list_registry_pickle_by_value():
                    pickler.register_pickle_by_value(module)
                    _users[key] += 1
                    taken.append((pickler, module))
    try:
        yield
    finally:
        with _lock:
            for pickler, module in taken:
                key = (pickler.__name__, module.__name__)
                _users[key] -= 1
                if not _users[key]:
                    pickler.unregister_pickle_by_value(module)
