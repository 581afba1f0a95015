"""The rules of the journal, pure: observed facts in, a decision out. `fence` and `journal` carry them out,
and the model in the tests explores them.

    number    1      2      3      4      5      6
            ┌──────┬──────┬──────┬──────┬──────┬──────┐
            │ T(1) │ C(1) │(free)│ C(1) │ T(5) │ C(5) │   T takeover, C checkpoint, (epoch)
            └──────┴──────┴──────┴──────┴──────┴──────┘
                            expired  base    epoch  newest
                                     of 5    5

Invariants
- A record is put at the highest number + 1, if absent, and never changed.
- Only the highest number counts; it is never deleted, and a takeover record never is.
- A takeover counts only if a listing begun after its put shows nothing above it, and its base: a number that was
  freed can be created again by a candidate that was paused between its listing and its put.
- What was asked of the store is known only by reading the number back.
- Above the newest checkpoint there are takeovers alone, without a gap: each was put at the highest number + 1, and
  nothing above it is ever deleted. Once a checkpoint was recorded (the mark `journal/begun` says so),
  there always is one. Where either does not hold, the newest record was lost.
"""

from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto

from holdfast.journal.records import Record


class Outcome(Enum):
    """What became of a put."""

    WRITTEN = auto()
    TAKEN = auto()
    """Another record is there: for a JobMaster this means fenced; a candidate starts over."""
    ABSENT = auto()
    """Not there yet. It may still land: put the same bytes again, and do nothing else meanwhile."""


def number_for_put(numbers: Iterable[int]) -> int:
    """Where a record goes, by a listing."""
    return max(numbers, default=0) + 1


def outcome(own: Record, found: Record | None) -> Outcome:
    """What reading a number back says about one's own put there; `found` is None where there is nothing.

    The nonce decides, not equality: a position may be NaN.
    """
    if found is None:
        return Outcome.ABSENT
    return Outcome.WRITTEN if (found.epoch, found.nonce) == (own.epoch, own.nonce) else Outcome.TAKEN


def takeover_counts(number: int, base: int | None, listed: Collection[int], begun: bool) -> bool:
    """Whether a takeover at `number` counts, by a listing begun after its put: what it shows, and the mark.

    Nothing may be above it, and its base must still be the newest checkpoint: one that was recorded since the first
    listing lies above, unless it is lost, and then the base has expired, or the mark has come.
    """
    base_stays = not begun if base is None else base in listed
    return max(listed, default=number) <= number and base_stays


def base_search_order(numbers: Iterable[int], below: int) -> list[int]:
    """Where to look for the base: the first checkpoint record in this order is the newest one."""
    return sorted((number for number in numbers if number < below), reverse=True)


def missing_record(numbers: Collection[int], begun: bool, newest: int | None) -> int | None:
    """The number of a record that was in the journal and is lost, by a complete listing; None: none is known.

    `newest` is the newest checkpoint among `numbers`, `begun` whether a checkpoint was ever recorded. Where all
    checkpoints are lost and nothing lies above, the lost one has the number returned, or a higher one.
    A record that was lost while the one before it was not expired yet, with nothing above, cannot be told.
    """
    lowest = 1 if newest is None else newest + 1
    highest = max(numbers, default=0)
    gap = next((number for number in range(lowest, highest) if number not in numbers), None)
    if gap is not None:
        return max(number for number in range(gap, highest) if number not in numbers)
    return highest + 1 if begun and newest is None else None


def refused_expiry(
    wanted: Iterable[int], checkpoints: Collection[int], newest: int | None, resolved: bool
) -> str | None:
    """Why these records must not be deleted now; None if they may.

    `checkpoints` are the numbers known to be checkpoint records; `newest` is the highest of them.
    """
    if not resolved:
        return "a record was sent whose outcome is not known yet"
    for number in wanted:
        if number not in checkpoints:
            return f"number {number} is not known to be a checkpoint record"
        if newest is None or number >= newest:
            return f"number {number} is the newest checkpoint record"
    return None


Wait = Callable[[int], None]
"""Called between two attempts with the number of attempts made so far, from 1."""
