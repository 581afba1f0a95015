"""Conditions of file sources: rows as Spark has them, groups of rows that are passed over, times of those groups."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.expressions.declared import SqlExpression
from holdfast.sources.files import parquet_format
from holdfast.testing import run

DAY = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("p", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("b", pa.bool_()),
    ]
)
GROUP_ROWS, GROUPS = 5, 12


def rows_of(seed: int) -> pa.Table:
    """Rows whose values are near each other within a group; some groups have nulls, NaN, or nulls alone."""
    drawn, made = random.Random(seed), []
    for group in range(GROUPS):
        nulls = drawn.choice([0, 0, 0.3, 1])
        for _ in range(GROUP_ROWS):
            n = group * 10 + drawn.randrange(8)
            row: dict[str, Any] = {"n": n, "d": drawn.choice([n / 2, n / 2, float("nan"), -0.0, 0.0]), "s": f"k{n:03}"}
            row |= {"p": Decimal(n) / 4, "at": DAY + timedelta(hours=n), "day": (DAY + timedelta(days=n)).date()}
            row["b"] = group % 3 == 0
            made.append({name: None if drawn.random() < nulls else value for name, value in row.items()})
    return pa.Table.from_pylist(made, SCHEMA)


CONDITIONS = [
    "n > 95", "n >= 37 and n < 41", "n = 55 or s = 'k003'", "n between 20 and 31", "n in (3, 77, 200)",
    "not n < 100", "not (n < 100 or n > 105)", "n not between 5 and 110", "n not in (1)", "n is null",
    "n is not null and s > 'k10'", "d < 3.5", "d > 50", "d = 0", "d <> 2", "not d <= 40", "p > 25.5",
    "p <= 1", "at >= '2026-01-05'", "at < timestamp '2026-01-01 05:00:00'", "day > '2026-04-10'",
    "day = date '2026-01-02'", "b", "not b", "b = true and n < 40", "95 < n", "n > 50.5", "s like 'k00%'",
    "d = double('NaN')", "n + 1 > 100", "n > 90 and 10 / (n - 95) > 1", "coalesce(n, 0) = 0", "n <=> 7", "n > null",
    "n > 90 and rlike(s, '5')",
]  # fmt: skip


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of the row groups that are read."""
    found: list[int] = []
    read = parquet_format.group_batches

    def noted(tree: Any, file: Any, columns: Any, groups: list[int], *more: Any) -> Any:
        found.extend(groups)
        return read(tree, file, columns, groups, *more)

    monkeypatch.setattr(parquet_format, "group_batches", noted)
    yield found


