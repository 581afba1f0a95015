"""The encoding of the journal's objects: a frame (`storage/framing.py`) around msgpack maps with the fields' names.

    magic  what                                  payload
    HFJB   job                                   StoredJob
    HFJR   journal/<n>                           Takeover | CheckpointRecord, tagged by `kind`
    HFJM   journal/begun                         StoredBegun
    HFCM   part of gathered/…, or the object
           manifests/<epoch>/<checkpoint>/sink-… StoredCommittables
    HFSP   savepoint                             StoredSavepoint
    HFOW   owner                                 StoredOwner

A reader refuses an unknown version, an unknown field, a damaged object, and an object whose content does not fit its
name, with a `CorruptObject` that names the object. Stored data is never unpickled.
"""

from typing import TypeVar

import msgspec

from holdfast.errors import CorruptObject
from holdfast.ids import CheckpointId, Epoch, JobId, SavepointId
from holdfast.journal.named_objects import check_copies, check_objects
from holdfast.journal.records import CheckpointRecord, Record, Takeover
from holdfast.storage import names
from holdfast.storage.copying import CopiedObject
from holdfast.storage.framing import frame, unframe
from holdfast.storage.reading import decode

JOB_MAGIC, JOB_VERSION = b"HFJB", 1
RECORD_MAGIC, RECORD_VERSION, RECORD_VERSION_MIN = b"HFJR", 13, 7
BEGUN_MAGIC, BEGUN_VERSION = b"HFJM", 1
COMMITTABLES_MAGIC, COMMITTABLES_VERSION, COMMITTABLES_VERSION_MIN = b"HFCM", 3, 2
SAVEPOINT_MAGIC, SAVEPOINT_VERSION, SAVEPOINT_VERSION_MIN = b"HFSP", 7, 2
OWNER_MAGIC, OWNER_VERSION = b"HFOW", 1

T = TypeVar("T")


class StoredJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Values that never change in a job's storage. `layout_version` is the version of the complete storage's layout."""

    job_id: JobId
    layout_version: int
    max_parallelism: int
    name: str = ""
    """The user's name for the job. A job with a different name is refused, so that it cannot take the storage over."""


class StoredBegun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mark that a checkpoint was recorded. A journal with the mark but without a checkpoint record has lost it.

    `record` is the number of a checkpoint record that was in the journal then. It is for people: readers look only at
    the mark's presence.
    """

    record: int


class StoredOwner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mark that a storage holds objects of a job whose own storage lies elsewhere, at the URL `storage`."""

    job: JobId
    storage: str


