"""Text from outside, made safe to print: rows, names and messages of errors may hold control sequences of terminals.

A sequence that begins with ESC or with a control character of C1 clears a screen, sets its title, makes links or fills
the clipboard. Marks of text direction make a text look like another text. Lone surrogates cannot be printed at all.
"""

import logging
import re
from typing import Any

from holdfast.hidden import hide

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Control characters but line feed and tab, marks of direction and of invisible width, and surrogates."""


def printable(text: str) -> str:
    r"""Return a text with each unsafe character as its escape: ESC becomes `\x1b`."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_document(value: Any) -> Any:
    """Return a JSON document with all its texts and names made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_document(name): printable_document(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [printable_document(each) for each in value]
    return value


def logger(name: str) -> logging.Logger:
    """Return the logger of a module. Its records are printable whatever they quote, and hold no secrets; tracebacks
    included."""
    made = logging.getLogger(name)
    made.addFilter(_make_printable)
    return made


def _make_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(hide(record.getMessage())), None
    if record.exc_info and not record.exc_text:
        record.exc_text = printable(hide(_FORMATTER.formatException(record.exc_info)))
    return True


_FORMATTER = logging.Formatter()
