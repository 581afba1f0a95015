"""Triggers as text, for commands from outside and for records that keep an update.

    "every 10s"   "cron 0 * * * *"   "on_watermark 1h"   "manual"
    "every('10s')"   "cron('0 * * * *', 'Europe/Berlin')"   …          as in Python, with only texts and numbers

Does not own: the rules of triggers (`triggers.py`). A text is never evaluated as code.
"""

import ast
import re
from collections.abc import Callable
from datetime import timedelta

from holdfast.checkpoint.triggers import (
    CheckpointTrigger,
    Cron,
    Every,
    Manual,
    OnWatermark,
    cron,
    every,
    manual,
    on_watermark,
)
from holdfast.errors import SettingsError
from holdfast.quantities import Duration

CHARACTERS_MAX = 500
"""Bound on the characters in the text of a trigger; the longest sensible text, a cron expression with lists, has some
hundred."""

_MAKERS: dict[str, Callable[..., CheckpointTrigger]] = {
    "every": every,
    "cron": cron,
    "on_watermark": on_watermark,
    "manual": manual,
}
_CALL = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)


def trigger_of(text: str) -> CheckpointTrigger:
    """Return the trigger that a text names. Raises `SettingsError`."""
    wrong = SettingsError(
        f"trigger={text[:CHARACTERS_MAX]!r} is not allowed: 'every 10s', 'cron 0 * * * *', 'on_watermark 1h', "
        "'manual', or as in Python: \"cron('0 * * * *', 'Europe/Berlin')\""
    )
    kind, arguments = _parsed(text.strip(), wrong)
    if kind not in _MAKERS or not all(isinstance(each, str | int | float) for each in arguments):
        raise wrong
    try:
        return _MAKERS[kind](*arguments)
    except TypeError:
        raise wrong from None


def text_of(trigger: CheckpointTrigger) -> str | None:
    """Return a text from which `trigger_of` makes the same trigger; None for a user's own class."""
    match trigger:
        case Every(interval):
            return f"every({plain(interval)!r})"
        case OnWatermark(interval):
            return f"on_watermark({plain(interval)!r})"
        case Cron(expression, timezone):
            return f"cron({expression!r}, {timezone!r})"
        case Manual():
            return "manual()"
    return None


def plain(value: Duration | None) -> str | int | float | None:
    """Return a duration as a text or a number of seconds; other values as they are."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def _parsed(text: str, wrong: SettingsError) -> tuple[str, tuple[object, ...]]:
    """Parse the name of a trigger, and its arguments."""
    if len(text) > CHARACTERS_MAX:
        raise wrong
    call = _CALL.fullmatch(text)
    if call is None:
        kind, _, argument = text.partition(" ")
        return kind, (argument.strip(),) if argument else ()
    kind, inside = call.groups()
    try:
        return kind, ast.literal_eval(f"({inside},)") if inside.strip() else ()
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise wrong from None
