"""A start says in a line of a terminal what it waits for; a run that ends with its input draws a bar. Else: nothing."""

import io
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.observe.view import Restoring
from holdfast.quantities import size_text
from holdfast.ui import progress_line
from holdfast.ui.progress_line import Compiling, ProgressLine, follow_texts, starting, wait_of, way_of

NOTHING = Compiling(0, 0.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def view(**facts: Any) -> Any:
    usual = {
        "name": "sums",
        "is_active": True,
        "batches": (),
        "processes": (),
        "phase": "idle",
        "restored": None,
        "restoring": None,
    }
    return SimpleNamespace(**usual | {"checkpoints": (), "lag": {}, "message": "Processing"} | facts)


@pytest.mark.parametrize(
    ("facts", "compiling", "said"),
    [
        ({}, NOTHING, "sums: starting processes, 0 of 2"),
        ({}, Compiling(12, 7.4), "sums: compiling, once for this kind of machine: 12 kernels, 7 s"),
        (
            {
                "processes": (1, 2, 3),
                "phase": "deploying",
                "restored": 7,
                "checkpoints": (SimpleNamespace(number=7, full_bytes=1_200_000_000),),
            },
            NOTHING,
            "sums: restoring checkpoint 7, 1.2 GB",
        ),
        (
            {"processes": (1, 2), "phase": "deploying", "restored": 7, "restoring": Restoring(8, 3, 1_200_000_000)},
            NOTHING,
            "sums: restoring 3 of 8 subtasks, 1.2 GB",
        ),
        ({"processes": (1, 2), "phase": "running"}, NOTHING, "sums: first batch"),
        ({"processes": (1, 2), "message": "Waiting for source files"}, NOTHING, "sums: waiting for source files"),
        ({"batches": (1,)}, NOTHING, None),
        ({"is_active": False}, NOTHING, None),
    ],
)
def test_a_start_says_what_its_first_batch_waits_for(
    facts: dict[str, Any], compiling: Compiling, said: str | None
) -> None:
    assert wait_of(view(**facts), 2, compiling) == said


def test_a_run_that_ends_with_its_input_shows_rows_lag_and_an_estimate() -> None:
    assert (
        way_of(view(lag={"files": {"a": 250, "b": 500}}), 250, 10.0)
        == f"sums: {'█' * 5}{'░' * 15} 250 rows, lag 750, 30 s left"
    )
    assert way_of(view(), 0, 1.0) == f"sums: {'░' * 20} 0 rows, lag 0"
    assert way_of(view(is_active=False), 5, 1.0) is None


def test_sizes_are_written_for_people() -> None:
    assert [size_text(each) for each in (999, 1_000, 2.5e6, 3e15)] == ["999 bytes", "1.0 KB", "2.5 MB", "3000.0 TB"]


def test_the_line_is_drawn_over_itself_wiped_at_the_end_and_controls_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with starting("sums") as say:
        say("one\x1b[2J")
        say("two")
        say("two")
    assert terminal.getvalue().split("\r\x1b[K")[1:] == ["sums: one\\x1b[2J", "sums: two", ""]
    assert "\n" not in terminal.getvalue()


def shown_by_a_notebook(output: str) -> str:
    """The line as JupyterLab shows it: after a carriage return, characters take the places of those before."""
    line = ""
    for part in output.split("\r"):
        line = part + line[len(part) :]
    return line


def test_a_notebook_shows_the_line_too_and_nothing_once_it_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutStream(io.StringIO):
        """Stands for the standard error of a notebook's kernel, which is no terminal."""

    OutStream.__module__ = "ipykernel.iostream"
    cell = OutStream()
    monkeypatch.setattr(sys, "stderr", cell)
    with starting("sums") as say:
        say("taking over the storage")
        say("first batch")
        assert shown_by_a_notebook(cell.getvalue()).rstrip() == "sums: first batch"
    assert shown_by_a_notebook(cell.getvalue()).strip() == ""
    assert "\x1b" not in cell.getvalue() and "\n" not in cell.getvalue()


def test_where_logs_go_to_a_file_nothing_is_drawn_and_no_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with starting("sums") as say:
        say("one")
    assert follow_texts(lambda: "text", lambda seconds: False) is None
    assert file.getvalue() == ""


def test_texts_are_followed_until_there_is_none_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for texts in (iter(["one", "two", None]), iter(["one", "two"])):
        thread = follow_texts(lambda texts=texts: next(texts), lambda seconds: False)
        assert isinstance(thread, threading.Thread)
        thread.join(30)
        assert not thread.is_alive()
    assert terminal.getvalue().count("two") == 2 and terminal.getvalue().endswith(progress_line.WIPED)


def test_a_terminal_that_is_gone_ends_no_start() -> None:
    closed = Terminal()
    closed.close()
    line = ProgressLine(closed)
    line.say("one")
    line.say("two")
    line.wipe()
