"""A start from an older, retained checkpoint: `job.start(start_from=<number>)`.

    journal   5      7      8        9          10
            ┌──────┬──────┬────────┬──────────┬────────────────────┐
            │ C(1) │ C(1) │ T(8)   │ C(8) = 5 │ C(8), after 5      │   C checkpoint, T takeover, (epoch)
            └──────┴──────┴────────┴──────────┴────────────────────┘
              retained              the copy, put right after the takeover

Invariants
- Only the highest checkpoint counts, so the older one is put again above the takeover: numbers go on, and sinks never
  see a number twice.
- Output that the newest checkpoint holds is published first. Output between the two checkpoints is published again
  under new numbers; the user has to agree to that.
- A job goes back to a number once. Later starts with the same number go on from their newest checkpoint.
"""

from collections.abc import Collection, Mapping
from uuid import uuid4

import msgspec

from holdfast.errors import Fenced, JobRefused
from holdfast.ids import JournalNumber
from holdfast.journal import rules
from holdfast.journal.fence import TakenOver, read_retained, settle
from holdfast.journal.patience import ATTEMPTS_MAX, Patience, back_off
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger
from holdfast.storage.store import ObjectStore

log = logger(__name__)


def goes_back(number: JournalNumber | None, newest: CheckpointRecord | None, wanted: int | str | None) -> bool:
    """Decide if a start has to go back to `wanted`. Raises `JobRefused` if there is no checkpoint at all."""
    if wanted is None:
        return False
    if newest is None:
        raise JobRefused(
            f"start_from={wanted}: the storage holds no checkpoint yet; leave start_from out, or name the storage that "
            "holds it"
        )
    return wanted not in (number, newest.started_from)


def chosen(
    newest_number: JournalNumber,
    newest: CheckpointRecord,
    retained: Mapping[JournalNumber, CheckpointRecord],
    wanted: int,
    sinks: Collection[str],
    publish_again: bool,
) -> CheckpointRecord:
    """Return the checkpoint to go back to, with the output that the newest checkpoint has not published yet; pure.

    Raises
    ------
    JobRefused
        The number is not retained; or output would be published again without the user's consent.
    """
    record = retained.get(JournalNumber(wanted))
    if record is None:
        there = ", ".join(map(str, [*retained, newest_number]))
        raise JobRefused(
            f"start_from={wanted}: the storage does not retain a checkpoint of that number; it retains {there}. Name "
            "a retained checkpoint; a job retains more checkpoints with CheckpointConfig(retained=…)"
        )
    return agreed(newest_number, newest, wanted, record, sinks, publish_again)


def agreed(
    newest_number: JournalNumber,
    newest: CheckpointRecord,
    wanted: int,
    record: CheckpointRecord,
    sinks: Collection[str],
    publish_again: bool,
) -> CheckpointRecord:
    """Return the record, with the kept settings of the newest record and the output that the newest record has not
    published yet; pure.

    Raises `JobRefused` if output would be published again without the user's consent.
    """
    if sinks and not publish_again:
        raise JobRefused(
            f"start_from goes back from checkpoint {newest_number} to checkpoint {wanted}, from batch "
            f"{newest.batch} to batch {record.batch}: rows after it are processed anew, and their output is published "
            f"a second time to {', '.join(sorted(sinks))}. job.start(publish_again=True) agrees to that; put the "
            "targets back first if they cannot take rows twice"
        )
    return msgspec.structs.replace(record, groups=newest.groups, kept=newest.kept)


def go_back(store: ObjectStore, taken: TakenOver, record: CheckpointRecord, wanted: int | str) -> TakenOver:
    """Put the chosen checkpoint again, above the takeover; the job continues from there.

    Raises
    ------
    Fenced
        Another JobMaster took over meanwhile.
    StorageError
        It is not known whether the record was written. The next start with the same number finds out.
    """
    assert taken.base is not None and taken.base_number is not None
    older = (*taken.older, (taken.base_number, taken.base))
    number = JournalNumber(int(taken.epoch) + 1)
    again = msgspec.structs.replace(
        record,
        epoch=taken.epoch,
        checkpoint_id=0,
        nonce=uuid4().hex,
        retains=[int(each) for each, _ in older],
        started_from=wanted,
    )
    if settle(store, number, again, Patience(ATTEMPTS_MAX, back_off)) is rules.PutOutcome.TAKEN:
        raise Fenced(f"{store.url}: epoch {taken.epoch} has ended: another JobMaster took over while the job started")
    log.warning(
        "went back from checkpoint %d to checkpoint %s, as record %d: rows after batch %d are processed anew",
        taken.base_number, wanted, number, record.batch,
    )  # fmt: skip
    return TakenOver(taken.epoch, number, again, older)


def with_older(store: ObjectStore, taken: TakenOver) -> TakenOver:
    """Add the older checkpoints that the base retains."""
    return taken._replace(older=tuple(read_retained(store, taken.base).items()))
