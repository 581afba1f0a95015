"""The rules of the journal. They are pure functions from observed facts to a decision. `fence` and `journal` carry the
decisions out, and the model in the tests explores them.

    number    1      2      3      4      5      6
            ┌──────┬──────┬──────┬──────┬──────┬──────┐
            │ T(1) │ C(1) │(free)│ C(1) │ T(5) │ C(5) │   T takeover, C checkpoint, (epoch)
            └──────┴──────┴──────┴──────┴──────┴──────┘
                            expired  base    epoch  newest
                                     of 5    5

Invariants
- A record is put at the highest number + 1, if absent, and never changed.
- Only the record with the highest number counts. It is never deleted, and neither is any takeover record.
- A takeover counts only if a listing begun after its put shows it, nothing above it, and its base: a number that was
  freed can be created again by a candidate that was paused between its listing and its put. A listing that lags behind
  does not show the takeover; one that shows it shows all that was put before it.
- Only reading the number back shows the outcome of a put.
- Above the newest checkpoint there are only takeovers, without a gap: each was put at the highest number + 1, and
  nothing above the newest checkpoint is ever deleted. Once a checkpoint was recorded (the mark `journal/begun` says
  so), a checkpoint record always exists. If either does not hold, the newest record was lost.
"""

from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto

from holdfast.ids import Epoch, JournalNumber
from holdfast.journal.records import Record


class PutOutcome(Enum):
    """Outcome of a put, as a later read shows it."""

    WRITTEN = auto()
    TAKEN = auto()
    """Another record has the number. A JobMaster is then fenced; a candidate starts over."""
    ABSENT = auto()
    """No record has the number yet. The put may still take effect, so put the same bytes again, and do nothing else
    until then."""


def number_for_put(numbers: Iterable[JournalNumber]) -> JournalNumber:
    """Return the number for the next record, given the numbers in a listing."""
    return JournalNumber(max(numbers, default=0) + 1)


def outcome(own: Record, found: Record | None) -> PutOutcome:
    """Return the outcome of the put of `own`, given the record `found` at its number (None: no record).

    The nonce decides, not equality: a position may be NaN.
    """
    if found is None:
        return PutOutcome.ABSENT
    return PutOutcome.WRITTEN if (found.epoch, found.nonce) == (own.epoch, own.nonce) else PutOutcome.TAKEN


def takeover_counts(
    number: JournalNumber, base: JournalNumber | None, listed: Collection[JournalNumber], begun: bool
) -> bool:
    """Decide if a takeover at `number` counts, given a listing that began after its put, and whether the mark exists.

    The listing must show the takeover (otherwise it lags, and is repeated). There must be no record above it, and its
    base must still be the newest checkpoint. A checkpoint recorded since the first listing is above it, unless it was
    lost; in that case the base has expired or the mark has appeared.
    """
    base_stays = not begun if base is None else base in listed
    return max(listed, default=0) == number and base_stays


def newest_epoch(numbers: Collection[JournalNumber], base: JournalNumber | None, base_epoch: Epoch | None) -> Epoch:
    """Return the epoch that took over last; 0 if none has. Above the newest checkpoint there are only takeovers, and
    the epoch of a takeover is its number."""
    highest = max(numbers, default=JournalNumber(0))
    return Epoch(highest) if base is None or base_epoch is None or highest > base else base_epoch


def base_search_order(numbers: Iterable[JournalNumber], below: JournalNumber) -> list[JournalNumber]:
    """Return the order in which to search for the base: the first checkpoint record in it is the newest."""
    return sorted((number for number in numbers if number < below), reverse=True)


def missing_record(
    numbers: Collection[JournalNumber], begun: bool, newest: JournalNumber | None
) -> JournalNumber | None:
    """Return the number of a record that the journal has lost, given a complete listing; None if no loss is known.

    `newest` is the newest checkpoint among `numbers`; `begun` is true if a checkpoint was ever recorded. If all
    checkpoints are lost and there is no record above them, the lost record has the returned number or a higher one. The
    loss of a record cannot be detected if the previous checkpoint has not expired and no record follows.
    """
    lowest, stop = 1 if newest is None else newest + 1, number_for_put(numbers)
    gaps = [number for number in map(JournalNumber, range(lowest, stop)) if number not in numbers]
    if gaps:
        return gaps[-1]
    return stop if begun and newest is None else None


def refused_expiry(
    wanted: Iterable[JournalNumber],
    checkpoints: Collection[JournalNumber],
    newest: JournalNumber | None,
    resolved: bool,
) -> str | None:
    """Return the reason not to delete these records now; None if they may be deleted.

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
"""A function that is called between two attempts with the number of attempts made so far, starting at 1."""
