"""Clean-up of older epochs, both after a takeover by a JobMaster and by `holdfast gc`.

    observe (I/O: journal, newest checkpoint, all it names) ──► plan (lists) ──► carry_out (plan.py)

Two kinds of objects are kept. The first are the objects that the journal's newest checkpoint needs. Later checkpoints
name no other objects of older epochs, since a job only drops objects from which it restored. The second are the objects
that earlier checkpoints of the living epoch and retained checkpoints need, while their records exist. Only the living
JobMaster deletes those. An epoch that ended normally, and said so, is no longer living: it writes no record that could
name further objects, and the next takeover has a higher number. Invariants: no object of the living epoch is deleted,
and no object at all if something that the newest checkpoint names cannot be read.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from holdfast.cleanup.plan import CleanupPlan, needed_objects, plan_cleanup, survey
from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.formats.history import has_ended
from holdfast.formats.manifests import decode_manifest
from holdfast.ids import Epoch, JournalNumber
from holdfast.journal import rules
from holdfast.journal.fence import Listed, TakenOver, exists, list_journal, lost, newest_checkpoint, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.sinks.gathered import Named
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

OBSERVATIONS_MAX = 20
"""Bound on attempts to read a journal that a running job keeps changing."""


class Observed(NamedTuple):
    """The living epoch with its newest checkpoint, the objects that must be kept, and the committables of sinks."""

    taken: TakenOver
    needed: frozenset[str]
    committables: dict[str, list[bytes]]
    ended: bool = False
    """True if the last epoch ended normally. `taken` then has the number after it, so that the epoch counts as over."""


def observe(store: ObjectStore, epoch: Epoch | None = None, sinks: Collection[str] | None = None) -> Observed | None:
    """Find the objects that must be kept; None if the journal is empty.

    Parameters
    ----------
    epoch
        The caller's own epoch. Default: the epoch of the highest record, or the one after it if that epoch ended
        normally, so that its objects count as those of an older epoch.
    sinks
        The job's sinks. Unpublished output of other sinks is not kept. Default: the output of all sinks is kept.

    Raises
    ------
    CorruptObject, StorageError
        The journal, or something that the newest checkpoint names, cannot be read, or a record is lost.
    """
    gone: ObjectNotFound | None = None
    for _ in range(OBSERVATIONS_MAX):
        listed = _list_and_ask(store)
        if not listed.numbers:
            return None
        if epoch is not None and JournalNumber(epoch) not in listed.numbers:
            continue  # the listing lags behind
        try:
            return _observe(store, listed, epoch, sinks)
        except ObjectNotFound as error:
            gone = error if _list_and_ask(store) == listed else None
        except CorruptObject:
            if _list_and_ask(store) == listed:
                raise
    if gone is not None:
        raise gone
    raise StorageError(f"{store.url}: the journal changed {OBSERVATIONS_MAX} times while it was read; try again")


def _list_and_ask(store: ObjectStore) -> Listed:
    """List the journal, and read the records that follow by name, since a listing may lag behind a running job."""
    listed = list_journal(store)
    numbers = list(listed.numbers)
    while numbers and exists(store, names.journal(following := JournalNumber(max(numbers) + 1))):
        numbers.append(following)
    return Listed(numbers, listed.begun)


def plan(store: ObjectStore, observed: Observed) -> CleanupPlan:
    """Plan the deletions. This lists the storage and writes nothing."""
    return plan_cleanup(survey(store, observed.taken, observed.needed))


def manifest_objects(name: str, data: bytes) -> list[str]:
    """Return the names of the objects to which a manifest refers. Raises `CorruptObject`."""
    return [obj for table in decode_manifest(name, data).tables for obj in table.objects()]


def _observe(store: ObjectStore, listed: Listed, epoch: Epoch | None, sinks: Collection[str] | None) -> Observed:
    numbers = listed.numbers
    # A takeover below other records never counted, so only the highest number says which epoch is living.
    newest = read_record(store, max(numbers)).epoch
    living = epoch if epoch is not None else Epoch(newest + 1) if has_ended(store, newest) else newest
    number, base = newest_checkpoint(numbers, lambda each: read_record(store, each))
    missing = rules.missing_record(numbers, listed.begun, number)
    if missing is not None:
        raise CorruptObject(f"{store.url}: {lost(missing, listed, number)}")
    if base is not None and sinks is not None:
        kept = {sink: groups for sink, groups in base.groups.items() if sink in sinks}
        base = msgspec.structs.replace(base, groups=kept)
    named = Named(store, base.job if base is not None else None)
    needed = needed_objects(store, base, manifest_objects, named.add)
    retained = frozenset(base.retains if base is not None else ())
    for record in _kept(store, [each for each in numbers if number is not None and each < number], living, retained):
        with suppress(ObjectNotFound):  # expired meanwhile: its objects may go too
            needed |= needed_objects(store, record, manifest_objects, named.add)
    taken = TakenOver(Epoch(living), number, base)
    return Observed(taken, frozenset(needed), named.at_targets, epoch is None and living > newest)


def _kept(
    store: ObjectStore, numbers: Sequence[JournalNumber], living: int, retained: Collection[int]
) -> Iterator[CheckpointRecord]:
    """Yield older checkpoints that the newest one retains, and those of the living epoch that are not deleted yet.

    A JobMaster that does not know yet that it was fenced keeps those of later epochs as well.
    """
    for number in numbers:
        with suppress(ObjectNotFound, CorruptObject):
            record = read_record(store, number)
            if isinstance(record, CheckpointRecord) and (record.epoch >= living or number in retained):
                yield record
