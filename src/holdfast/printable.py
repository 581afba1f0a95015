"""Functions that make foreign text safe to print: rows, names and errors may contain terminal control sequences.

A sequence that begins with ESC or with a C1 control character may clear the screen, set its title, make links or fill
the clipboard. Marks of text direction make a text look like another one. Lone surrogates cannot be printed at all.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.hidden import hide

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Control characters except line feed and tab, marks of direction, characters of no width, and surrogates."""


def printable(text: str) -> str:
    r"""Return a text with each unsafe character replaced by its escape: ESC becomes `\x1b`."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_document(value: Any) -> Any:
    """Return a JSON document in which all texts and names are printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_document(name): printable_document(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [printable_document(each) for each in value]
    return value


def logger(name: str) -> logging.Logger:
    """Return the logger of a module. Its records, including tracebacks, are printable and contain no secrets."""
    made = logging.getLogger(name)
    made.addFilter(_make_printable)
    return made


@contextmanager
def without_warnings() -> Iterator[None]:
    """Log errors alone, in the whole process, while jobs run that lose their processes on purpose."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _make_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(hide(record.getMessage())), None
    if record.exc_info and not record.exc_text:
        record.exc_text = printable(hide(_FORMATTER.formatException(record.exc_info)))
    return True


_FORMATTER = logging.Formatter()
