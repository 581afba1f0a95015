"""Clean-up of older epochs: the same whether a JobMaster has just taken over or a person asks (`holdfast gc`).

    observe (I/O: journal, newest checkpoint, all it names) ──► plan (lists) ──► journal.cleanup.carry_out

What is kept is what the newest checkpoint of the journal needs: later ones name nothing else of older epochs, since
a job only ever lets go of what it restored from; and what earlier ones of the living epoch need, as long as they are
there: records go before what they name, and those are its JobMaster's to delete.
Invariants: nothing of the living epoch is touched, nothing at all where something that the newest checkpoint names
cannot be read.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.formats.manifests import decode_manifest
from holdfast.ids import Epoch
from holdfast.journal import rules
from holdfast.journal.cleanup import CleanupPlan, needed_objects, plan_cleanup, survey
from holdfast.journal.fence import Listed, TakenOver, list_journal, lost, newest_checkpoint, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.sinks.gathered import Named
from holdfast.storage.store import ObjectStore

OBSERVATIONS_MAX = 20
"""Attempts at reading a journal that a running job keeps changing."""


class Observed(NamedTuple):
    """The living epoch with the newest checkpoint, the objects that this one needs, and its sinks' committables."""

    taken: TakenOver
    needed: frozenset[str]
    committables: dict[str, list[bytes]]


def observe(store: ObjectStore, epoch: int | None = None, sinks: Collection[str] | None = None) -> Observed | None:
    """What must be kept; None where the journal is empty.

    Parameters
    ----------
    epoch
        One's own; without it that of the highest record.
    sinks
        Those of the job: what is still to be published for others was given up. Without it all are kept.

    Raises
    ------
    CorruptObject, StorageError
        The journal, or something that the newest checkpoint names, cannot be read, or a record is lost.
    """
    for _ in range(OBSERVATIONS_MAX):
        listed = list_journal(store)
        if not listed.numbers:
            return None
        try:
            return _observe(store, listed, epoch, sinks)
        except (ObjectNotFound, CorruptObject):
            if list_journal(store) == listed:
                raise
    raise StorageError(f"{store.url}: the journal changed {OBSERVATIONS_MAX} times while it was read; try again")


def plan(store: ObjectStore, observed: Observed) -> CleanupPlan:
    """What would be deleted. Lists; writes nothing."""
    return plan_cleanup(survey(store, observed.taken, observed.needed))


def manifest_objects(name: str, data: bytes) -> list[str]:
    """What a manifest refers to. Raises `CorruptObject`."""
    return [obj for table in decode_manifest(name, data).tables for obj in table.objects()]


def _observe(store: ObjectStore, listed: Listed, epoch: int | None, sinks: Collection[str] | None) -> Observed:
    numbers = listed.numbers
    # A takeover below other records never counted: only the highest number says which epoch lives.
    living = read_record(store, max(numbers)).epoch if epoch is None else epoch
    number, base = newest_checkpoint(numbers, lambda each: read_record(store, each))
    missing = rules.missing_record(numbers, listed.begun, number)
    if missing is not None:
        raise CorruptObject(f"{store.url}: {lost(missing, listed, number)}")
    if base is not None and sinks is not None:
        kept = {sink: groups for sink, groups in base.groups.items() if sink in sinks}
        base = msgspec.structs.replace(base, groups=kept)
    named = Named(store)
    needed = needed_objects(store, base, manifest_objects, named.add)
    for record in _expiring(store, [each for each in numbers if number is not None and each < number], living):
        with suppress(ObjectNotFound):  # it is gone meanwhile, and now what it names goes
            needed |= needed_objects(store, record, manifest_objects, named.add)
    return Observed(TakenOver(Epoch(living), number, base), frozenset(needed), named.at_targets)


def _expiring(store: ObjectStore, numbers: Sequence[int], living: int) -> Iterator[CheckpointRecord]:
    """Checkpoints of the living epoch that a newer one replaced and that are not deleted yet."""
    for number in numbers:
        with suppress(ObjectNotFound, CorruptObject):
            record = read_record(store, number)
            if isinstance(record, CheckpointRecord) and record.epoch == living:
                yield record
