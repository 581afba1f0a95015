"""Takeover of a job's storage. Afterwards every older JobMaster finds the number of its next record taken.

    list ──► read the base ──► put own takeover at highest + 1 ──► list until it is shown ──► base there, nothing above:
      ▲            │ gone            │ taken                          │ else                        it counts
      └────────────┴─────────────────┴────────────────────────────────┘  start over, having done nothing else

Listings may lag behind, but reads by name may not. Records that follow those in a listing are read by name, since a
living JobMaster keeps each of its records for a while after the next one. A listing that shows the JobMaster's own
takeover shows everything that was put before it. Whether there is a record above it, or the mark `journal/begun`, is
found by name. `journal.Journal` owns the records that follow.
"""

import itertools
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

import msgspec

from holdfast.errors import CorruptObject, ObjectNotFound, StorageError
from holdfast.failpoints import hit
from holdfast.ids import Epoch, JobId, JournalNumber
from holdfast.journal import rules
from holdfast.journal.codec import StoredBegun, decode_record, encode_begun, encode_record
from holdfast.journal.patience import ATTEMPTS_MAX, Patience, back_off
from holdfast.journal.records import CheckpointRecord, Record, Takeover
from holdfast.storage import names
from holdfast.storage.routing import OtherStorages
from holdfast.storage.store import ObjectStore

LOST_SEEN = 7
"""Number of consecutive listings that must show a lost record before it is reported. Higher values wait longer (three
to six seconds at 7) and mistake a change during a listing, or a listing that lags, for a loss less often."""


FOLLOWED_MAX = 1_000
"""Most records above those of a listing that are read by name. If there are more, the put finds its number taken."""


class TakenOver(NamedTuple):
    """The new epoch, and the checkpoint from which the job continues (None if there is none)."""

    epoch: Epoch
    base_number: JournalNumber | None
    base: CheckpointRecord | None
    older: tuple[tuple[JournalNumber, CheckpointRecord], ...] = ()
    """Retained checkpoints older than the base, oldest first."""


def take_over(
    store: ObjectStore,
    *,
    job: JobId | None = None,
    storages: OtherStorages | None = None,
    attempts_max: int = ATTEMPTS_MAX,
    wait: rules.Wait = back_off,
) -> TakenOver:
    """Fence every earlier JobMaster. `storages`: where the objects of the new epoch will lie.

    The whole journal is read before anything is written, so that a journal which this version cannot read stays
    unchanged.

    Raises
    ------
    CorruptObject
        A record cannot be read, or the newest is lost; nothing was written.
    StorageError
        The store did not answer `attempts_max` times, or other JobMasters took over as often. A takeover that was sent
        may still be written: it stops the previous JobMaster, and the next JobMaster starts as usual.
    """
    patience = Patience(attempts_max, wait)
    while True:
        try:
            taken = _attempt(store, Takeover(Epoch(0), "", job, storages), patience)
        except ObjectNotFound as error:
            patience.spend(f"{store.url}: the journal kept changing while it was read", error)
            continue
        if taken is not None:
            return taken
        patience.spend(f"{store.url}: could not take over, others did meanwhile", None)


def take_over_from(
    store: ObjectStore,
    leader: Epoch,
    *,
    job: JobId | None = None,
    storages: OtherStorages | None = None,
    attempts_max: int = ATTEMPTS_MAX,
) -> TakenOver | None:
    """Fence the JobMaster of the epoch `leader` (0: there was none) in a single attempt.

    Returns None if another epoch is the newest, or if another record was written meanwhile. The caller then looks for
    the leader again. Raises the errors of `take_over`.
    """
    try:
        return _attempt(store, Takeover(Epoch(0), "", job, storages), Patience(attempts_max, back_off), leader)
    except ObjectNotFound:
        return None


def newest_epoch(store: ObjectStore) -> Epoch:
    """Return the epoch that took over last; 0 if none has. Raises `CorruptObject`, `StorageError`."""

    def read(number: JournalNumber) -> Record | None:
        try:
            return read_record(store, number)
        except ObjectNotFound:
            return None

    listed, number, base = find_base(lambda: list_journal(store), read, store.url)
    return rules.newest_epoch(listed.numbers, number, None if base is None else base.epoch)


