"""Storages that were set back: restored from an older copy, or without their journal.

    storage    … C(3)                      the newest checkpoint, and so the highest number that was ever published
    target     1  2  3  4  5  6            6: refused, since rows would be published again under the numbers 4 to 6

Numbers of records only grow, and a group is published under the number of a record. So records are missing if a target
knows a higher number than the newest checkpoint, or if there is an object of an epoch above all records of the journal.
With `publish_again` the job continues all the same, under numbers above all numbers that were seen.
"""

from collections.abc import Iterable, Mapping
from uuid import uuid4

from holdfast.errors import JobRefused, StorageError
from holdfast.ids import Epoch, JournalNumber
from holdfast.journal import rules
from holdfast.journal.fence import Listed, list_journal, settle
from holdfast.journal.patience import ATTEMPTS_MAX, Patience, back_off
from holdfast.journal.records import Takeover
from holdfast.printable import logger
from holdfast.sinks.base import Sink, SinkContext
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

log = logger(__name__)

PASSED_OVER_MAX = 10_000
"""Bound on the numbers that a start passes over to get above the numbers that targets know. Each takes a request to the
store. With a higher value, jobs on older copies can continue, but their start takes longer (minutes at this value)."""


def last_numbers(sinks: Iterable[tuple[Sink, SinkContext]], *, first_start: bool) -> dict[str, int]:
    """Ask each sink for its last number. The first start on a storage warns of sinks that cannot say."""
    found: dict[str, int] = {}
    for sink, context in sinks:
        try:
            number = sink.last_number(context)
        except (StorageError, OSError) as error:
            raise StorageError(f"sink {context.sink!r}: its target cannot be reached: {error}") from error
        if number is not None:
            found[context.sink] = number
        elif first_start:
            log.warning(
                "sink %r (%s) cannot say which number it published last: if the storage is ever restored from an older "
                "copy, output is published again unnoticed (docs/guide/backup.md)",
                context.sink, sink.kind,
            )  # fmt: skip
    return found


def epochs_above(store: ObjectStore, listed: Listed) -> JournalNumber:
    """Return the highest epoch that stored a part of a checkpoint although the journal has no record with so high a
    number; 0 if there is none."""
    above = names.checkpoint_folders(Epoch(max(listed.numbers, default=0) + 1))
    found = [info for first in above for info in store.list(f"{first.partition('/')[0]}/", after=first)]
    return JournalNumber(max((names.epoch_of(info.name) or 0 for info in found), default=0))


def check_not_set_back(
    store: ObjectStore, newest: JournalNumber | None, targets: Mapping[str, int], epoch: int, publish_again: bool
) -> JournalNumber:
    """Compare the storage's newest checkpoint with the numbers that targets know and with an epoch above the journal.

    Return the number that the job has to skip, 0 if there is none. Raises `JobRefused`.
    """
    ahead = {sink: number for sink, number in targets.items() if number > (newest or 0)}
    if not ahead and not epoch:
        return JournalNumber(0)
    highest = JournalNumber(max(*ahead.values(), epoch, 0))
    there = "has no checkpoint" if newest is None else f"ends with checkpoint {newest}"
    seen = [f"sink {sink!r} has published number {number} of this job" for sink, number in sorted(ahead.items())]
    seen += [f"the storage holds objects of epoch {epoch}"] if epoch else []
    found = (
        f"{store.url}: the journal {there}, but {', and '.join(seen)}: the storage was restored from an older copy, or "
        "records of its journal were deleted."
    )
    distance = highest - (newest or 0)
    if publish_again and distance <= PASSED_OVER_MAX:
        log.warning("%s As publish_again=True agrees, it goes on under numbers above %d", found, highest)
        return highest
    limit = f" (at most {PASSED_OVER_MAX} numbers, found {distance})" if distance > PASSED_OVER_MAX else ""
    raise JobRefused(
        f"{found} A start from here would process rows anew, and their output would be lost or would overwrite other "
        f"rows under numbers up to {highest}. Either restore the copy of the storage that has checkpoint {highest} or "
        "a later one; or put the targets back to the same time and start on a new storage; or agree with "
        f"job.start(publish_again=True) that rows after the storage's checkpoint are published a second time, under "
        f"numbers above {highest}{limit}; or give the sink another name, under which it begins anew. Nothing "
        "was changed"
    )


def pass_over(store: ObjectStore, highest: JournalNumber) -> None:
    """Fill the journal with takeovers up to a number, so that the takeover which counts has a higher number.

    A number at which another driver writes during this is skipped too. Raises `StorageError`.
    """
    number = rules.number_for_put(list_journal(store).numbers)
    while number <= highest:
        settle(store, number, Takeover(Epoch(number), uuid4().hex), Patience(ATTEMPTS_MAX, back_off))
        number = JournalNumber(number + 1)
