"""Streams of changes through whole jobs: their kind, steps that keep it, pipelines compared with DuckDB, restarts."""

import random
from typing import Any

import pyarrow as pa
import pytest
from job_kit import new_job, new_storage, script
from stored_changes_kit import STORED_BATCHES, file_of, made, new_sinks, new_source
from stored_joins_kit import STATES, unpack_file

import holdfast as hf
from changes_kit import ChangingTable, Told, in_order
from holdfast.testing import Abort, run

ROWS = pa.schema([("k", pa.int64()), ("k2", pa.int64()), ("v", pa.int64())])
COLUMNS = "k BIGINT, k2 BIGINT, v BIGINT, _change_type STRING"


def change(kind: str | None, **row: Any) -> dict[str, Any]:
    return {**row, "_change_type": kind}


def result(made: Any, *batches: list[dict[str, Any]], schema: str = "k BIGINT, v BIGINT, _change_type STRING") -> Any:
    sink, job = hf.MemorySink(), new_job()
    made(job.read(script(*batches, schema=schema))).write(sink)
    run(job)
    return sink.rows()


def test_an_update_that_a_filter_divides_becomes_an_insert_or_a_delete() -> None:
    halves = [(5, 20), (20, 5), (20, 30), (1, 2)]
    batch = [
        change(kind, k=number, v=value)
        for number, values in enumerate(halves)
        for kind, value in zip(("update_preimage", "update_postimage"), values, strict=True)
    ]
    batch.append(change("update_postimage", k=9, v=40))
    found = result(lambda stream: stream.where("v >= 10").select("k", double="v * 2"), batch)
    assert [tuple(row.values()) for row in found] == [
        (0, 40, "insert"),
        (1, 40, "delete"),
        (2, 40, "update_preimage"),
        (2, 60, "update_postimage"),
        (9, 80, "insert"),
    ]


def test_a_row_of_upserts_that_leaves_a_filter_becomes_a_delete() -> None:
    def made(stream: hf.Stream) -> hf.Stream:
        return stream.key_by("k").aggregate(n=hf.sum("v")).where("n > 5")

    found = result(made, [change("insert", k=1, v=9)], [change("delete", k=1, v=9), change("insert", k=1, v=2)])
    assert found == [change("insert", k=1, n=9), change("delete", k=1, n=2)]


def test_a_column_says_how_rows_change() -> None:
    kinds = {"c": "insert", "d": "delete", "b": "update_preimage", "a": "update_postimage"}
    rows = [{"k": 1, "v": 2, "op": "c"}, {"k": 1, "v": 2, "op": "b"}, {"k": 1, "v": 5, "op": "a"}]

    def made(stream: hf.Stream) -> hf.Stream:
        return stream.as_changes("op", kinds).key_by("k").aggregate(n=hf.sum("v"), changes=True)

    assert result(made, rows, schema="k BIGINT, v BIGINT, op STRING") == [change("insert", k=1, n=5)]
    with pytest.raises(hf.QueryFailed, match="_change_type is 'x' in the input of operator 'aggregate-1'"):
        result(made, [{"k": 1, "v": 2, "op": "x"}], schema="k BIGINT, v BIGINT, op STRING")
    with pytest.raises(hf.SettingsError, match="names the change type 'upsert'"):
        result(lambda stream: stream.as_changes("op", {"c": "upsert"}))


def test_messages_with_both_rows_of_an_update_are_changes() -> None:
    schema = "op STRING, ts_ms BIGINT, before STRUCT<k: BIGINT, v: BIGINT>, after STRUCT<k: BIGINT, v: BIGINT>"

    def message(op: str | None, before: Any = None, after: Any = None) -> dict[str, Any]:
        return {"op": op, "ts_ms": 7, "before": before, "after": after}

    def made(stream: hf.Stream) -> hf.Stream:
        rows = stream.as_changes("op", before="before", after="after")
        return rows.key_by("k").aggregate(n=hf.count(), total=hf.sum("v"), changes=True)

    def row(v: int, k: int = 1) -> dict[str, int]:
        return {"k": k, "v": v}

    first = [message("r", after=row(2)), message("c", after=row(3)), message("c", after=row(5, k=2))]
    second = [message("u", row(3), row(4, k=2)), message("d", row(5, k=2))]
    found = result(made, first, second, schema=schema)
    assert found[:2] == [change("insert", k=1, n=2, total=5), change("insert", k=2, n=1, total=5)]
    assert found[2:4] == [change("update_preimage", k=1, n=2, total=5), change("update_postimage", k=1, n=1, total=2)]
    assert found[4:] == [change("update_preimage", k=2, n=1, total=5), change("update_postimage", k=2, n=1, total=4)]
    for wrong, text in [
        (message("u", after=row(1)), "op is 'u', whose messages need the complete row 'before'"),
        (message("d", after=row(1)), "op is 'd', whose messages need the complete row 'before'"),
        (message("c", row(1)), "op is 'c', whose messages need the complete row 'after'"),
        (message("t"), "op is 't'; expected one of c, r, u, d"),
        (message(None, row(1), row(1)), "op is 'null'; expected one of"),
    ]:
        with pytest.raises(hf.QueryFailed, match=text):
            result(made, first, [wrong], schema=schema)
    with pytest.raises(hf.JobRefused, match="two structs with the same fields"):
        result(made, schema=schema.replace("v: BIGINT>, after", "v: INT>, after"))
    with pytest.raises(hf.SettingsError, match="names of three columns"):
        result(lambda stream: stream.as_changes("op", before="before"), schema=schema)


