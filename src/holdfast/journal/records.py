"""Data of the journal's records. `codec` encodes them; `fence` and `journal` write them in order."""

import msgspec

from holdfast.behind import Behind
from holdfast.formats.history import LostRows
from holdfast.ids import BatchNumber, CheckpointId, ClockReading, Epoch, JobId, JournalNumber, RunNumber
from holdfast.references import object_of
from holdfast.storage.routing import OtherStorages
from holdfast.watermarks import SourceTime


class Takeover(msgspec.Struct, frozen=True, tag="takeover", tag_field="kind", forbid_unknown_fields=True):
    """The record of a takeover by a JobMaster. `epoch` is the record's own number, `nonce` distinguishes it from those
    of other JobMasters, and `job` is the id of the job."""

    epoch: Epoch
    nonce: str
    job: JobId | None = None
    storages: OtherStorages | None = None
    """The storages of the epoch's objects. None: the job's own; written before records had it, or by no start."""


class GroupRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of a sink's committables that is not known to be published.

    `number` is the number of the first record that contained the group. The group is published under this number,
    however many later records contain it. `object` names the stored committables.
    """

    number: int
    object: str
    """A name, or a reference to a part of a gathered object (`holdfast.references`)."""


class OperatorIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's key columns and the Arrow schema of each of its tables (IPC bytes). A restart compares new code
    with them."""

    key_columns: tuple[str, ...]
    tables: dict[str, bytes]


class PartIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source, operator or sink as a start declared it. A restart compares those that the user did not name.

    `kind` is empty if the user named the part. `inputs` are the names of the sources and operators that it reads.
    `digest` is the digest of its complete description (`graph/declared_parts.py`); for an operator a digest of its
    settings follows after a hyphen, which records of earlier releases lack.
    """

    role: str
    kind: str
    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    digest: str


class CheckpointRecord(msgspec.Struct, frozen=True, tag="checkpoint", tag_field="kind", forbid_unknown_fields=True):
    """A completed checkpoint: the position of every source, and the objects that a restart reads.

    The journal fills in `nonce` and `number`. `offsets` and `source_objects` are by source; `groups` are by sink, in
    the order of their numbers.
    """

    epoch: Epoch
    checkpoint_id: CheckpointId
    batch: BatchNumber
    run: RunNumber
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
    """Progress of event time, by source and column."""
    settings: dict[str, str] = {}
    """Checkpoint settings that may change while a query runs, as text, with their values at the time of the record."""
    retains: list[int] = []
    """Numbers of the older checkpoint records that are kept besides this one. If such a record is missing, it has
    expired since."""
    started_from: int | str = 0
    """Number of the record, or id of the savepoint, to which a start last went back (`start_from`); 0 if no start ever
    did."""
    behind: Behind = {}
    """Splits that failed and have not caught up since, each with the record at which it got stuck."""
    parts: dict[str, PartIdentity] = {}
    """All sources, operators and sinks by name; empty in records before version 8."""
    given_up: list[str] = []
    """Names whose stored state was dropped by the start that wrote the record (`drop_state`)."""
    job: JobId | None = None
    """The job's id. None: written before records had it."""
    origins: list[JobId] = []
    """Ids of the jobs from whose savepoints this job began. Those jobs may have written objects that the record
    names."""
    number: JournalNumber | None = None
    """The record's own number. None: written before records had it."""
    clock: ClockReading | None = None
    """Reading of the elapsed clock at `batch_time_us`; None: unknown."""
    kept: dict[str, str | int | float | None] = {}
    """Updates of checkpoint settings that later starts apply as well; a trigger as its text."""
    older_manifests: list[str] = []
    """Manifests among `manifests` of an older checkpoint, since their TaskManagers were missing at this one."""
    losses: list[LostRows] = []
    """Rows that the job has finally lost between the previous checkpoint and this one."""

    def writers(self) -> frozenset[JobId]:
        """Return the jobs that may have written the objects in this record; empty if the record does not name any."""
        return frozenset() if self.job is None else frozenset([self.job, *self.origins])

    def objects(self) -> list[str]:
        """Return the names of all objects in this record, each once, in order."""
        found = list(self.manifests)
        for chunks in self.source_objects.values():
            found += chunks
        for refs in self.groups.values():
            found += [ref.object for ref in refs]
        return list(dict.fromkeys(map(object_of, found)))


Record = Takeover | CheckpointRecord
