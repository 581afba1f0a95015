"""What the journal's records say. Data only; the bytes are `codec`'s, the order is `fence`'s and `journal`'s."""

import msgspec

from holdfast.watermarks import SourceTime


class Takeover(msgspec.Struct, frozen=True, tag="takeover", tag_field="kind", forbid_unknown_fields=True):
    """A JobMaster took over. `epoch` is the record's own number; `nonce` tells it from any other JobMaster's."""

    epoch: int
    nonce: str


class GroupRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of committables of one sink that is not known to be published.

    `number` is that of the record that first held it, and the one it is published under however often later
    records carry it; `object` names the stored committables.
    """

    number: int
    object: str


class OperatorIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What new code is compared with at a restart: key columns, and each table's Arrow schema (IPC bytes)."""

    key_columns: tuple[str, ...]
    tables: dict[str, bytes]


class CheckpointRecord(msgspec.Struct, frozen=True, tag="checkpoint", tag_field="kind", forbid_unknown_fields=True):
    """A completed checkpoint: where every source stands, and what a restart reads.

    `nonce` is left empty by whoever makes the record; the journal fills it in.
    `offsets` and `source_objects` by source, `groups` by sink in the order of their numbers.
    """

    epoch: int
    checkpoint_id: int
    batch: int
    run: int
    batch_time_us: int
    offsets: dict[str, dict[str, int | float | str | bool | None]]
    source_objects: dict[str, list[str]]
    manifests: list[str]
    groups: dict[str, list[GroupRef]]
    operators: dict[str, OperatorIdentity]
    parallelism: int
    max_parallelism: int
    nonce: str = ""
    watermarks: dict[str, SourceTime] = {}
    """How far event time had come, by source and column."""
    settings: dict[str, str] = {}
    """Checkpoint settings that may change while a query runs, in words: what held when the record was written."""

    def objects(self) -> list[str]:
        """Names of all objects that this record names itself, without doubles, in order."""
        found = list(self.manifests)
        for chunks in self.source_objects.values():
            found += chunks
        for refs in self.groups.values():
            found += [ref.object for ref in refs]
        return list(dict.fromkeys(found))


Record = Takeover | CheckpointRecord
