"""The bytes of the journal's objects. `REWRITE_GOLDEN=1` writes the golden files anew: only for a new version."""

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.behind import SplitBehind
from holdfast.errors import CorruptObject
from holdfast.formats.history import LostRows
from holdfast.ids import ClockReading
from holdfast.journal import codec
from holdfast.journal.records import CheckpointRecord, GroupRef, OperatorIdentity, PartIdentity, Takeover
from holdfast.storage import names
from holdfast.storage.copying import CopiedObject
from holdfast.storage.framing import frame
from holdfast.storage.routing import OtherStorages
from holdfast.watermarks import SourceTime, SplitTime

GOLDEN = Path(__file__).parent / "golden"
JOB = "0123456789abcdef" * 2
TAKEOVER = Takeover(epoch=17, nonce="00112233445566778899aabbccddeeff", job=JOB)
ELSEWHERE = OtherStorages("s3://quick/logs", ("s3://a/tables", "s3://b/tables"))
WITH_STORAGES = msgspec.structs.replace(TAKEOVER, storages=ELSEWHERE)
OWNER = codec.StoredOwner(JOB, "s3://bucket/job")
CHECKPOINT = CheckpointRecord(
    epoch=17,
    nonce="ffeeddccbbaa99887766554433221100",
    checkpoint_id=3,
    batch=41,
    run=2,
    batch_time_us=1_700_000_000_000_000,
    offsets={"flights": {"0": 12, "file": "a.parquet", "ratio": 0.5, "open": True, "none": None, "große": -(2**63)}},
    source_objects={"flights": ["sources/000000000017/00000000000000000000000000000001"]},
    manifests=["manifests/000000000017/000000000003/tm-000000000000"],
    groups={"delta-1": [GroupRef(15, "manifests/000000000012/000000000009/sink-delta-1"), GroupRef(18, "manifests/x")]},
    operators={"aggregate-1": OperatorIdentity(("carrier", "origin"), {"state": b"\x00\xffschema"})},
    parallelism=4,
    max_parallelism=128,
    watermarks={
        "flights/at": SourceTime(-1, 9, 7, -3, True, {"0": SplitTime(5, 7), "1": SplitTime(None, 7)}),
        "empty/at": SourceTime(),
    },
    settings={"trigger": "Every(interval='10s')", "timeout": "'10min'"},
    retains=[14, 16],
    started_from=14,
    behind={"flights": {"0": SplitBehind(12, 2, "is offline", True, (14, 17)), "open": SplitBehind()}},
    parts={
        "flights": PartIdentity("source", "", (), (), "0123456789abcdef"),
        "aggregate-1": PartIdentity("operator", "aggregate", ("carrier", "origin"), ("flights",), "fedcba9876543210"),
    },
    given_up=["former"],
    job=JOB,
    origins=["fedcba9876543210" * 2],
    number=18,
    clock=ClockReading("0d0e", 1_234_567),
    kept={"trigger": "cron('0 * * * *', 'Europe/Berlin')", "timeout": 2.5, "retained": 3, "retained_for": None},
    older_manifests=["manifests/000000000017/000000000003/tm-000000000000"],
    losses=[
        LostRows(
            1_700_000_000.5,
            17,
            15,
            "TaskManager 1 ended",
            (37, 41),
            (1, 3),
            {"aggregate-1/1": 2},
            {"aggregate-1/3": 40},
            {"flights": {"0": (9, 12)}},
        )
    ],
)
GATHERED = "gathered/000000000017/000000000003/" + "1" * 32
WITH_GATHERED = msgspec.structs.replace(
    CHECKPOINT,
    manifests=[*CHECKPOINT.manifests, names.manifest_part(GATHERED, 16, 300, 1)],
    groups=CHECKPOINT.groups | {"delta=2": [GroupRef(18, names.committables_part(GATHERED, 316, 40, "delta=2"))]},
)
OWN = "dstl/000000000017/000000000004/" + "2" * 32
WITH_OWN = msgspec.structs.replace(
    WITH_GATHERED, manifests=[*WITH_GATHERED.manifests, names.manifest_behind_logs(OWN, 70_000, 300, 3, 2)]
)
COMMITTABLES = codec.StoredCommittables("delta-1", [b"", b"\x80", b"one"], b"how", 5, JOB, 17, 3)
SAVEPOINT = codec.StoredSavepoint(
    id="0f" * 16,
    job=codec.StoredJob("0123456789abcdef" * 2, 1, 128),
    storage="s3://bucket/job",
    number=18,
    record=WITH_OWN,
    objects=[CopiedObject("manifests/000000000017/000000000003/tm-000000000000", 1234, 0xCAFE)],
)
STORED = {
    "job-1.bin": (codec.encode_job(codec.StoredJob("0123456789abcdef" * 2, 1, 128)), codec.decode_job),
    "begun-1.bin": (codec.encode_begun(codec.StoredBegun(2)), codec.decode_begun),
    "takeover-13.bin": (codec.encode_record(WITH_STORAGES), codec.decode_record),
    "checkpoint-13.bin": (codec.encode_record(WITH_OWN), codec.decode_record),
    "owner-1.bin": (codec.encode_owner(OWNER), codec.decode_owner),
    "committables-3.bin": (
        codec.encode_committables("delta-1", [b"", b"\x80", b"one"], b"how", 5, JOB, 17, 3),
        codec.decode_committables,
    ),
    "savepoint-7.bin": (codec.encode_savepoint(SAVEPOINT), codec.decode_savepoint),
}
ENCODED = {
    "job-1.bin": codec.StoredJob("0123456789abcdef" * 2, 1, 128),
    "begun-1.bin": codec.StoredBegun(2),
    "takeover-13.bin": WITH_STORAGES,
    "checkpoint-13.bin": WITH_OWN,
    "owner-1.bin": OWNER,
    "committables-3.bin": COMMITTABLES,
    "savepoint-7.bin": SAVEPOINT,
}
WITH_CLOCK = msgspec.structs.replace(CHECKPOINT, kept={}, losses=[], older_manifests=[])
WITH_PARTS = msgspec.structs.replace(WITH_CLOCK, job=None, origins=[], number=None, clock=None)
PLAIN = msgspec.structs.replace(WITH_PARTS, parts={}, given_up=[])
OLDER = {
    "takeover-7.bin": (Takeover(17, TAKEOVER.nonce), codec.decode_record),
    "takeover-8.bin": (Takeover(17, TAKEOVER.nonce), codec.decode_record),
    "takeover-9.bin": (TAKEOVER, codec.decode_record),
    "takeover-10.bin": (TAKEOVER, codec.decode_record),
    "takeover-11.bin": (TAKEOVER, codec.decode_record),
    "takeover-12.bin": (TAKEOVER, codec.decode_record),
    "checkpoint-7.bin": (PLAIN, codec.decode_record),
    "checkpoint-8.bin": (WITH_PARTS, codec.decode_record),
    "checkpoint-9.bin": (WITH_CLOCK, codec.decode_record),
    "checkpoint-10.bin": (CHECKPOINT, codec.decode_record),
    "checkpoint-11.bin": (WITH_GATHERED, codec.decode_record),
    "checkpoint-12.bin": (WITH_OWN, codec.decode_record),
    "committables-2.bin": (
        codec.StoredCommittables("delta-1", [b"", b"\x80", b"one"], b"how"),
        codec.decode_committables,
    ),
    "savepoint-2.bin": (msgspec.structs.replace(SAVEPOINT, record=PLAIN), codec.decode_savepoint),
    "savepoint-3.bin": (msgspec.structs.replace(SAVEPOINT, record=WITH_PARTS), codec.decode_savepoint),
    "savepoint-4.bin": (msgspec.structs.replace(SAVEPOINT, record=WITH_CLOCK), codec.decode_savepoint),
    "savepoint-5.bin": (msgspec.structs.replace(SAVEPOINT, record=CHECKPOINT), codec.decode_savepoint),
    "savepoint-6.bin": (msgspec.structs.replace(SAVEPOINT, record=WITH_GATHERED), codec.decode_savepoint),
}
"""Objects of older versions, which said less of what they are."""


