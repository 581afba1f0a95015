"""The readers of a process: kept between reads, so that connections and messages fetched ahead stay."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.sources.kafka.client_reader import ClientReader
from holdfast.sources.kafka.messages import PartitionReader
from holdfast.sources.kafka.queue_reader import QueueReader, library

IDLE_MAX = 4
"""Number of idle readers that a process keeps. A higher value keeps more connections and fetched messages."""

_idle: list[tuple[tuple[Any, ...], PartitionReader]] = []
_owner = os.getpid()


@contextmanager
def reader(whose: str, settings: Mapping[str, Any]) -> Iterator[PartitionReader]:
    """Lend a reader with these settings; a reader whose read failed or was broken off is not lent again."""
    global _owner
    if _owner != os.getpid():  # A fork has the parent's readers, but not the threads that serve them.
        _idle.clear()
        _owner = os.getpid()
    key = (whose, *sorted((name, str(value)) for name, value in settings.items()))
    place = next((place for place, (kept, _) in enumerate(_idle) if kept == key), None)
    lent = new_reader(whose, settings) if place is None else _idle.pop(place)[1]
    try:
        yield lent
    except BaseException:  # Includes the end of a generator that is closed during a read.
        lent.close()
        raise
    _idle.append((key, lent))
    while len(_idle) > IDLE_MAX:
        _idle.pop(0)[1].close()


def new_reader(whose: str, settings: Mapping[str, Any]) -> PartitionReader:
    """Make a reader: the fast reader if the client's library can be called, and the options are plain values."""
    found = library()
    if found is not None and all(isinstance(value, str | int | float) for value in settings.values()):
        return QueueReader(whose, settings, found)
    return ClientReader(whose, settings)
