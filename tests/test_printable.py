"""Texts from outside cannot control a terminal, wherever they are printed."""

import io
import logging

import pytest

from holdfast.cli.common import SafeConsole
from holdfast.errors import BadRecord, SettingsError
from holdfast.printable import logger, printable, printable_document

EVIL = "\x1b]52;c;cm0=\x1b\\\x9b2J\u202etxt.exe\ud800\x07"


def test_control_characters_become_their_escapes_and_other_text_stays() -> None:
    assert printable(EVIL) == "\\x1b]52;c;cm0=\\x1b\\\\x9b2J\\u202etxt.exe\\ud800\\x07"
    assert printable("Zürich\t東京 🙂\nnext") == "Zürich\t東京 🙂\nnext"
    assert printable_document({"a\x1b": ["\x07", 1, None, ("\x9b",)]}) == {"a\\x1b": ["\\x07", 1, None, ["\\x9b"]]}


@pytest.mark.parametrize("kind", [BadRecord, SettingsError])
def test_texts_of_errors_are_printable(kind: type[Exception]) -> None:
    assert str(kind(f"row {EVIL}")) == printable(f"row {EVIL}")


def test_records_of_loggers_are_printable_with_their_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    made, out = logger("holdfast.test"), io.StringIO()
    handler = logging.StreamHandler(out)
    made.addHandler(handler)
    try:
        raise ValueError(EVIL)
    except ValueError:
        made.exception("a row with %s", EVIL)
    finally:
        made.removeHandler(handler)
    assert "ValueError" in out.getvalue() and "a row with \\x1b]52" in out.getvalue()
    assert "\x1b" not in out.getvalue() and "\x9b" not in out.getvalue()


def test_tables_of_the_command_are_printable() -> None:
    out = io.StringIO()
    SafeConsole(file=out, force_terminal=True, color_system=None, width=100).print(f"[bold]{EVIL}")
    assert "\x1b]" not in out.getvalue() and "\\x1b]52" in out.getvalue()