def test_rows_that_only_come_give_changes_too() -> None:
    def made(stream: hf.Stream) -> hf.Stream:
        counts = stream.key_by("k").aggregate(n=hf.count(), changes=True)
        return counts.key_by("n").aggregate(keys=hf.count())

    found = result(made, [{"k": 1, "v": 0}], [{"k": 1, "v": 0}], schema="k BIGINT, v BIGINT")
    assert found == [
        change("insert", n=1, keys=1),
        change("delete", n=1, keys=1),
        change("insert", n=2, keys=1),
    ]


def test_first_rows_and_joins_of_rows_that_only_come_give_changes_too() -> None:
    rows = [{"k": 1, "v": 1}, {"k": 2, "v": 5}], [{"k": 1, "v": 3}, {"k": 1, "v": 2}]
    schema = "k BIGINT, v BIGINT"
    found = result(lambda stream: stream.key_by("k").top(1, by="v", changes=True), *rows, schema=schema)
    assert [tuple(row.values()) for row in found] == [
        (1, 1, 1, "insert"),
        (2, 1, 5, "insert"),
        (1, 1, 1, "update_preimage"),
        (1, 1, 3, "update_postimage"),
    ]

    def made(stream: hf.Stream) -> hf.Stream:
        others = stream.where("v = 3").key_by("k")
        return stream.where("v < 3").key_by("k").join(others, how="left", suffix="_2", changes=True)

    assert [tuple(row.values()) for row in result(made, *rows, schema=schema)] == [
        (1, 1, None, "insert"),
        (1, 2, 3, "insert"),
        (1, 1, None, "update_preimage"),
        (1, 1, 3, "update_postimage"),
    ]


def test_the_last_rows_of_changes_are_upserts_by_key() -> None:
    gone = change("delete", k=1, v=5)
    first = [change("insert", k=1, v=5), change("insert", k=1, v=2)]
    found = result(lambda stream: stream.key_by("k").last(by="v"), first, [gone], [change("delete", k=1, v=2)])
    assert found == [change("insert", k=1, v=5), change("update_postimage", k=1, v=2), change("delete", k=1, v=2)]


def test_stored_rows_of_another_order_are_refused() -> None:
    def run_ordered(storage: str, by: str) -> None:
        job = new_job(storage)
        rows = job.read(script([change("insert", k=1, v=2)], schema="k BIGINT, v BIGINT, _change_type STRING"))
        rows.select("k", "v", "v AS w").key_by("k").last(by=by, name="latest").write(hf.MemorySink())
        run(job)

    storage = new_storage()
    run_ordered(storage, "v")
    with pytest.raises(hf.JobRefused, match=r"'latest': its stored state has no 'kept.size of 1 by w'.*another order"):
        run_ordered(storage, "w")


def test_stored_totals_of_rows_are_refused_once_rows_may_go() -> None:
    def run_over(storage: str, changes: bool) -> None:
        job = new_job(storage)
        rows = job.read(script([{"k": 1, "op": "insert"}], schema="k BIGINT, op STRING"))
        rows = rows.as_changes("op") if changes else rows
        rows.key_by("k").aggregate(n=hf.count(), name="counts").write(hf.MemorySink())
        run(job)

    storage = new_storage()
    run_over(storage, False)
    with pytest.raises(hf.JobRefused, match=r"'counts': its stored state has no '__rows'.*was no stream of changes"):
        run_over(storage, True)


