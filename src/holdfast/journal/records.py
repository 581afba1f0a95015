"""Data of the journal's records. `codec` turns them into bytes; `fence` and `journal` order them."""

import msgspec

from holdfast.behind import Behind
from holdfast.formats.history import LostRows
from holdfast.ids import BatchNumber, CheckpointId, ClockReading, Epoch, JobId, JournalNumber, RunNumber
from holdfast.references import object_of
from holdfast.watermarks import SourceTime


class Takeover(msgspec.Struct, frozen=True, tag="takeover", tag_field="kind", forbid_unknown_fields=True):
    """Record of a takeover by a JobMaster. `epoch` is the record's own number; `nonce` tells it from any other
    JobMaster's, `job` is the id of the job."""

    epoch: Epoch
    nonce: str
    job: JobId | None = None


class GroupRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of a sink's committables that is not known to be published.

    `number` is the number of the first record that held the group. The group is published under it, however many later
    records carry the group. `object` names the stored committables.
    """

    number: int
    object: str
    """Name, or reference in a gathered object (`holdfast.references`)."""


class OperatorIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operator's key columns and each table's Arrow schema (IPC bytes); a restart compares new code with them."""

    key_columns: tuple[str, ...]
    tables: dict[str, bytes]


class PartIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source, operator or sink as a start declared it; a restart compares those that have no name of their own.

    `kind` is empty if the user named it. `inputs` are names of the sources and operators that it reads. `digest` is of
    its whole description (`graph/declared_parts.py`), for an operator with a second digest, of its settings, after a
    hyphen; records of earlier releases lack it.
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
    """Checkpoint settings that may change while a query runs, as text; values at the time of the record."""
    retains: list[int] = []
    """Numbers of the older checkpoint records that are kept beside this record. If a number's record is gone, it has
    expired since."""
    started_from: int | str = 0
    """Number of the record, or id of the savepoint, that a start last went back to (`start_from`); 0 if no start ever
    did."""
    behind: Behind = {}
    """Splits that failed and have not caught up since; each with the record since which it stands."""
    parts: dict[str, PartIdentity] = {}
    """All sources, operators and sinks by name; empty in records before version 8."""
    given_up: list[str] = []
    """Names whose stored state the start that wrote the record gave up (`drop_state`)."""
    job: JobId | None = None
    """The job's id. None: written before records had it."""
    origins: list[JobId] = []
    """Ids of the jobs from whose savepoints this job began: objects that it names may be theirs."""
    number: JournalNumber | None = None
    """The record's own number. None: written before records had it."""
    clock: ClockReading | None = None
    """Reading of the elapsed clock at `batch_time_us`; None: unknown."""
    kept: dict[str, str | int | float | None] = {}
    """Updates of checkpoint settings that later starts apply as well; a trigger as its text."""
    older_manifests: list[str] = []
    """Manifests among `manifests` that are of an older checkpoint: their TaskManagers were missing at this one."""
    losses: list[LostRows] = []
    """Rows that the job has lost for good by this checkpoint, and not by an older checkpoint."""

    def writers(self) -> frozenset[JobId]:
        """The jobs that may have written the objects in this record; empty if it does not say so."""
        return frozenset() if self.job is None else frozenset([self.job, *self.origins])

    def objects(self) -> list[str]:
        """Names of all objects in this record, without doubles, in order."""
        found = list(self.manifests)
        for chunks in self.source_objects.values():
            found += chunks
        for refs in self.groups.values():
            found += [ref.object for ref in refs]
        return list(dict.fromkeys(map(object_of, found)))


Record = Takeover | CheckpointRecord
