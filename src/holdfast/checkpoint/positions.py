"""End positions of a batch, and the output that a record holds, in the form for events and commands."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.behind import Behind
from holdfast.ids import JournalNumber, SplitPosition
from holdfast.watermarks import SourceTime


def least_watermark(times: Mapping[str, SourceTime]) -> int | None:
    """Return the least watermark that the last batch had; None if there is none, or a source has none yet."""
    known = [each.watermark_us for each in times.values() if each.watermark_us is not None]
    return min(known) if known and len(known) == len(times) else None


@dataclass(frozen=True, slots=True)
class Position:
    """The positions at which a batch ends; opaque to the rules, handed back in `StoreAndRecord`."""

    batch_time_us: int
    offsets: Mapping[str, Mapping[str, SplitPosition]]
    source_objects: Mapping[str, list[str]] = field(default_factory=dict)
    watermarks: Mapping[str, SourceTime] = field(default_factory=dict)
    behind: Behind = field(default_factory=dict)
    """Splits that failed and have not caught up since."""
    held_us: Mapping[str, int | None] = field(default_factory=dict)
    """Times up to which splits that are behind are complete, by watermark; None: not at all. Only watermarks with
    splits that are behind are listed."""
    finishing: Mapping[str, int] = field(default_factory=dict)
    """Watermarks of the sinks that finish parts of their output by event time, if they have a watermark."""

    @property
    def watermark_us(self) -> int | None:
        """The least watermark of all sources in the batch; None if a source has none yet, or none is declared."""
        return least_watermark(self.watermarks)


@dataclass(frozen=True, slots=True)
class Group:
    """Committables of a sink, stored as `object`. `number`: the number of the record that first held them."""

    number: JournalNumber
    object: str


@dataclass(frozen=True, slots=True)
class BaseRecord:
    """The checkpoint record the job starts from.

    `objects`: manifests, the objects that they refer to, and objects of sources. `groups`: by sink, the groups that are
    not known to be published.
    """

    number: JournalNumber
    objects: frozenset[str]
    groups: Mapping[str, list[Group]]
    written_s: float = 0.0
    """Time since the Unix epoch."""
    older: tuple["BaseRecord", ...] = ()
    """Retained records below this record, oldest first. Their groups count as published unless this record has them."""
    watermark_us: int | None = None
    """Least watermark of its sources."""
    kept: Mapping[str, str | int | float | None] = field(default_factory=dict)
    """Updates of settings that it holds."""
