"""Facts that every record of a job repeats, and records made from them and a checkpoint's own part."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from holdfast.behind import Behind, recorded
from holdfast.checkpoint.events import Group, Position, RecordAgain, StoreAndRecord
from holdfast.checkpoint.updates import in_words
from holdfast.formats.history import LostRows
from holdfast.functions.operator import OperatorSpec
from holdfast.graph.program import Program, SinkWatermark
from holdfast.ids import ClockReading, Epoch, JobId, JournalNumber
from holdfast.jobmaster.checkpoints.gathered import StoredObjects
from holdfast.journal.records import CheckpointRecord, GroupRef, OperatorIdentity, PartIdentity
from holdfast.state.changes import stored_schema
from holdfast.watermarks import END_US

NumberedRecord = tuple[JournalNumber, CheckpointRecord]
"""A record with its number."""
DIGEST_DIGITS = 16
"""Number of hexadecimal digits in the digest of a description. More digits make equal digests of different descriptions
rarer."""


@dataclass(frozen=True)
class JobFacts:
    """Facts fixed for a job's start."""

    job_id: JobId
    epoch: Epoch
    operators: dict[str, OperatorIdentity]
    parallelism: Callable[[], int]
    """Gives the number of subtasks of each operator in the layout that is deployed."""
    max_parallelism: int
    started_from: int | str = 0
    """Number of the record, or id of the savepoint, that a start last went back to."""
    sink_watermarks: Mapping[str, SinkWatermark] = field(default_factory=dict)
    parts: dict[str, PartIdentity] = field(default_factory=dict)
    given_up: tuple[str, ...] = ()
    """Names whose stored state this start dropped."""
    origins: tuple[JobId, ...] = ()
    """Ids of the jobs from whose savepoints this job began."""
    reading: Callable[[int], ClockReading | None] = lambda _: None
    """Function from a time of the job in microseconds to the elapsed clock's reading then."""

    losses: Callable[[StoreAndRecord, NumberedRecord | None], list[LostRows]] = lambda *_: []
    """A function from a record that will be written, and the record before it, to the rows that it declares as lost."""

    def watermark_us(self, sink: str, position: Position) -> int | None:
        """Return the time up to which a sink's rows are complete at a position; None if there is none yet.

        It is the watermark of the rows, unless splits that are behind hold it back.
        """
        declared = self.sink_watermarks.get(sink)
        keys = () if declared is None else declared.keys
        known = [position.watermarks[key].watermark_us for key in keys]
        known += [position.held_us[key] for key in keys if key in position.held_us]
        if declared is None or None in known:
            return None
        least_us = min(each for each in known if each is not None)
        return least_us if least_us == END_US else least_us - declared.delay_us

    def record(
        self,
        command: StoreAndRecord,
        stored: StoredObjects,
        number: JournalNumber,
        before: NumberedRecord | None = None,
    ) -> CheckpointRecord:
        """Make the record of a checkpoint, to be put at `number`, after the record `before`.

        `stored`: references to its new committables, and to the manifests that came with acknowledgements.
        """
        groups = _refs(command.carried)
        came_along = (stored.manifests[task_manager] for task_manager, _ in command.carried_parts)
        for sink, name in stored.committables.items():
            groups.setdefault(sink, []).append(GroupRef(number, name))
        return CheckpointRecord(
            epoch=self.epoch,
            checkpoint_id=command.checkpoint_id,
            batch=command.batch,
            run=command.run,
            batch_time_us=command.position.batch_time_us,
            offsets={source: dict(offsets) for source, offsets in command.position.offsets.items()},
            source_objects=dict(command.position.source_objects),
            manifests=[each or next(came_along) for each in command.manifests],
            groups={sink: refs for sink, refs in groups.items() if refs},
            operators=self.operators,
            parallelism=self.parallelism(),
            max_parallelism=self.max_parallelism,
            watermarks=dict(command.position.watermarks),
            settings=in_words(command.config),
            retains=list(command.retains),
            started_from=self.started_from,
            behind=_behind(command.position, number, before),
            parts=self.parts,
            given_up=list(self.given_up),
            job=self.job_id,
            origins=list(self.origins),
            clock=self.reading(command.position.batch_time_us),
            kept=dict(command.kept),
            older_manifests=list(command.older_manifests),
            losses=self.losses(command, before),
        )

    def again(self, record: CheckpointRecord, command: RecordAgain) -> CheckpointRecord:
        """Make a new record of the same checkpoint, which may be of an older epoch, with the settings in force now and
        the output that is not published yet."""
        return msgspec.structs.replace(
            record,
            epoch=self.epoch,
            job=self.job_id,
            checkpoint_id=command.checkpoint_id,
            groups=_refs(command.carried),
            nonce="",
            settings=in_words(command.config),
            retains=list(command.retains),
            kept=dict(command.kept),
        )


def _refs(carried: Mapping[str, list[Group]]) -> dict[str, list[GroupRef]]:
    return {sink: [GroupRef(each.number, each.object) for each in groups] for sink, groups in carried.items()}


def _behind(position: Position, number: JournalNumber, before: NumberedRecord | None) -> Behind:
    if before is None:
        return recorded(position.behind, position.offsets, number, number, {}, {})
    older = before[1]
    return recorded(position.behind, position.offsets, number, before[0], older.behind, older.offsets)


def identities(program: Program) -> dict[str, OperatorIdentity]:
    """Identities of this program's operators, as records store them."""
    return {
        name: OperatorIdentity(
            tuple(spec.declared_keys),
            {table: schema.serialize().to_pybytes() for table, schema in stored_schemas(spec).items()},
        )
        for name, spec in program.operators.items()
    }


def part_identities(program: Program) -> dict[str, PartIdentity]:
    """Identities of all sources, operators and sinks of this program, as records store them."""
    return {
        name: PartIdentity(
            part.role,
            part.kind,
            part.keys,
            part.inputs,
            "-".join(_digest(each) for each in (part.details, part.settings) if each),
        )
        for name, part in program.parts.items()
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:DIGEST_DIGITS]


def stored_schemas(spec: OperatorSpec) -> dict[str, pa.Schema]:
    """Schema of each table's rows as stored."""
    return {table: stored_schema(schema.keys, schema.values) for table, schema in spec.table_schemas().items()}