@pytest.mark.parametrize("backend", STATES)
def test_operators_go_on_from_changes_that_were_stored(backend: str) -> None:
    savepoint, sinks, whole, storage = new_storage(), new_sinks(), new_sinks(), new_storage()
    unpack_file(file_of(backend), savepoint)
    run(made(new_storage(), new_source(), sinks, state=STATES[backend], parallelism=2, start_from=savepoint))
    run(made(storage, new_source(STORED_BATCHES), whole))
    before = {name: len(sink.rows()) for name, sink in whole.items()}
    run(made(storage, new_source(), whole))
    for name, sink in sinks.items():
        rest = whole[name].rows()[before[name] :]
        assert rest
        assert sorted(map(repr, sink.rows())) == sorted(map(repr, rest)), name


def test_a_function_sees_how_each_row_changed() -> None:
    class Seen(hf.ProcessFunction):
        def process(self, row: Any, ctx: Any) -> Any:
            yield row.k, row[2]

    found = result(
        lambda stream: stream.key_by("k").process(Seen(), "k BIGINT, kind STRING"), [change("delete", k=1, v=2)]
    )
    assert found == [{"k": 1, "kind": "delete"}]


def first(stream: hf.Stream) -> hf.Stream:
    by_both = (
        stream.where("v IS NULL OR v > -3")
        .key_by("k", "k2")
        .aggregate(n=hf.count(), most=hf.max("v"), changes=True, name="by_both")
    )
    return (
        by_both.with_column("more", "coalesce(most, 0) + n")
        .key_by("k")
        .aggregate(groups=hf.count(), total=hf.sum("more"), least=hf.min("most"), changes=True, name="by_k")
    )


FIRST = """SELECT k, count(*), sum(coalesce(most, 0) + n), min(most) FROM (
    SELECT k, k2, count(*) n, max(v) most FROM t WHERE v IS NULL OR v > -3 GROUP BY k, k2) GROUP BY k"""


def second(stream: hf.Stream) -> hf.Stream:
    odd, even = stream.where("k % 2 = 1"), stream.where("k % 2 = 0").with_column("v", "v * 2")
    counts = odd.union(even).key_by("v").aggregate(n=hf.count(), ks=hf.count_distinct("k"), changes=True, name="by_v")
    return (
        counts.where("n > 1")
        .key_by("n")
        .aggregate(values=hf.count("v"), ks=hf.collect_list("ks"), top=hf.max_by("v", "ks"), changes=True, name="by_n")
    )


SECOND = """SELECT n, count(v), list_sort(list(ks)), first(v ORDER BY ks DESC, v ASC NULLS LAST) FROM (
    SELECT CASE WHEN k % 2 = 1 THEN v ELSE v * 2 END v, count(*) n, count(DISTINCT k) ks FROM t
    WHERE v IS NOT NULL GROUP BY 1) WHERE n > 1 GROUP BY n"""


IN_MEMORY, ROCKSDB = hf.HashMapState(), hf.RocksDBState(cache_max_entries=8)


@pytest.mark.parametrize(
    ("backend", "made", "query"),
    [
        pytest.param(ROCKSDB, first, FIRST, id="rocksdb-first"),
        pytest.param(IN_MEMORY, second, SECOND, id="memory-second"),
        pytest.param(IN_MEMORY, first, FIRST, id="memory-first", marks=pytest.mark.long),
        pytest.param(ROCKSDB, second, SECOND, id="rocksdb-second", marks=pytest.mark.long),
    ],
)
def test_a_pipeline_follows_its_table_over_failures_and_restarts(backend: Any, made: Any, query: str) -> None:
    table, storage, sink = ChangingTable(3, ROWS), new_storage(), hf.MemorySink()
    draw, told, seen = random.Random(5), Told(), 0
    batches: list[Any] = []
    for _ in range(3):
        for size in (2, 9, 25):
            batches.append([row for row in table.change(size) if made is first or row["v"] is not None])
            if draw.random() < 0.5:
                batches.append(Abort())
        job = new_job(storage, state=backend, parallelism=2)
        made(job.read(script(*batches, schema=COLUMNS, name="table"))).write(sink)
        run(job)
        rows = sink.rows()
        told.take([{n: tuple(v) if isinstance(v, list) else v for n, v in row.items()} for row in rows[seen:]])
        seen = len(rows)
        expected = [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in table.query(query)]
        assert told.now() == in_order(expected)
