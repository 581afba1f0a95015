"""The checkpoints that a start found, as facts for the coordinator: each record with all objects that it names."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from holdfast.checkpoint.events import BaseRecord, Group
from holdfast.checkpoint.positions import least_watermark
from holdfast.errors import ObjectNotFound
from holdfast.formats.handles import Manifest
from holdfast.formats.manifests import load_manifests
from holdfast.ids import JournalNumber
from holdfast.journal.fence import TakenOver
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger
from holdfast.references import object_of
from holdfast.storage.store import ObjectStore

log = logger(__name__)


Load = Callable[[Sequence[str], Collection[str]], list[Manifest]]
"""Function that loads the manifests of some references; jobs with the given ids may have written them."""


def found_records(store: ObjectStore, taken: TakenOver, load_base: Load) -> BaseRecord | None:
    """Read the objects that the base and the older retained checkpoints name. None if there is no base."""
    if taken.base is None or taken.base_number is None:
        return None
    older = tuple(_older(partial(load_manifests, store), taken))
    return _found(load_base, taken.base_number, taken.base, older)


def records_of(taken: TakenOver) -> dict[JournalNumber, CheckpointRecord]:
    """The base and the older retained records, by number."""
    base = {} if taken.base is None or taken.base_number is None else {taken.base_number: taken.base}
    return dict(taken.older) | base


def _older(load: Load, taken: TakenOver) -> Iterator[BaseRecord]:
    for number, record in taken.older:
        try:
            yield _found(load, number, record)
        except ObjectNotFound as error:
            log.warning("checkpoint %d is not retained any more: an object of it is gone: %s", number, error)


def _found(
    load: Load, number: JournalNumber, record: CheckpointRecord, older: tuple[BaseRecord, ...] = ()
) -> BaseRecord:
    groups = {
        sink: [Group(JournalNumber(ref.number), ref.object) for ref in refs] for sink, refs in record.groups.items()
    }
    watermark_us = least_watermark(record.watermarks)
    objects, written_s = objects_of(load, record), record.batch_time_us / 1e6
    return BaseRecord(number, objects, groups, written_s, older, watermark_us, record.kept)


def objects_of(load: Load, record: CheckpointRecord) -> frozenset[str]:
    """Names of all objects that a restart reads: manifests, the objects that they name, and objects of sources."""
    objects = {object_of(each) for each in record.manifests}
    objects.update(name for found in record.source_objects.values() for name in found)
    for manifest in load(record.manifests, record.writers()):
        for table in manifest.tables:
            objects.update(table.objects())
    return frozenset(objects)
