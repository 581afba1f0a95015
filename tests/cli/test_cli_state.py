"""`holdfast operators`, `state` and `diff`."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.stored_state.difference import difference
from holdfast.stored_state.opened import open_storage, retained
from stored_state_kit import rows_from, run_job


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_job(tmp_path_factory.mktemp("stored"), rows_from(0, 12))


def command(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def test_operators_are_listed_with_their_states(storage: str) -> None:
    found = json.loads(command("operators", storage, "--json"))
    assert {(each["operator"], each["state"], each["rows"]) for each in found["operators"]} == {
        ("counts", "values", 3),
        ("everything", "values", 3),
        ("everything", "seen", 12),
        ("everything", "last", 12),
        ("everything", "timers", 3),
    }
    assert "everything" in command("state", storage) and "12" in command("operators", storage)


def test_rows_go_to_other_programs_as_csv_or_json_lines(storage: str) -> None:
    rows = list(csv.DictReader(io.StringIO(command("state", storage, "counts"))))
    assert sorted((row["k"], row["n.count"]) for row in rows) == [("0", "4"), ("1", "4"), ("2", "4")]
    lines = [json.loads(line) for line in command("state", storage, "counts", "--key", "k=1", "--json").splitlines()]
    assert [(line["k"], line["n.count"]) for line in lines] == [(1, 4)]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.jsonl"])
def test_rows_are_written_to_files(storage: str, tmp_path: Path, name: str) -> None:
    command("state", storage, "everything", "--state", "seen", "--to", str(tmp_path / name))
    if name.endswith("parquet"):
        assert pq.read_table(tmp_path / name).num_rows == 12
    else:
        assert len((tmp_path / name).read_text().splitlines()) in (12, 13)


def test_a_format_that_is_not_known_is_refused(storage: str, tmp_path: Path) -> None:
    assert "its format is not known" in command("state", storage, "counts", "--to", str(tmp_path / "rows.xls"), code=1)


def test_a_checkpoint_compared_with_itself_has_no_differences(storage: str) -> None:
    number = str(max(retained(open_storage(storage))))
    found = json.loads(command("diff", storage, number, number, "--json"))
    assert all((each["came"], each["went"], each["changed"]) == (0, 0, 0) for each in found["operators"])


def test_differences_tell_rows_that_came_went_and_changed() -> None:
    old = pa.table({"k": [1, 2, 3], "n": [1, 2, None]})
    new = pa.table({"k": [2, 3, 4], "n": [2, 5, 1], "more": [None, "x", None]})
    found = difference(old, new, ["k"])
    assert (found.came, found.went, found.changed) == (1, 1, 1)
    rows = {(row["change"], row["k"], row["n"], row["more"]) for row in found.rows.to_pylist()}
    assert rows == {("went", 1, 1, None), ("came", 4, 1, None), ("before", 3, None, None), ("after", 3, 5, "x")}
