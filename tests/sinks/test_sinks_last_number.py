"""Every sink that remembers a number knows the last number at its target."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sinks_kit import (
    KEEPING,
    SCHEMA,
    callback,
    kafka_in_portions,
    large,
    parquet_files_in_portions,
    rows,
    upsert_in_portions,
)

from holdfast import failpoints
from holdfast.errors import HoldfastError
from holdfast.sinks.base import Sink, SinkContext
from holdfast.storage.store import ObjectStore, open_store


@pytest.mark.parametrize("make", [make for make in KEEPING if make is not callback])
def test_a_target_knows_the_last_number_of_its_sink_alone(make: Any, tmp_path: Path, store: ObjectStore) -> None:
    bench = make(tmp_path, store)

    def last(sink: Sink, job: str = bench.job, name: str = "out") -> int | None:
        context = SinkContext(job, name, open_store(f"memory://{uuid4().hex}"), ("k",))
        sink.prepare(SCHEMA, context)
        return sink.last_number(context)

    assert last(bench.again()) == 0
    bench.publish(7, bench.stage(rows((1, "a"))))
    bench.publish(9, bench.stage(rows((2, "b")), unit=1) + bench.stage(large(10), unit=2))
    bench.publish(11, [])
    assert last(bench.again()) in (9, 11)
    assert last(bench.again(), job=uuid4().hex) == 0
    assert last(bench.again(), name="other") == 0


@pytest.mark.parametrize(
    ("make", "failpoint"),
    [
        (upsert_in_portions, "sink.delta.committed"),
        (kafka_in_portions, "sink.kafka.committed"),
        (parquet_files_in_portions, "sink.parquet.copied"),
    ],
)
def test_a_part_of_a_group_at_the_target_counts_as_its_number(
    make: Any, failpoint: str, tmp_path: Path, store: ObjectStore, armed: Any
) -> None:
    bench = make(tmp_path, store)
    group = bench.stage(rows((1, "a"))) + bench.stage(rows((2, "b")), unit=1)
    armed(failpoint, "raise")
    with pytest.raises(HoldfastError, match=failpoint):
        bench.publish(7, group)
    failpoints.disarm()
    again = bench.again()
    again.prepare(SCHEMA, SinkContext(bench.job, "out", store, ("k",)))
    assert again.last_number(SinkContext(bench.job, "out", store, ("k",))) == 7