@pytest.mark.parametrize("file", list(STORED))
def test_the_stored_format_is_that_of_its_golden_file(file: str) -> None:
    data, decode = STORED[file]
    if os.environ.get("REWRITE_GOLDEN"):
        (GOLDEN / file).write_bytes(data)
    golden = (GOLDEN / file).read_bytes()
    assert decode(file, golden) == ENCODED[file]
    assert data == golden


@pytest.mark.parametrize("file", list(OLDER))
def test_objects_of_older_versions_are_read(file: str) -> None:
    expected, decode = OLDER[file]
    assert decode(file, (GOLDEN / file).read_bytes()) == expected


@given(st.sampled_from(list(STORED)), st.data())
def test_a_truncated_or_altered_object_is_refused_by_name(file: str, data: st.DataObject) -> None:
    stored, decode = STORED[file]
    altered = bytearray(stored)
    if data.draw(st.booleans()):
        del altered[data.draw(st.integers(0, len(stored) - 1)) :]
    else:
        for bit in data.draw(st.sets(st.integers(0, len(stored) * 8 - 1), min_size=1, max_size=3)):
            altered[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptObject, match="journal/7"):
        decode("journal/7", bytes(altered))


@given(st.binary(max_size=100))
def test_any_payload_behind_a_sound_frame_is_decoded_or_refused_by_name(payload: bytes) -> None:
    try:
        record = codec.decode_record("journal/7", frame(codec.RECORD_MAGIC, codec.RECORD_VERSION, payload))
    except CorruptObject as error:
        assert "journal/7" in str(error)
    else:
        assert isinstance(record, Takeover | CheckpointRecord)


