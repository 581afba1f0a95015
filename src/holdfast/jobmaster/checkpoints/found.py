"""The checkpoints that a start found, as facts for the coordinator: each with all objects that it names."""

from collections.abc import Iterator

from holdfast.checkpoint.events import BaseRecord, Group
from holdfast.checkpoint.positions import least_watermark
from holdfast.errors import ObjectNotFound
from holdfast.formats.manifests import load_manifests
from holdfast.ids import JournalNumber
from holdfast.journal.fence import TakenOver
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger
from holdfast.references import object_of
from holdfast.storage.store import ObjectStore

log = logger(__name__)


def found_records(store: ObjectStore, taken: TakenOver) -> BaseRecord | None:
    """Read the objects that the base and the older retained checkpoints name. None if there is no base."""
    if taken.base is None or taken.base_number is None:
        return None
    older = tuple(_older(store, taken))
    return _found(store, taken.base_number, taken.base, older)


def records_of(taken: TakenOver) -> dict[JournalNumber, CheckpointRecord]:
    """The base and the older retained records, by number."""
    base = {} if taken.base is None or taken.base_number is None else {taken.base_number: taken.base}
    return dict(taken.older) | base


def _older(store: ObjectStore, taken: TakenOver) -> Iterator[BaseRecord]:
    for number, record in taken.older:
        try:
            yield _found(store, number, record)
        except ObjectNotFound as error:
            log.warning("checkpoint %d is not retained any more: an object of it is gone: %s", number, error)


def _found(
    store: ObjectStore, number: JournalNumber, record: CheckpointRecord, older: tuple[BaseRecord, ...] = ()
) -> BaseRecord:
    groups = {
        sink: [Group(JournalNumber(ref.number), ref.object) for ref in refs] for sink, refs in record.groups.items()
    }
    watermark_us = least_watermark(record.watermarks)
    objects, written_s = objects_of(store, record), record.batch_time_us / 1e6
    return BaseRecord(number, objects, groups, written_s, older, watermark_us, record.kept)


def objects_of(store: ObjectStore, record: CheckpointRecord) -> frozenset[str]:
    """Names of all objects that a restart reads: manifests, the objects that they name, and objects of sources."""
    objects = {object_of(each) for each in record.manifests}
    objects.update(name for found in record.source_objects.values() for name in found)
    for manifest in load_manifests(store, record.manifests, record.writers()):
        for table in manifest.tables:
            objects.update(table.objects())
    return frozenset(objects)
