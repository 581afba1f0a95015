"""The plan: what fixes a batch before it runs; and the units of work that tasks take from it."""

import msgspec

from holdfast.sources.base import Offsets, SplitRead


class Unit(msgspec.Struct, frozen=True):
    """The smallest piece of work of a leg: one split read, or one subtask's output. Numbered within (batch, level).

    A task works off one or several units; each unit's rows and committables are kept apart, in unit order.
    """

    unit: int
    leg: int
    read: SplitRead | None = None
    subtask: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """A batch between two offset maps per source. A retry uses the same plan under a new run number."""

    batch: int
    batch_time_us: int
    start: dict[str, Offsets]
    to: dict[str, Offsets]
    units: list[Unit]
    """Those of level 0; the units of higher levels follow from parallelism alone."""

    @property
    def progress(self) -> bool:
        """Whether the batch moves any source."""
        return self.start != self.to