class StoredCommittables(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A group of a sink's committables, in the order of batches and units. Each committable is encoded by the sink.

    `layout`: the settings with which to publish the group, encoded by the sink. `watermark_us`: the watermark of the
    group's last batch, for sinks whose rows have a watermark.
    """

    sink: str
    committables: list[bytes]
    layout: bytes
    watermark_us: int | None = None
    job: JobId | None = None
    """The job's id. The id and the numbers of the checkpoint are None in objects of older versions."""
    epoch: Epoch | None = None
    checkpoint: CheckpointId | None = None


class StoredSavepoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint that was copied with all objects that a restart reads, so that the folder can be moved.

    `storage` is the URL from which it was copied, for people. `record` holds no groups of output.
    """

    id: SavepointId
    job: StoredJob
    storage: str
    number: int
    record: CheckpointRecord
    objects: list[CopiedObject]


def encode_record(record: Record) -> bytes:
    return frame(RECORD_MAGIC, RECORD_VERSION, msgspec.msgpack.encode(record, order="deterministic"))


def decode_record(name: str, data: bytes) -> Record:
    record = _decode(name, unframe(name, data, RECORD_MAGIC, RECORD_VERSION, RECORD_VERSION_MIN), _RECORD)
    parsed = names.parse(name)
    number = record.epoch if isinstance(record, Takeover) else record.number
    if isinstance(parsed, names.JournalName) and number is not None:
        names.check_same(name, names.journal, number)
    if isinstance(parsed, names.JournalName) and isinstance(record, CheckpointRecord):
        check_objects(name, record, parsed.number)
    return record


def encode_job(job: StoredJob) -> bytes:
    return frame(JOB_MAGIC, JOB_VERSION, msgspec.msgpack.encode(job, order="deterministic"))


def decode_job(name: str, data: bytes) -> StoredJob:
    payload = unframe(name, data, JOB_MAGIC, JOB_VERSION)
    return decode(name, payload, _JOB, "the payload does not fit its format version, or its job id is no job id")


def encode_begun(begun: StoredBegun) -> bytes:
    return frame(BEGUN_MAGIC, BEGUN_VERSION, msgspec.msgpack.encode(begun, order="deterministic"))


def decode_begun(name: str, data: bytes) -> StoredBegun:
    return _decode(name, unframe(name, data, BEGUN_MAGIC, BEGUN_VERSION), _BEGUN)


def encode_owner(owner: StoredOwner) -> bytes:
    return frame(OWNER_MAGIC, OWNER_VERSION, msgspec.msgpack.encode(owner, order="deterministic"))


def decode_owner(name: str, data: bytes) -> StoredOwner:
    return _decode(name, unframe(name, data, OWNER_MAGIC, OWNER_VERSION), _OWNER)


def encode_committables(
    sink: str,
    committables: list[bytes],
    layout: bytes = b"",
    watermark_us: int | None = None,
    job: JobId | None = None,
    epoch: Epoch | None = None,
    checkpoint: CheckpointId | None = None,
) -> bytes:
    stored = StoredCommittables(sink, committables, layout, watermark_us, job, epoch, checkpoint)
    return frame(COMMITTABLES_MAGIC, COMMITTABLES_VERSION, msgspec.msgpack.encode(stored, order="deterministic"))


def decode_committables(name: str, data: bytes) -> StoredCommittables:
    payload = unframe(name, data, COMMITTABLES_MAGIC, COMMITTABLES_VERSION, COMMITTABLES_VERSION_MIN)
    stored = _decode(name, payload, _COMMITTABLES)
    parsed = names.meaning(name)
    if isinstance(parsed, names.CommittablesName):
        epoch = parsed.epoch if stored.epoch is None else stored.epoch
        checkpoint = parsed.checkpoint if stored.checkpoint is None else stored.checkpoint
        names.check_same(name, names.committables, epoch, checkpoint, stored.sink)
    return stored


def encode_savepoint(savepoint: StoredSavepoint) -> bytes:
    return frame(SAVEPOINT_MAGIC, SAVEPOINT_VERSION, msgspec.msgpack.encode(savepoint, order="deterministic"))


def decode_savepoint(name: str, data: bytes) -> StoredSavepoint:
    payload = unframe(name, data, SAVEPOINT_MAGIC, SAVEPOINT_VERSION, SAVEPOINT_VERSION_MIN)
    stored = _decode(name, payload, _SAVEPOINT)
    if stored.record.job not in (None, stored.job.job_id) or stored.record.number not in (None, stored.number):
        raise CorruptObject(
            f"{name}: a savepoint of checkpoint {stored.number} of job id {stored.job.job_id} holds the record "
            f"{stored.record.number} of job id {stored.record.job}; restore the object from a copy"
        )
    check_copies(name, (each.name for each in stored.objects), stored.record.epoch)
    if name == names.savepoint():
        check_objects(name, stored.record, stored.record.number)
    return stored


_RECORD: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_BEGUN = msgspec.msgpack.Decoder(StoredBegun)
_JOB = msgspec.msgpack.Decoder(StoredJob)
_OWNER = msgspec.msgpack.Decoder(StoredOwner)
_COMMITTABLES = msgspec.msgpack.Decoder(StoredCommittables)
_SAVEPOINT = msgspec.msgpack.Decoder(StoredSavepoint)


def _decode(name: str, payload: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    return decode(name, payload, decoder, "the payload does not fit its format version")
