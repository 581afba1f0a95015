"""Jobs whose senders combine rows: the same results as without, whatever overflows, is null, fails or is restarted."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_kit import new_job, new_storage, newest, script, tuples

import holdfast as hf
from holdfast.functions.aggregates import combining
from holdfast.sinks.dead_letters import DEAD_LETTER_SCHEMA
from holdfast.testing import Abort, TestSource, run, start

HALF = 2**62


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    monkeypatch.setattr(combining, "SAMPLE_ROWS", 6)  # of five keys: a key comes twice


@pytest.fixture
def combined_batches(monkeypatch):
    """How often combined rows were made."""
    made: list[int] = []
    combined = combining.AggregateCombiner._combined

    def noting(combiner: combining.AggregateCombiner) -> pa.RecordBatch:
        rows = combined(combiner)
        made.append(rows.num_rows)
        return rows

    monkeypatch.setattr(combining.AggregateCombiner, "_combined", noting)
    return made


def batches(seed: int, count: int = 3, keys: int = 5) -> list[list[dict]]:
    print("seed", seed)
    rng = random.Random(seed)
    return [[{"k": rng.randrange(keys), "v": rng.randrange(100)} for _ in range(40)] for _ in range(count)]


def with_nulls(rows: list[dict]) -> list[dict]:
    return [{**row, "k": None if row["v"] % 7 == 0 else row["k"]} for row in rows]


def totals(job: hf.Job, source: TestSource, sink: hf.MemorySink) -> hf.Job:
    job.read(source).key_by("k").aggregate(n=hf.count(), total=hf.sum("v"), last=hf.last("v")).write(sink)
    return job


def dead_letters(folder) -> list[tuple[str, str]]:
    schema = pa.schema([(name, DEAD_LETTER_SCHEMA.field(name).type) for name in DEAD_LETTER_SCHEMA.names])
    rows = pq.read_table(folder, schema=schema).to_pylist()
    return sorted((row["reason"], row["payload"]) for row in rows)


def both(folder, *steps) -> list[tuple[list[tuple], list[tuple[str, str]]]]:
    """Output and dead letters, with and without combining."""
    found = []
    for combine in (True, False):
        bad, sink = folder / str(combine), hf.MemorySink()
        job = new_job(combine=combine, parallelism=3, bad_records="dead_letter", dead_letters=bad.as_uri())
        source = TestSource(list(steps), pa.schema([("k", pa.int64()), ("v", pa.int64())]))
        assert run(totals(job, source, sink)).restarts == []
        found.append((tuples(sink), dead_letters(bad) if bad.exists() else []))
    return found


def test_rows_with_null_keys_become_dead_letters_and_the_others_are_combined(tmp_path, combined_batches):
    with_combining, without = both(tmp_path, *(with_nulls(rows) for rows in batches(1)))
    assert with_combining == without
    assert len(with_combining[1]) > 0 and len(combined_batches) == 3


def test_a_sum_that_overflows_leaves_out_the_same_rows_as_without_combining(tmp_path, combined_batches):
    rows = [{"k": 1, "v": value} for value in (HALF, 5, HALF, -7, 3, HALF - 1, 1)]
    rest = [{"k": key, "v": 1} for key in (1, 2) * 10]
    with_combining, without = both(tmp_path, rest, rows, rest)
    assert with_combining == without
    assert len(with_combining[1]) == 2
    assert combined_batches == [2]  # and no more, once a batch had to be run again


def test_a_sum_that_overflows_ends_the_query_with_the_row_named():
    rows = [{"k": 1, "v": HALF} for _ in range(8)]
    with pytest.raises(hf.QueryFailed) as failed:
        run(totals(new_job(), script(rows), hf.MemorySink()))
    assert "row 1 of batch" in str(failed.value.__cause__)


def test_combining_may_be_switched_between_two_starts():
    storage, expected, sink, plain = new_storage(), batches(2, count=4), hf.MemorySink(name="out"), hf.MemorySink()
    for number, combine in enumerate((True, False, True, True)):
        run(totals(new_job(storage, combine=combine), script(*expected[: number + 1]), sink))
    run(totals(new_job(combine=False), script(*expected), plain))
    assert newest(sink.rows(), "k") == newest(plain.rows(), "k")


def test_a_batch_that_is_lost_is_combined_again(combined_batches):
    rows, sink, plain = batches(3), hf.MemorySink(), hf.MemorySink()
    source = TestSource([rows[0], rows[1], Abort(), rows[2]], "k BIGINT, v BIGINT")
    query = start(totals(new_job(task_managers=2, parallelism=4), source, sink), hf.available_now())
    query.awaitTermination()
    assert len(query.restarts) == 1 and len(combined_batches) > 3
    run(totals(new_job(combine=False), script(*rows), plain))
    assert newest(sink.rows(), "k") == newest(plain.rows(), "k")


def test_the_output_of_an_operator_is_combined_on_its_way_to_the_next(combined_batches):
    sink = hf.MemorySink()
    job = new_job()
    counts = job.read(script(*batches(4))).key_by("k").aggregate("every", n=hf.count())
    counts.key_by("n").aggregate(keys=hf.count()).write(sink)
    run(job)
    assert newest(sink.rows(), "n")[1] == {"keys": 5}
    assert combined_batches
