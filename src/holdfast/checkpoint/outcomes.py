"""Outcomes of a trigger, besides a checkpoint that completes."""

from enum import Enum


class Outcome(Enum):
    """The way in which a checkpoint ended. `counts`: the outcome counts as a failure."""

    COMPLETED = "completed"
    REFUSED = "refused"
    """Nothing was cut: a function, a source or a sink refused the boundary."""
    DECLINED = "declined"
    """A TaskManager could not do its part."""
    DECLINED_SOFTLY = "declined softly"
    EXPIRED = "expired"
    FAILED = "failed"
    """No record was written, or a part was lost."""
    SUBSUMED = "subsumed"
    """A newer checkpoint completed first."""
    ENDED = "ended"
    """The job restarted from an earlier checkpoint."""

    @property
    def counts(self) -> bool:
        return self in (Outcome.DECLINED, Outcome.EXPIRED, Outcome.FAILED)

    @property
    def is_soft(self) -> bool:
        return self is Outcome.DECLINED_SOFTLY