class Listed(NamedTuple):
    """The numbers of the records in a listing of the journal, and whether a checkpoint was ever recorded."""

    numbers: list[JournalNumber]
    begun: bool


def list_journal(store: ObjectStore) -> Listed:
    """List the journal's records. Unknown names in the folder are ignored."""
    parsed = [names.parse(info.name) for info in store.list(names.JOURNAL)]
    numbers = [name.number for name in parsed if isinstance(name, names.JournalName)]
    begun = any(isinstance(name, names.BegunName) for name in parsed) or exists(store, names.begun())
    return Listed(numbers, begun)


def exists(store: ObjectStore, name: str) -> bool:
    """Return whether an object exists, by reading it, since a listing may lag behind. Raises `StorageError`."""
    try:
        store.get(name)
    except ObjectNotFound:
        return False
    return True


def journal_numbers(store: ObjectStore) -> list[JournalNumber]:
    """Return the numbers of the records in a listing of the journal."""
    return list_journal(store).numbers


def read_record(store: ObjectStore, number: JournalNumber) -> Record:
    """Read the record with that number. Raises `ObjectNotFound`, `CorruptObject`."""
    name = names.journal(number)
    return decode_record(name, store.get(name))


def read_retained(store: ObjectStore, base: CheckpointRecord | None) -> dict[JournalNumber, CheckpointRecord]:
    """Read the other checkpoint records that a base retains, oldest first. Records that no longer exist are left
    out."""
    found: dict[JournalNumber, CheckpointRecord] = {}
    for number in map(JournalNumber, sorted(base.retains if base is not None else ())):
        with suppress(ObjectNotFound):
            record = read_record(store, number)
            if isinstance(record, CheckpointRecord):
                found[number] = record
    return found


def newest_checkpoint(
    numbers: Collection[JournalNumber], read: Callable[[JournalNumber], Record | None]
) -> tuple[JournalNumber, CheckpointRecord] | tuple[None, None]:
    """Return the newest checkpoint record among these numbers. `read` may return None for a missing record."""
    for number in rules.base_search_order(numbers, rules.number_for_put(numbers)):
        record = read(number)
        if isinstance(record, CheckpointRecord):
            return number, record
    return None, None


def find_base(
    list_: Callable[[], Listed], read: Callable[[JournalNumber], Record | None], url: str, wait: rules.Wait = back_off
) -> tuple[Listed, JournalNumber | None, CheckpointRecord | None]:
    """List the journal, including the records that follow the listed ones, and find its newest checkpoint.

    A JobMaster that appends and expires records during a listing can make a record seem lost. A loss is therefore
    reported only after `LOST_SEEN` listings in a row show it.

    Raises
    ------
    CorruptObject
        The newest checkpoint record is lost; its message says what to do.
    """
    for attempt in itertools.count(1):
        listed = _followed(list_(), read)
        number, base = newest_checkpoint(listed.numbers, read)
        missing = rules.missing_record(listed.numbers, listed.begun, number)
        if missing is None:
            return listed, number, base
        if attempt == LOST_SEEN:
            raise CorruptObject(f"{url}: {lost(missing, listed, number)}")
        wait(attempt)
    raise AssertionError("unreachable")


def _followed(listed: Listed, read: Callable[[JournalNumber], Record | None]) -> Listed:
    numbers = list(listed.numbers)
    with suppress(ObjectNotFound):
        while len(numbers) < len(listed.numbers) + FOLLOWED_MAX and read(rules.number_for_put(numbers)) is not None:
            numbers.append(rules.number_for_put(numbers))
    return listed._replace(numbers=numbers)


def lost(missing: JournalNumber, listed: Listed, newest: JournalNumber | None) -> str:
    """Describe a lost record and say how to recover from the loss."""
    above = [number for number in listed.numbers if number > missing]
    which = names.journal(missing) if above or newest is not None else f"{names.journal(missing)}, or a later record,"
    return (
        f"{which} is missing: the newest checkpoint record was lost or deleted. "
        f"{'No checkpoint record is left' if newest is None else f'{names.journal(newest)} is older'}; "
        "a start from there would process rows a second time and publish them again. Restore the object from a backup "
        "or from the bucket's older versions, and start again; or start on an empty storage, with empty targets. "
        "Nothing was changed; until then do not delete anything from the storage, which still holds the state. (Where "
        "another driver of this job still runs and listings of the store lag, records may go before they are shown: "
        "stop that driver first)"
    )


