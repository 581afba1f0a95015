"""`select`, `where` and conditions of aggregates in whole jobs; sources read only the columns that are needed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from job_kit import new_job, script

import holdfast as hf
from holdfast.graph.build import build_program, without_spark
from holdfast.sources.files.parquet_format import ParquetFormat
from holdfast.testing import run

BIDS = "auction BIGINT, price BIGINT, good BOOLEAN"
ROWS = [
    {"auction": 1, "price": 10, "good": True},
    {"auction": 2, "price": 20, "good": None},
    {"auction": 1, "price": 30, "good": False},
    {"auction": 1, "price": None, "good": True},
]
PRICE = pc.field("price")


def result(made: Any, rows: Any = ROWS, schema: str = BIDS) -> list[dict[str, Any]]:
    sink, job = hf.MemorySink(), new_job()
    made(job.read(script(rows[:2], rows[2:], schema=schema))).write(sink)
    run(job)
    return sink.rows()


def test_rows_are_chosen_and_columns_computed() -> None:
    def made(bids: hf.Stream) -> hf.Stream:
        return bids.where(PRICE > 10).select("auction", half=PRICE * 0.5)

    assert result(made) == [{"auction": 2, "half": 10.0}, {"auction": 1, "half": 15.0}]


def test_aggregates_take_the_rows_for_which_their_condition_is_true() -> None:
    def made(bids: hf.Stream) -> hf.Stream:
        return bids.key_by("auction").aggregate(
            all=hf.count(),
            dear=hf.count(where=PRICE >= 20),
            good=hf.count("price", where="good"),
            total=hf.sum("price", where=PRICE < 20),
            prices=hf.count_distinct("price", where=pc.field("good")),
            best=hf.max_by("good", "price", where=PRICE < 25),
        )

    last = {row["auction"]: row for row in result(made)}
    assert last[1] == {"auction": 1, "all": 3, "dear": 1, "good": 1, "total": 10, "prices": 1, "best": True}
    assert last[2] == {"auction": 2, "all": 1, "dear": 1, "good": 0, "total": None, "prices": 0, "best": None}


def test_a_file_is_read_in_the_columns_that_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []
    rows = ParquetFormat.rows

    def noted(self: ParquetFormat, tree: Any, file: Any, columns: list[str], start: int, stop: int) -> Any:
        read.append(columns)
        return rows(self, tree, file, columns, start, stop)

    monkeypatch.setattr(ParquetFormat, "rows", noted)
    pq.write_table(pa.Table.from_pylist([{**row, "text": "x"} for row in ROWS]), tmp_path / "a.parquet")
    job = new_job()
    bids = job.read(hf.FileSource(str(tmp_path)))
    bids.key_by("auction").aggregate(n=hf.count(where=PRICE > 5)).write(hf.NoopSink())
    bids.where(pc.field("good")).select("price").write(hf.NoopSink())
    bids.where(pc.field("good")).write(hf.NoopSink())
    run(job)
    assert read == [["auction", "price", "good", "text"]]


def test_late_rows_come_without_the_columns_of_conditions() -> None:
    times = "at TIMESTAMP, v BIGINT"
    rows = [{"at": datetime.fromtimestamp(second, UTC), "v": second} for second in (50, 90, 5, 91)]
    late, sink, job = hf.MemorySink(), hf.MemorySink(), new_job()
    stream = job.read(script(*([row] for row in rows), schema=times)).with_watermark("at", "1s")
    counts = stream.key_by(hf.window("at", "10s")).aggregate(n=hf.count(where=pc.field("v") > 0), late="stream")
    counts.write(sink)
    counts.late.write(late)
    run(job)
    assert [list(row) for row in late.rows()] == [["at", "v"]]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda bids: bids.where(pc.field("nothing") > 1), "No match for FieldRef.Name.nothing"),
        (lambda bids: bids.where(PRICE + 1), "the condition is of type int64; expected a boolean"),
        (lambda bids: bids.where(PRICE > "x"), "no kernel matching input types"),
        (lambda bids: bids.select("nothing"), "there is no column 'nothing' in its input"),
        (lambda bids: bids.select("price", x=pc.field("y")), "No match for FieldRef.Name.y"),
    ],
)
def test_expressions_that_do_not_fit_are_refused_when_they_are_declared(made: Any, reason: str) -> None:
    bids = new_job().read(script(ROWS, schema=BIDS))
    with pytest.raises(hf.JobRefused, match=reason):
        made(bids)


def test_an_expression_behind_operators_is_checked_when_it_is_declared() -> None:
    bids = new_job().read(script(ROWS, schema=BIDS))
    counts = bids.key_by("auction").aggregate(n=hf.count())
    both = counts.key_by("auction").join(bids.key_by("auction"))
    with pytest.raises(hf.JobRefused, match=r"no column 'm'; the nearest are .*good"):
        both.where("n > 1").map_batches(lambda rows: rows, BIDS).where("m > 1")
    with pytest.raises(hf.JobRefused, match="no column 'prize'; the nearest are price"):
        both.with_column("twice", "2 * prize")


def test_an_expression_over_rows_of_an_unknown_schema_is_checked_at_start(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "one.parquet")
    job = new_job()
    job.read(hf.FileSource(str(tmp_path))).where("b > 1").write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match="no column 'b'; the nearest are a"):
        run(job)


def test_misuse_is_refused_when_declared() -> None:
    bids = new_job().read(script(ROWS, schema=BIDS))
    for wrong in (lambda: bids.select(), lambda: bids.select("a", "a"), lambda: bids.where(3)):
        with pytest.raises(hf.SettingsError):
            wrong()
    with pytest.raises(hf.SettingsError, match="expected an expression in Spark's SQL"):
        hf.sum("price", where=3)


def test_changes_are_taken_back_though_the_aggregate_does_not_read_their_column() -> None:
    rows = [{"k": 1, "_change_type": kind} for kind in ("insert", "insert", "insert", "delete")]
    found = result(lambda rows: rows.key_by("k").aggregate(n=hf.count()), rows, "k BIGINT, _change_type STRING")
    assert found[-1]["n"] == 2


def test_a_row_whose_index_is_out_of_range_is_bad() -> None:
    n = pc.field("n")
    sink, job = hf.MemorySink(), new_job(bad_records="dead_letter", dead_letters="memory://letters")
    job.read(script([{"n": 0}, {"n": 2}, {"n": 1}], schema="n BIGINT")).select("n", made=pc.choose(n, n, n)).write(sink)
    assert run(job).totals.bad_rows == 1
    assert [row["n"] for row in sink.rows()] == [0, 1]


def test_expressions_in_sql_choose_rows_and_make_columns() -> None:
    def made(bids: hf.Stream) -> hf.Stream:
        chosen = bids.where("price > 10").with_column("half", "price / 2")
        return chosen.select("auction", "half * 2 as whole", up="auction + 1L")

    assert result(made) == [{"auction": 2, "whole": 20.0, "up": 3}, {"auction": 1, "whole": 30.0, "up": 2}]


def test_all_columns_and_a_column_of_a_struct_are_selected() -> None:
    rows = [{"r": {"x": 1}, "a-b": 5}] * 3
    schema = pa.schema({"r": pa.struct({"x": pa.int64()}), "a-b": pa.int64()})
    assert result(lambda some: some.select("r.x", "a-b"), rows, schema)[0] == {"x": 1, "a-b": 5}
    assert result(lambda some: some.select("*", "`a-b` + 1 as more"), rows, schema)[0] == {**rows[0], "more": 6}


def test_conditions_in_sql_and_computed_keys_reach_the_operator() -> None:
    def made(bids: hf.Stream) -> hf.Stream:
        keyed = bids.key_by(big="coalesce(price, 0) >= 20")
        return keyed.aggregate(n=hf.count(where="good or price > 15"), total=hf.sum("price", where="auction = 1"))

    found = {row["big"]: (row["n"], row["total"]) for row in result(made)}
    assert found == {False: (2, 10), True: (2, 30)}


def test_a_row_for_which_an_expression_in_sql_fails_is_bad() -> None:
    sink, job = hf.MemorySink(), new_job(bad_records="dead_letter", dead_letters="memory://letters")
    rows = [{"k": 0, "v": 1}, {"k": 2, "v": 1}, {"k": 0, "v": None}]
    job.read(script(rows)).select("k", "v / k as made").write(sink)
    assert run(job).totals.bad_rows == 1
    assert sink.rows() == [{"k": 2, "made": 0.5}, {"k": 0, "made": None}]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda bids: bids.where("prise > 1"), "there is no column 'prise'; the nearest are price"),
        (lambda bids: bids.where("price >"), "is not Spark SQL"),
        (lambda bids: bids.where("price"), "the condition is of type int64; expected a boolean"),
        (lambda bids: bids.select("price * 2"), "an expression needs a name"),
        (lambda bids: bids.select(x="uper(price)"), "the function uper is not supported .* upper"),
        (lambda bids: bids.key_by("price").aggregate(n=hf.sum("price", where="nope > 1")), "no column 'nope'"),
    ],
)
def test_expressions_in_sql_that_do_not_fit_are_refused_when_they_are_declared(made: Any, reason: str) -> None:
    bids = new_job().read(script(ROWS, schema=BIDS))
    with pytest.raises(hf.JobRefused, match=reason):
        made(bids)


def test_a_file_source_reads_only_the_columns_that_expressions_in_sql_need(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4], "c": [5, 6]}), tmp_path / "one.parquet")
    job = new_job()
    source = hf.FileSource(str(tmp_path), format="parquet", schema="a BIGINT, b BIGINT, c BIGINT")
    job.read(source).where("a > 1").select("b + 1 as d").write(hf.NoopSink())
    program = build_program(job.declared, without_spark, None)
    assert program.legs[0].columns == ("a", "b")


def test_explain_says_which_engine_runs_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    job = new_job()
    job.read(script(ROWS, schema=BIDS)).where("price > 1").map_batches(lambda rows: rows, BIDS).write(hf.NoopSink())
    job.explain()
    said = capsys.readouterr().out
    assert "where('price > 1'): PyArrow in the sender" in said
    assert "map_batches(<lambda>): Python in the sender" in said
