"""The records that a start finds: the objects that they name become held and owned, and their groups are queued as
unpublished or published.

Pure; the coordinator calls it once, at `Started`.
"""

from holdfast.checkpoint.events import BaseRecord, Group
from holdfast.checkpoint.publication import GroupKey, Publication
from holdfast.checkpoint.records import RetainedRecords
from holdfast.checkpoint.registry import GroupHolder, ObjectRegistry, RecordHolder
from holdfast.references import object_of


def take_in(base: BaseRecord, records: RetainedRecords, registry: ObjectRegistry, publication: Publication) -> None:
    """Register the base and the older retained records.

    Groups of the older records that the base lacks are published: each record carries on all unpublished groups.
    """
    older: dict[GroupKey, Group] = {}
    for record in base.older:
        older |= _hold(record, records, registry)
    unpublished = _hold(base, records, registry)
    for key, group in {**older, **unpublished}.items():
        registry.hold(GroupHolder(*key), [object_of(group.object)])
        if key in unpublished:
            publication.add(key[0], group)
        else:
            publication.add_published(key[0], group)


def _hold(record: BaseRecord, records: RetainedRecords, registry: ObjectRegistry) -> dict[GroupKey, Group]:
    """Hold the objects that a record names; return its groups, by sink and number."""
    groups = {(sink, group.number): group for sink, each in sorted(record.groups.items()) for group in each}
    names = record.objects | {object_of(group.object) for group in groups.values()}
    registry.hold(RecordHolder(record.number), names)
    registry.acknowledge(names)
    records.written(record.number, frozenset(groups), record.written_s)
    return groups