def mark_begun(store: ObjectStore, number: JournalNumber, patience: Patience) -> None:
    """Write the mark that a checkpoint was recorded. It distinguishes a lost record from a job without checkpoints.

    Raises `StorageError` if the outcome is not known; the caller may try again.
    """
    name, data = names.begun(), encode_begun(StoredBegun(number))
    while True:
        cause: StorageError
        try:
            store.create(name, data)
            return
        except StorageError as error:
            cause = error
        try:
            store.get(name)
            return
        except StorageError as error:
            cause = cause if isinstance(error, ObjectNotFound) else error
        patience.spend(f"{store.url}: it is not known whether {name} was written", cause)


def settle(store: ObjectStore, number: JournalNumber, own: Record, patience: Patience) -> rules.PutOutcome:
    """Put a record at a number and find out its outcome: `WRITTEN` or `TAKEN`.

    Raises `StorageError` if the outcome is not known; the caller may try again with the same record.
    """
    numbered = own if isinstance(own, Takeover) else msgspec.structs.replace(own, number=number)
    name, data = names.journal(number), encode_record(numbered)
    while True:
        cause: StorageError
        try:
            store.create(name, data)
            return rules.PutOutcome.WRITTEN
        except StorageError as error:
            cause = error
        try:
            found = _read_back(store, number, own)
            if found is not rules.PutOutcome.ABSENT:
                return found
        except StorageError as error:
            cause = error
        patience.spend(f"{store.url}: it is not known whether {name} was written", cause)


def _read_back(store: ObjectStore, number: JournalNumber, own: Record) -> rules.PutOutcome:
    try:
        return rules.outcome(own, read_record(store, number))
    except ObjectNotFound:
        return rules.outcome(own, None)
    except CorruptObject:
        # Objects are written atomically, so the caller did not write an unreadable record: a newer version or another
        # program did.
        return rules.PutOutcome.TAKEN


def _attempt(store: ObjectStore, wanted: Takeover, patience: Patience, leader: Epoch | None = None) -> TakenOver | None:
    """Put the wanted takeover with a number and a nonce of its own; None if it does not count."""
    listed, base_number, base = find_base(
        lambda: _listed(store, patience), lambda each: _read_patiently(store, each, patience), store.url, patience.wait
    )
    number = rules.number_for_put(listed.numbers)
    newest = rules.newest_epoch(listed.numbers, base_number, None if base is None else base.epoch)
    if leader is not None and leader != newest:
        return None
    hit("journal.takeover.listed")
    own = msgspec.structs.replace(wanted, epoch=Epoch(number), nonce=uuid4().hex)
    if settle(store, number, own, patience) is rules.PutOutcome.TAKEN:
        return None
    hit("journal.takeover.put")
    after = _listed(store, patience)
    while number not in after.numbers:
        patience.spend(f"{store.url}: its listings do not show {names.journal(number)}, which is there: they lag", None)
        after = _listed(store, patience)
    if not rules.takeover_counts(number, base_number, after.numbers, after.begun):
        return None
    if exists(store, names.journal(JournalNumber(number + 1))):
        return None
    if base_number is not None and not listed.begun:
        mark_begun(store, base_number, patience)
    return TakenOver(Epoch(number), base_number, base)


def _listed(store: ObjectStore, patience: Patience) -> Listed:
    while True:
        try:
            return list_journal(store)
        except StorageError as error:
            patience.spend(f"{store.url}: the journal could not be listed", error)


def _read_patiently(store: ObjectStore, number: JournalNumber, patience: Patience) -> Record:
    while True:
        try:
            return read_record(store, number)
        except ObjectNotFound:
            raise
        except StorageError as error:
            patience.spend(f"{store.url}: {names.journal(number)} could not be read", error)