@pytest.mark.parametrize(
    "payload",
    [
        {"kind": "takeover", "epoch": 1, "nonce": "x", "colour": "red"},
        {"kind": "truce", "epoch": 1},
        {"kind": "takeover", "epoch": "one", "nonce": "x"},
        {"epoch": 1, "nonce": "x"},
        [1, 2],
    ],
)
def test_a_record_that_says_more_less_or_else_is_refused(payload: object) -> None:
    data = frame(codec.RECORD_MAGIC, codec.RECORD_VERSION, msgspec.msgpack.encode(payload))
    with pytest.raises(CorruptObject, match="journal/7: the payload does not fit its format version"):
        codec.decode_record("journal/7", data)


def test_one_kind_of_object_is_not_read_as_another() -> None:
    with pytest.raises(CorruptObject, match="HFJR"):
        codec.decode_record("journal/7", STORED["job-1.bin"][0])


RIGHT = {
    "manifests": [names.manifest(17, 3, 0), names.manifest(17, 3, 1)],
    "older_manifests": [],
    "source_objects": {"flights": [names.source_chunk(17), names.segment(16, "flights", 4)]},
    "groups": {"delta-1": [GroupRef(15, names.committables(12, 9, "delta-1"))]},
}
"""Objects that a record of epoch 17, with number 18 and checkpoint 3, may name."""


def with_objects(**objects: object) -> CheckpointRecord:
    return msgspec.structs.replace(CHECKPOINT, **{**RIGHT, **objects})


def test_a_record_that_names_objects_of_its_own_is_read() -> None:
    older = with_objects(manifests=[names.manifest(12, 30, 0)])  # a closing record names an older checkpoint's
    lost = [names.manifest(17, 3, 0), names.manifest(17, 1, 1), names.manifest(16, 4, 2)]
    without_lost = with_objects(manifests=lost, older_manifests=lost[1:])
    for record in (with_objects(), older, without_lost):
        assert codec.decode_record(names.journal(18), codec.encode_record(record)) == record


@pytest.mark.parametrize(
    "objects",
    [
        {"manifests": ["job"]},
        {"manifests": [names.committables(17, 3, "delta-1")]},
        {"manifests": [names.manifest(17, 4, 0)]},
        {"manifests": [names.manifest(18, 1, 0)]},
        {"manifests": [names.manifest(17, 3, 0), names.manifest(17, 2, 1)]},
        {"manifests": [names.manifest(17, 3, 0)] * 2},
        {"manifests": [names.manifest(17, 4, 0)], "older_manifests": [names.manifest(17, 4, 0)]},
        {"older_manifests": [names.manifest(17, 1, 1)]},
        {
            "manifests": [names.manifest(17, 3, 0), names.manifest(17, 2, 0)],
            "older_manifests": [names.manifest(17, 2, 0)],
        },
        {
            "manifests": [names.manifest(17, 2, 0), names.manifest(17, 3, 1)],
            "older_manifests": [names.manifest(17, 3, 1)],
        },
        {"source_objects": {"flights": [names.changelog_object(1, 1)]}},
        {"source_objects": {"flights": [names.source_chunk(18)]}},
        {"source_objects": {"flights": [names.segment(16, "other", 4)]}},
        {"source_objects": {"flights": ["sources/../journal/000000000001"]}},
        {"groups": {"delta-1": [GroupRef(15, names.committables(12, 9, "other"))]}},
        {"groups": {"delta-1": [GroupRef(15, names.committables(15, 1, "delta-1"))]}},
        {"groups": {"delta-1": [GroupRef(19, names.committables(17, 3, "delta-1"))]}},
        {"groups": {"delta-1": [GroupRef(15, names.manifest(12, 9, 0))]}},
    ],
)
def test_a_record_that_leads_to_other_objects_is_refused(objects: dict[str, object]) -> None:
    """Objects that a record names are deleted at the end, and whoever may write to the storage can write records."""
    with pytest.raises(CorruptObject, match=r"names the object .*, which no checkpoint of epoch 17 has in that place"):
        codec.decode_record(names.journal(18), codec.encode_record(with_objects(**objects)))
    stored = msgspec.structs.replace(SAVEPOINT, record=with_objects(**objects))
    with pytest.raises(CorruptObject, match=r"names the object .*, which no checkpoint of epoch 17 has in that place"):
        codec.decode_savepoint("savepoint", codec.encode_savepoint(stored))


def test_records_keep_the_types_of_positions() -> None:
    decoded = codec.decode_record("x", codec.encode_record(CHECKPOINT))
    assert isinstance(decoded, CheckpointRecord)
    positions = decoded.offsets["flights"]
    assert [type(positions[key]) for key in ("0", "file", "ratio", "open", "none")] == [
        int,
        str,
        float,
        bool,
        type(None),
    ]


def test_a_record_lists_the_objects_it_names_once() -> None:
    assert CHECKPOINT.objects() == [
        "manifests/000000000017/000000000003/tm-000000000000",
        "sources/000000000017/00000000000000000000000000000001",
        "manifests/000000000012/000000000009/sink-delta-1",
        "manifests/x",
    ]
