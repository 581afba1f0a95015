"""Commands that change a running query over HTTP, by the `holdfast` command and by hand."""

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.errors import SettingsError
from holdfast.query import Query
from holdfast.testing import TestSource, start
from holdfast.ui import control
from waiting import until

_numbers = itertools.count()
ROWS = [{"k": key} for key in range(6)]
TOKEN = "t" * 32


def started(**settings: Any) -> Query:
    job = hf.Job(None, name="controlled", storage=f"memory://control-{next(_numbers)}", ui_port=0, **settings)
    job.read(TestSource([ROWS], "k BIGINT", name="rows")).key_by("k").aggregate(n=hf.count(), name="n").write(
        hf.MemorySink(name="out")
    )
    query = start(job, hf.processing_time("0s"))
    query.processAllAvailable()
    return query


@pytest.fixture
def query() -> Iterator[Query]:
    made = started(ui_control=TOKEN, checkpoint=hf.CheckpointConfig(trigger=hf.manual()))
    yield made
    made.stop()


def run(*arguments: str, token: str = TOKEN) -> tuple[int, str]:
    found = CliRunner().invoke(app, arguments, env={"HOLDFAST_TOKEN": token})
    return found.exit_code, found.output


def post(query: Query, body: bytes, token: str = TOKEN) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{query.uiUrl}api/v1/control", body, {"Authorization": f"Bearer {token}"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as found:
            return found.status, json.load(found)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def test_a_query_is_updated_and_checkpointed_from_outside(query: Query) -> None:
    url = str(query.uiUrl)
    assert run("update", url, "trigger=every 1h", "timeout=5min", "retained=3") == (
        0,
        "changed trigger, timeout, retained\n",
    )
    settings = query.view().settings
    assert settings["timeout"] == "'5min'" and settings["retained"] == "3" and "1h" in settings["trigger"]
    number = query.trigger_checkpoint(30)
    assert run("trigger", url) == (0, f"checkpoint {number} is complete\n")


def test_updates_are_kept_and_forgotten_from_outside(query: Query) -> None:
    url = str(query.uiUrl)
    assert run("update", url, "timeout=5min", "trigger=cron('0 * * * *', 'Europe/Berlin')", "--keep") == (
        0,
        "changed for this and later starts: timeout, trigger\n",
    )
    assert query.status["keptSettings"] == {
        "timeout": "'5min'",
        "trigger": "Cron(expression='0 * * * *', timezone='Europe/Berlin')",
    }
    status, _ = post(query, b'{"command": "update", "settings": {"retained": 4}, "keep": true, "forget": true}')
    assert status == 202
    until(lambda: query.status["keptSettings"] == {"retained": "4"})
    assert query.view().settings["timeout"] == "'10min'"
    assert run("update", url, "--forget") == (0, "forgot the settings that were kept\n")
    assert query.status["keptSettings"] == {} and run("update", url)[0] == 2


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("every 10s", hf.every("10s")),
        ("every( 10 )", hf.every(10)),
        ("cron 0 * * * *", hf.cron("0 * * * *")),
        ('cron("0 * * * *", "Europe/Berlin")', hf.cron("0 * * * *", "Europe/Berlin")),
        ("on_watermark 1h", hf.on_watermark("1h")),
        (" on_watermark('1 hour') ", hf.on_watermark("1 hour")),
        ("manual", hf.manual()),
        ("manual()", hf.manual()),
    ],
)
def test_a_trigger_is_written_as_a_text(text: str, trigger: object) -> None:
    assert control.trigger_of(text) == trigger


@pytest.mark.parametrize(
    "text",
    [
        "", "every", "every()", "manual 1", "manual(1)", "every 10 parsecs", "every('1s', 2)", "every(open('x'))",
        "cron 61 * * * *", "on_watermark 0", "on_watermark([1])", "sometimes 1h", "every(" + "(" * 400, "every 1" * 999,
    ],
)  # fmt: skip
def test_a_text_that_names_no_trigger_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="allowed"):
        control.trigger_of(text)


def test_a_savepoint_is_taken_and_the_query_is_stopped_from_outside(query: Query, tmp_path: Path) -> None:
    url, folder = str(query.uiUrl), tmp_path.as_uri()
    code, said = run("savepoint", url, f"{folder}/first")
    assert code == 0 and f"{folder}/first is complete" in said
    assert run("stop", url, "--savepoint", f"{folder}/last") == (0, "the query has ended\n")
    assert query.awaitTermination(10) and {each.url for each in query.savepoints} == {
        f"{folder}/first",
        f"{folder}/last",
    }


def test_a_command_that_the_query_refuses_is_told_with_its_reason(query: Query) -> None:
    url = str(query.uiUrl)
    assert run("update", url, "speed=fast")[0] == 1
    assert "CheckpointConfig does not have" in run("update", url, "speed=fast")[1]
    assert "allowed" in run("update", url, "trigger=now and then")[1]
    assert "split '3'" in run("retry", url, "3")[1] and "dead letter" in run("skip", url, "3", "17")[1]


@pytest.mark.parametrize("token", ["", "x" * 32, TOKEN[:-1]])
def test_without_the_token_nothing_is_changed(query: Query, token: str, tmp_path: Path) -> None:
    assert post(query, b'{"command": "stop"}', token)[0] == 403
    (tmp_path / "token").write_text(f"{token}\n")
    code, said = run("stop", str(query.uiUrl), "--token-file", str(tmp_path / "token"))
    assert code == 1 and "token" in said and query.isActive


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"stop",
        b'{"command": "drop"}',
        b'{"command": "stop", "force": true}',
        b'{"command": "skip"}',
        b"[" * 10_000,
    ],
)
def test_anything_but_a_command_is_refused(query: Query, body: bytes) -> None:
    status, said = post(query, body)
    assert status == 400 and "no command" in said["error"] and query.isActive


def test_long_bodies_and_too_many_commands_are_refused(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    assert post(query, b" " * (control.BODY_BYTES_MAX + 1))[0] == 413
    monkeypatch.setattr(control, "RUNNING_MAX", 0)
    assert post(query, b'{"command": "trigger"}')[0] == 429


def test_nothing_can_be_changed_unless_the_job_says_so() -> None:
    query = started()
    try:
        assert query.controlToken is None
        code, said = run("stop", str(query.uiUrl))
        assert code == 1 and "without Job(ui_control" in said and query.isActive
    finally:
        query.stop()


def test_a_start_makes_and_prints_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    query = started(ui_control=True)
    assert query.controlToken is not None and f"HOLDFAST_TOKEN={query.controlToken}" in capsys.readouterr().err
    assert run("stop", str(query.uiUrl), token=query.controlToken)[0] == 0 and query.awaitTermination(10)


@pytest.mark.parametrize(
    "wrong", [{"ui_control": "short", "ui_port": 0}, {"ui_control": 1, "ui_port": 0}, {"ui_control": True}]
)
def test_a_control_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="ui_control") as refused:
        start(hf.Job(None, name="wrong", storage="memory://wrong", **wrong), hf.available_now())
    assert "short" not in str(refused.value)
