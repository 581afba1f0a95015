"""Checks of the objects that a record names. Pure.

Restarts read the objects that a record names, savepoints copy them, and clean-up deletes them when no record names them
any more. A user who may write to a storage can forge a record. So each name must be one that the job's own code gives
to an object of that kind, in that field and no later than the record. Then a forged record leads to no other object of
the storage.
"""

from collections.abc import Iterable, Iterator

from holdfast.errors import CorruptObject
from holdfast.ids import Epoch, JournalNumber
from holdfast.journal.records import CheckpointRecord, GroupRef
from holdfast.storage import names
from holdfast.storage.names import (
    ChangelogName,
    CommittablesName,
    GatheredName,
    ManifestName,
    SegmentName,
    SharedName,
    SourceName,
)

COPIED = GatheredName | ManifestName | ChangelogName | SharedName | SourceName | SegmentName
"""Kinds of objects that a savepoint copies."""


def check_objects(name: str, record: CheckpointRecord, number: JournalNumber | None) -> None:
    """Check all names of objects in the record with the number `number`, stored as the object `name`. Raises
    `CorruptObject`."""
    strange = [
        *_strange_manifests(record),
        *(each for source, objects in record.source_objects.items() for each in _strange(source, objects, record)),
        *(ref.object for sink, refs in record.groups.items() for ref in refs if _is_strange(sink, ref, record, number)),
    ]
    if strange:
        raise CorruptObject(
            f"{name}: names the object {strange[0]!r}, which no checkpoint of epoch {record.epoch} has in that place; "
            "restore the record from a copy"
        )


def check_copies(name: str, copies: Iterable[str], epoch: Epoch) -> None:
    """Check the names of a savepoint's copies, since they are written to a job's storage. Raises `CorruptObject`."""
    for each in copies:
        parsed = names.parse(each)
        if not isinstance(parsed, COPIED) or parsed.epoch > epoch:
            raise CorruptObject(
                f"{name}: lists {each!r} among its copies, expected manifests, state and objects of sources of epochs "
                f"up to {epoch}: nothing else is copied into a job's storage"
            )


def _strange_manifests(record: CheckpointRecord) -> list[str]:
    """Return all manifests unless they belong to one single checkpoint, which may be older than the record.

    Manifests in `older_manifests` must be older than the others, and of other TaskManagers.
    """
    parsed = {each: names.meaning(each) for each in record.manifests}
    there = {each: name for each, name in parsed.items() if isinstance(name, ManifestName)}
    stale = {each: name for each, name in there.items() if each in record.older_manifests}
    found = {(name.epoch, name.checkpoint) for each, name in there.items() if each not in stale}
    fit = len(there) == len(record.manifests) and len(stale) == len(record.older_manifests)
    one_each = not stale or len({name.task_manager for name in there.values()}) == len(there)
    places = [(name.epoch, name.checkpoint) for name in there.values()]
    is_older = all(place <= (record.epoch, record.checkpoint_id) for place in places)
    are_stale = all((name.epoch, name.checkpoint) < place for name in stale.values() for place in found)
    return [] if fit and one_each and is_older and are_stale and len(found) <= 1 else record.manifests


def _strange(source: str, objects: Iterable[str], record: CheckpointRecord) -> Iterator[str]:
    for each in objects:
        parsed = names.parse(each)
        is_own = isinstance(parsed, SourceName) or (isinstance(parsed, SegmentName) and parsed.source == source)
        if not is_own or names.epoch_of(each) not in range(record.epoch + 1):
            yield each


def _is_strange(sink: str, ref: GroupRef, record: CheckpointRecord, number: JournalNumber | None) -> bool:
    """True if the object does not belong to the sink, or to no epoch that could store it under the group's number."""
    parsed = names.meaning(ref.object)
    if not isinstance(parsed, CommittablesName) or parsed.sink != sink:
        return True
    is_later = parsed.epoch > record.epoch or parsed.epoch >= ref.number
    return is_later or (number is not None and ref.number > number)
