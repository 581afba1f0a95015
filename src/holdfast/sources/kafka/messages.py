"""Messages of a partition as Arrow arrays, and the interface of readers."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))


class Wanted(NamedTuple):
    """The parts of messages that a read asks for; their offsets always come."""

    keys: bool = False
    values: bool = False
    headers: bool = False
    timestamps: bool = False
    line_feeds: bool = False
    """True if a line feed follows each value that is there, so that all values together are a text of lines."""


class Messages(NamedTuple):
    """Neighbouring messages of a partition, in the order of their offsets. A part that was not asked for is None."""

    offsets: npt.NDArray[np.int64]
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None
    timestamps_ms: npt.NDArray[np.int64] | None
    """-1 for a message without a time."""


class PartitionReader(Protocol):
    """Reader of a process, kept between reads. Used by a single thread at a time."""

    def read(self, topic: str, partition: int, start: int, stop: int, wanted: Wanted) -> Iterator[Messages]:
        """Yield the messages with offsets in `[start, stop)`, which must all be there.

        Offsets without a message (markers of transactions, aborted or compacted messages) are passed over.

        Raises
        ------
        PositionLost
            The offset `start` is no longer there, or the partition is gone.
        StorageError
            The cluster does not answer.
        """
        ...

    def close(self) -> None: ...
