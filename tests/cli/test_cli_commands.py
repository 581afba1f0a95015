"""The command line itself: its exit codes, and where its output and its errors go."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.cli.common import open_storage_of
from holdfast.storage.store import open_store

COMMANDS = ("verify", "checkpoints", "operators", "state", "diff", "top", "gc")


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"holdfast {holdfast.__version__}\n")


def test_the_help_lists_every_command() -> None:
    listed = CliRunner().invoke(app, ["--help"]).stdout
    assert [command for command in COMMANDS if command not in listed] == []


def test_a_command_that_does_not_exist_is_a_mistake_of_the_caller() -> None:
    assert CliRunner().invoke(app, ["repair"]).exit_code == 2


@pytest.mark.parametrize("arguments", [["verify"], ["gc", "--dry-run"], ["operators"], ["state", "--operator", "x"]])
def test_a_storage_that_is_not_there_is_named_on_stderr_without_a_traceback(
    tmp_path: Path, arguments: list[str]
) -> None:
    name, *options = arguments
    given = ["x"] if name == "state" else []
    missing = str(tmp_path / "missing")
    result = CliRunner().invoke(app, [name, missing, *given, *([] if name == "state" else options)])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("holdfast: StorageError: ") and "missing" in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path(missing).exists()


def test_a_folder_may_be_given_by_its_path_or_by_its_url(tmp_path: Path) -> None:
    open_store(tmp_path.as_uri()).put("job", b"1")
    for storage in (str(tmp_path), tmp_path.as_uri()):
        assert open_storage_of(storage, None).get("job") == b"1"


def test_a_storage_without_checkpoints_has_an_empty_history(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    open_store((tmp_path / "storage").as_uri()).put("job", b"x")
    result = CliRunner().invoke(app, ["checkpoints", str(tmp_path / "storage"), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"checkpoints": [], "savepoints": [], "store_use": None, "other_storages": []}


@pytest.mark.parametrize("prices", ["1,2", "a,b,c", "1,2,-3"])
def test_prices_that_are_not_understood_are_named(tmp_path: Path, prices: str) -> None:
    (tmp_path / "storage").mkdir()
    result = CliRunner().invoke(app, ["checkpoints", str(tmp_path / "storage"), "--prices", prices])
    assert result.exit_code in (1, 2)
    assert "prices" in result.stderr or "per_gb_month" in result.stderr
