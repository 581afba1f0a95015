"""Senders' claims about the rows that they sent, in columns, so that the driver passes them on to TaskManagers without
looking at each stream.

    sender ──► `Sent`: a row for each TaskManager ──► `by_task_manager` ──► `Streams`: a row for each attempt

With 512 senders and 64 TaskManagers a batch has 32,768 streams, so that an object for each would cost the driver more
than everything else in a batch. Data only.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

PLACES = np.dtype("<u4")
ROWS = np.dtype("<u8")
DIGESTS = np.dtype("<u4")


class SentStream(NamedTuple):
    """The claim of an attempt at a unit: the number of rows sent to a TaskManager, and their digest."""

    unit: int
    attempt: str
    rows: int
    digest: int


class Sent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The claims of an attempt: the number of each TaskManager that got rows, with the rows and the digest."""

    task_managers: bytes = b""
    rows: bytes = b""
    digests: bytes = b""

    @classmethod
    def of(cls, claims: Sequence[tuple[int, int, int]]) -> Self:
        """Make the columns from tuples (TaskManager, rows, digest)."""
        task_managers, rows, digests = zip(*claims, strict=True) if claims else ((), (), ())
        return cls(_packed(task_managers, PLACES), _packed(rows, ROWS), _packed(digests, DIGESTS))

    def __len__(self) -> int:
        return len(self.task_managers) // PLACES.itemsize

    def streams(self, unit: int, attempt: str) -> dict[int, SentStream]:
        """Return the claims by TaskManager. The caller knows the attempt and its unit."""
        return {
            task_manager: SentStream(unit, attempt, rows, digest)
            for task_manager, rows, digest in zip(
                _numbers(self.task_managers, PLACES),
                _numbers(self.rows, ROWS),
                _numbers(self.digests, DIGESTS),
                strict=True,
            )
        }


class Streams(msgspec.Struct, frozen=True, array_like=True):
    """The streams to a TaskManager that must be processed, in order."""

    units: bytes = b""
    attempts: list[str] = []
    rows: bytes = b""
    digests: bytes = b""

    @classmethod
    def of(cls, streams: Sequence[SentStream]) -> Self:
        """Make the columns from streams."""
        units, attempts, rows, digests = zip(*streams, strict=True) if streams else ((), (), (), ())
        return cls(_packed(units, PLACES), list(attempts), _packed(rows, ROWS), _packed(digests, DIGESTS))

    def __iter__(self) -> Iterator[SentStream]:
        units, rows, digests = _numbers(self.units, PLACES), _numbers(self.rows, ROWS), _numbers(self.digests, DIGESTS)
        return map(SentStream, units, self.attempts, rows, digests)


class SentUnit(NamedTuple):
    """The rows and digests that the accepted attempt at a unit sent."""

    unit: int
    attempt: str
    sent: Sent


def by_task_manager(units: Sequence[SentUnit]) -> dict[int, Streams]:
    """Return the streams to each TaskManager that got rows, in the order of `units`."""
    units = [each for each in units if len(each.sent)]
    if not units:
        return {}
    task_managers = np.frombuffer(b"".join(each.sent.task_managers for each in units), PLACES)
    rows = np.frombuffer(b"".join(each.sent.rows for each in units), ROWS)
    digests = np.frombuffer(b"".join(each.sent.digests for each in units), DIGESTS)
    places = np.repeat(np.arange(len(units)), [len(each.sent) for each in units])
    numbers = np.array([each.unit for each in units], PLACES)
    attempts = np.array([each.attempt for each in units], object)
    order = np.argsort(task_managers, kind="stable")
    found, starts = np.unique(task_managers[order], return_index=True)
    streams = {}
    for task_manager, chosen in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        place = places[chosen]
        streams[task_manager] = Streams(
            numbers[place].tobytes(),
            attempts[place].tolist(),
            rows[chosen].tobytes(),
            digests[chosen].tobytes(),
        )
    return streams


def _packed(values: Iterable[int], kind: np.dtype[Any]) -> bytes:
    found: npt.NDArray[Any] = np.array(list(values), kind)
    return found.tobytes()


def _numbers(column: bytes, kind: np.dtype[Any]) -> list[int]:
    found: list[int] = np.frombuffer(column, kind).tolist()
    return found