def result(path: Path, steps: Any, **settings: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of a job over files, and the reasons of its bad records."""
    sink = hf.MemorySink()
    number = random.randrange(10**12)
    letters = path.parent / f"letters-{number}"
    job = hf.Job(
        None,
        name="where",
        storage=f"memory://where-{number}",
        bad_records="dead_letter",
        dead_letters=f"file://{letters}",
    )
    steps(job, hf.FileSource(str(path), name="files", **settings)).write(sink)
    run(job)
    reasons = [str(row["reason"]) for file in letters.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    return sink.rows(), reasons


def shown(rows: Any) -> list[str]:
    return sorted(str(row) for row in rows)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_rows_are_those_for_which_the_condition_is_true(seed: int, tmp_path: Path, groups_read: list[int]) -> None:
    table = rows_of(seed)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=GROUP_ROWS)
    (batch,) = table.combine_chunks().to_batches()
    passed = 0
    for text in CONDITIONS:
        bound = SqlExpression(text).bound(SCHEMA)
        expected, failing = [], 0
        for place in range(batch.num_rows):
            try:
                expected += batch.slice(place, 1).filter(bound(batch.slice(place, 1))).to_pylist()
            except pa.ArrowInvalid:
                failing += 1
        groups_read.clear()
        found, reasons = result(tmp_path, lambda job, source: job.read(source), schema=SCHEMA, where=text)
        assert (shown(found), len(reasons)) == (shown(expected), failing), text
        passed += GROUPS - len(set(groups_read))
        behind, reasons = result(tmp_path, lambda job, source, text=text: job.read(source).where(text), schema=SCHEMA)
        assert (shown(behind), len(reasons)) == (shown(expected), failing), text
    assert passed > 6 * GROUPS


@pytest.mark.parametrize(
    ("steps", "read"),
    [
        (lambda job, rows: rows.where("n >= 60"), [6, 7, 8, 9]),
        (lambda job, rows: rows.where("n >= 60").where("n < 70").select("n"), [6]),
        (lambda job, rows: rows.select("n as m").where("m >= 90"), [9]),
        (lambda job, rows: rows.with_column("twice", "cast(n as double) * 2").where("n >= 90 and twice > 3"), [9]),
        (lambda job, rows: job.sql("SELECT n FROM (SELECT n, n AS m FROM t) WHERE M = 15", t=rows), [1]),
        (lambda job, rows: job.sql("SELECT n FROM t x WHERE x.n < 5 OR x.n IN (95)", t=rows), [0, 9]),
        (lambda job, rows: rows.where("n < 10").union(rows.where("n >= 90")), [0, 9]),
        (lambda job, rows: rows.key_by("n").aggregate(c=hf.count()).where("n < 5"), list(range(10))),
        (lambda job, rows: rows.with_column("x", "1 div n").where("n >= 90"), list(range(10))),
        (lambda job, rows: rows.map_batches(lambda batch: batch, "n BIGINT").where("n >= 90"), list(range(10))),
    ],
)
def test_conditions_right_behind_a_source_reach_it(
    steps: Any, read: list[int], tmp_path: Path, groups_read: list[int]
) -> None:
    pq.write_table(pa.table({"n": range(100)}), tmp_path / "a.parquet", row_group_size=10)
    found, _ = result(tmp_path, lambda job, source: steps(job, job.read(source)), schema="n BIGINT")
    assert sorted(set(groups_read)) == read
    assert found


def test_groups_that_are_passed_over_move_the_watermark(tmp_path: Path, groups_read: list[int]) -> None:
    times = [DAY + timedelta(seconds=n) for n in range(100)]
    pq.write_table(pa.table({"at": times, "n": range(100)}), tmp_path / "a.parquet", row_group_size=10)

    def steps(job: hf.Job, source: hf.FileSource) -> hf.Stream:
        rows = job.read(source).with_watermark("at", "0s").where("n < 20")
        return rows.key_by(hf.window("at", "10s")).aggregate(n=hf.count())

    found, _ = result(tmp_path, steps)
    assert [row["n"] for row in found] == [10, 10]
    assert sorted(set(groups_read)) == [0, 1]
    found, _ = result(tmp_path, lambda job, source: steps(job, source), where="n < 20")
    assert [row["n"] for row in found] == [10]


def test_files_of_folders_that_deny_the_condition_are_not_read(tmp_path: Path, groups_read: list[int]) -> None:
    for day in ("2026-01-01", "2026-01-02", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / "in" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"n": [1, 2, 3]}), folder / "a.parquet")
    settings: dict[str, Any] = {"format": "parquet", "schema": "n BIGINT, day DATE", "partitioning": "hive"}
    for where, count in (("day > '2026-01-01'", 1), ("day is null", 1), ("day < '2026-01-02' and n > 3", 0)):
        groups_read.clear()
        found, _ = result(tmp_path / "in", lambda job, source: job.read(source).select("n"), where=where, **settings)
        assert (len(found), len(groups_read)) == (3 * count, count)


def test_text_files_are_filtered_and_read_in_the_columns_that_are_needed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text,x\n1,a,no number\n2,b,4\n0,c,5\n,d,6\n")
    settings: dict[str, Any] = {"schema": "n INT, text STRING, x INT", "format": "csv"}
    found, reasons = result(
        tmp_path, lambda job, source: job.read(source).select("text"), where="10 / n > 5", **settings
    )
    assert found == [{"text": "a"}]
    assert [reason.partition(" failed: ")[2] for reason in reasons] == ["division by zero"]
    found, reasons = result(tmp_path, lambda job, source: job.read(source).select("x"), where="n = 1", **settings)
    assert (found, len(reasons)) == ([], 1)


def test_a_condition_that_does_not_fit_is_refused_by_name() -> None:
    job = hf.Job(None, name="refused", storage="memory://refused-where")
    for where, reason in (
        ("m > 1", "no column 'm'; the nearest are n"),
        ("n + 1", "expected a boolean"),
        ("n >", "SQL"),
    ):
        with pytest.raises(hf.JobRefused, match=reason):
            job.read(hf.FileSource("/nowhere/*.csv", schema="n INT", where=where))
    with pytest.raises(hf.SettingsError, match="FileSource"):
        hf.FileSource("/nowhere/*.csv", schema="n INT", where=3)


def test_rows_for_which_a_condition_fails_are_found_behind_a_comparison_that_is_null(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, 2, 3, 2**63 - 1])})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    dead = (tmp_path / "dead").as_uri()
    job = hf.Job(None, name="failing", storage="memory://null-part", bad_records="dead_letter", dead_letters=dead)
    source = hf.FileSource(str(tmp_path / "*.parquet"), schema="n BIGINT", where="n not in (1, null) and n + 1 > 0")
    job.read(source).write(hf.NoopSink())
    assert run(job).totals.bad_rows == 1
