"""Taking over a job's storage: from then on every older JobMaster finds its next number taken.

    list ──► read the base ──► put own takeover at highest + 1 ──► list again ──► nothing above: it counts
      ▲            │ gone            │ taken                          │ something above
      └────────────┴─────────────────┴────────────────────────────────┘  start over, having done nothing else

Owns nothing after it returns: the records that follow are `journal.Journal`'s.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple
from uuid import uuid4

from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.failpoints import hit
from holdfast.ids import Epoch, JournalNumber
from holdfast.journal import rules
from holdfast.journal.codec import decode_record, encode_record
from holdfast.journal.patience import ATTEMPTS_MAX, Patience, back_off
from holdfast.journal.records import CheckpointRecord, Record, Takeover
from holdfast.storage import names
from holdfast.storage.store import ObjectStore


class TakenOver(NamedTuple):
    """The new epoch, and the newest checkpoint before it (None where there is none)."""

    epoch: Epoch
    base_number: JournalNumber | None
    base: CheckpointRecord | None


def take_over(store: ObjectStore, *, attempts_max: int = ATTEMPTS_MAX, wait: rules.Wait = back_off) -> TakenOver:
    """Fence every JobMaster before this one.

    All that exists in the journal is read before anything is written, so that a journal this version cannot
    read stays as it is.

    Raises
    ------
    CorruptObject
        A record cannot be read; nothing was written.
    StorageError
        The store did not answer, or others kept taking over, `attempts_max` times. A takeover that was
        sent may still land: that stops the JobMaster before it, and the next one starts as usual.
    """
    patience = Patience(attempts_max, wait)
    while True:
        try:
            taken = _attempt(store, patience)
        except ObjectNotFound as error:
            patience.spend(f"{store.url}: the journal kept changing while it was read", error)
            continue
        if taken is not None:
            return taken
        patience.spend(f"{store.url}: could not take over, others did meanwhile", None)


def journal_numbers(store: ObjectStore) -> list[int]:
    """The numbers that a listing shows. Unknown names in the folder are passed over."""
    parsed = (names.parse(info.name) for info in store.list(names.JOURNAL))
    return [name.number for name in parsed if isinstance(name, names.JournalName)]


def read_record(store: ObjectStore, number: int) -> Record:
    """Raises `ObjectNotFound`, `CorruptObject`."""
    name = names.journal(number)
    return decode_record(name, store.get(name))


def newest_checkpoint(
    numbers: Collection[int], read: Callable[[int], Record | None]
) -> tuple[JournalNumber, CheckpointRecord] | tuple[None, None]:
    """The newest record of these that is a checkpoint's; `read` says None of one that is gone, where that may be."""
    for number in rules.base_search_order(numbers, rules.number_for_put(numbers)):
        record = read(number)
        if isinstance(record, CheckpointRecord):
            return JournalNumber(number), record
    return None, None


def settle(store: ObjectStore, number: int, own: Record, patience: Patience) -> rules.Outcome:
    """Put a record at a number, and find out what became of it: `WRITTEN` or `TAKEN`.

    Raises `StorageError` while it is not known; calling again goes on with the same record.
    """
    name, data = names.journal(number), encode_record(own)
    while True:
        cause: StorageError
        try:
            store.create(name, data)
            return rules.Outcome.WRITTEN
        except StorageError as error:
            cause = error
        try:
            found = _read_back(store, number, own)
            if found is not rules.Outcome.ABSENT:
                return found
        except StorageError as error:
            cause = error
        patience.spend(f"{store.url}: it is not known whether {name} was written", cause)


def _read_back(store: ObjectStore, number: int, own: Record) -> rules.Outcome:
    try:
        return rules.outcome(own, read_record(store, number))
    except ObjectNotFound:
        return rules.outcome(own, None)
    except CorruptObject:
        # Whole-object writes are atomic, so what cannot be read is not one's own: a newer version's, or foreign.
        return rules.Outcome.TAKEN


def _attempt(store: ObjectStore, patience: Patience) -> TakenOver | None:
    before = _listed(store, patience)
    base_number, base = newest_checkpoint(before, lambda each: _read_patiently(store, each, patience))
    number = rules.number_for_put(before)
    hit("journal.takeover.listed")
    if settle(store, number, Takeover(number, uuid4().hex), patience) is rules.Outcome.TAKEN:
        return None
    hit("journal.takeover.put")
    if not rules.takeover_counts(number, _listed(store, patience)):
        return None
    return TakenOver(Epoch(number), base_number, base)


def _listed(store: ObjectStore, patience: Patience) -> list[int]:
    while True:
        try:
            return journal_numbers(store)
        except StorageError as error:
            patience.spend(f"{store.url}: the journal could not be listed", error)


def _read_patiently(store: ObjectStore, number: int, patience: Patience) -> Record:
    while True:
        try:
            return read_record(store, number)
        except ObjectNotFound:
            raise
        except StorageError as error:
            patience.spend(f"{store.url}: {names.journal(number)} could not be read", error)
