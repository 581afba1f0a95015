"""Messages of a partition as Arrow arrays, and the interface of readers."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import PositionLost
from holdfast.printable import logger

log = logger(__name__)

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

TRIES_MAX = 3
"""Bound on the errors about a position that may belong to an earlier position. A higher value takes longer to fail."""


class Wanted(NamedTuple):
    """The parts of messages that a read wants; offsets are always read."""

    keys: bool = False
    values: bool = False
    headers: bool = False
    timestamps: bool = False
    passes_lost: bool = False
    """True if the read skips messages that are gone; otherwise it raises `PositionLost`."""


class Messages(NamedTuple):
    """Consecutive messages of a partition, in the order of their offsets. A part that was not wanted is None."""

    offsets: npt.NDArray[np.int64]
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None
    timestamps_ms: npt.NDArray[np.int64] | None
    """-1 for a message without a time."""
    bad_headers: Mapping[int, str] = {}
    """Places of messages whose headers cannot be read, with the reason; their headers are null."""

    def without(self, places: Collection[int]) -> "Messages":
        """Return the messages except those at some positions."""
        kept = np.delete(np.arange(len(self.offsets)), list(places))
        keys, values, headers = (
            None if part is None else part.take(pa.array(kept)) for part in (self.keys, self.values, self.headers)
        )
        times = None if self.timestamps_ms is None else self.timestamps_ms[kept]
        return Messages(self.offsets[kept], keys, values, headers, times)


class PartitionReader(Protocol):
    """Reader of a process, kept between reads. Used by a single thread at a time."""

    def read(self, topic: str, partition: int, start: int, stop: int, wanted: Wanted) -> Iterator[Messages]:
        """Yield the messages with offsets in `[start, stop)`. All were there when the read was planned.

        Offsets without a message (markers of transactions, aborted or compacted messages) are skipped.

        Raises
        ------
        PositionLost
            Retention has deleted some of them, the log has become shorter, or the partition is gone.
        StorageError
            The cluster does not answer.
        """
        ...

    def close(self) -> None: ...


def read_headers(
    messages: Iterable[Any], headers: Callable[[Any], list[dict[str, Any]] | None]
) -> tuple[pa.Array, dict[int, str]]:
    """Return the headers of messages as an array, and by position the reasons why headers cannot be read."""
    rows: list[list[dict[str, Any]] | None] = []
    bad: dict[int, str] = {}
    for place, message in enumerate(messages):
        try:
            rows.append(headers(message))
        except (UnicodeDecodeError, SystemError) as error:  # the client adds a SystemError to the decoder's error
            rows.append(None)
            bad[place] = f"the name of a header is not UTF-8: {error.__cause__ or error}"
    return pa.array(rows, HEADERS), bad


def after_lost(where: str, at: int, stop: int, low: int, high: int, passes: bool) -> int | None:
    """Return the offset at which a read up to `stop` continues, if messages from `at` on are gone. `low` and `high` are
    the partition's first offset and its end. None: the message at `at` is not gone. Raises
    `PositionLost` if messages are gone, unless `passes`.
    """
    if low <= at and stop <= high:
        return None
    reason = "retention has deleted messages" if at < low else "the log has become shorter since the read was planned"
    found = f"{where}: wanted are offsets {at} to {stop - 1}, available are {low} to {high - 1}: {reason}"
    if not passes:
        raise PositionLost(f"{found}. Start with on_lost='reset' to go on from the earliest offset that is there")
    if low <= at < high:
        return None  # a broker that is slow has yet to give the messages before the end of the log
    log.warning("%s; going on without the others", found)
    return min(low, stop) if at < low else stop
