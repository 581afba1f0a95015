"""Stores that are not quite S3: each oddity is worked around, waited out or refused by name."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ObjectNotFound, PublishFailed, StorageError
from holdfast.sinks.base import PublishContext, Sink, SinkContext, StageContext
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import TestSource, run
from odd_s3_kit import OddS3, odd_s3

NO_BUCKET = (404, "NoSuchBucket", "")
SCHEMA = pa.schema([("k", pa.int64())])
JOB = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def s3() -> Iterator[OddS3]:
    with odd_s3() as served:
        yield served


@pytest.fixture
def store(s3: OddS3) -> ObjectStore:
    return open_store("s3://bucket/x", s3.options)


def test_an_object_that_is_gone_is_deleted_whatever_the_store_says_of_it(s3: OddS3, store: ObjectStore) -> None:
    s3.tells_missing = True
    for name in ("a", "b", "c"):
        store.put(name, b"1")
    for _ in range(2):
        RetryingStore(store, attempts_max=1).delete(["a", "missing", "c"])
        assert list(s3.objects) == ["x/b"]
    store.delete(["missing"])


def test_a_deletion_that_the_store_denies_stays_an_error(s3: OddS3, store: ObjectStore) -> None:
    store.put("a", b"1")
    for refusal in ((403, "AccessDenied", ""), (503, "SlowDown", ""), NO_BUCKET):
        s3.refused = {"POST": refusal}
        with pytest.raises(StorageError) as caught:
            store.delete(["a", "b"])
        assert not isinstance(caught.value, ObjectNotFound)


@pytest.mark.parametrize("code", ["NoSuchBucket", "NoSuchKey"])
def test_a_write_that_finds_no_bucket_is_an_outage(code: str, s3: OddS3, store: ObjectStore) -> None:
    s3.refused = {"PUT": (404, code, "")}
    for write in (store.put, store.create):
        with pytest.raises(StorageError, match="says that there is no such bucket or container") as caught:
            write("a", b"1")
        assert not isinstance(caught.value, ObjectNotFound)


def test_a_read_that_finds_no_bucket_is_an_outage_and_one_without_object_is_an_answer(
    s3: OddS3, store: ObjectStore
) -> None:
    with pytest.raises(ObjectNotFound):
        store.get("a")
    s3.refused = {"*": NO_BUCKET}
    for read in (store.get, store.list, lambda name: store.get_range(name, 0, 1)):
        with pytest.raises(StorageError) as caught:
            read("a/" if read == store.list else "a")
        assert not isinstance(caught.value, ObjectNotFound)


SINKS: dict[str, Any] = {"parquet": hf.ParquetSink, "delta": hf.DeltaSink}


@pytest.mark.parametrize("method", ["PUT", "GET", "*"])
@pytest.mark.parametrize("below", ["", "out/_"])
@pytest.mark.parametrize("kind", SINKS)
def test_a_publication_whose_bucket_is_away_can_be_tried_again(kind: str, method: str, below: str, s3: OddS3) -> None:
    sink: Sink = SINKS[kind]("s3://bucket/out", storage_options=s3.options)
    job = open_store("memory://odd-s3")
    sink.prepare(SCHEMA, SinkContext(JOB, "out", job))
    rows = pa.RecordBatch.from_pylist([{"k": 1}], schema=SCHEMA)
    group = sink.stage(iter([rows]), StageContext(JOB, "out", 1, 1, 1, 0, "a", job))
    before = dict(s3.objects)
    s3.refused, s3.refused_below = {method: NO_BUCKET}, below
    if (kind, method) != ("parquet", "GET"):  # it reads nothing back
        with pytest.raises((OSError, StorageError)) as caught:
            sink.publish(1, group, PublishContext(JOB, "out", job, SCHEMA))
        assert not isinstance(caught.value, (PublishFailed, ObjectNotFound))
    s3.refused = {}
    sink.publish(1, group, PublishContext(JOB, "out", job, SCHEMA))
    assert len(s3.objects) > len(before)


def test_a_store_that_ignores_if_none_match_is_refused_at_the_start(s3: OddS3) -> None:
    s3.keeps_conditions = False
    job = hf.Job(None, name="odd", storage="s3://bucket/x", storage_options=s3.options)
    job.read(TestSource([[{"k": 1}]], "k BIGINT")).write(hf.MemorySink())
    with pytest.raises(hf.JobRefused, match="ignores the condition of put-if-absent"):
        run(job)


def test_a_short_key_id_blanks_no_part_of_a_word(s3: OddS3, store: ObjectStore) -> None:
    s3.refused = {"*": (403, "AccessDenied", "<Did>id did hide inside key and monkey</Did>")}
    with pytest.raises(StorageError, match="<Did>id did hide inside key and monkey</Did>"):
        store.get("a")
