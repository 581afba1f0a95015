"""The last events and commands of a running job, for people who search for the cause of a problem.

Both loops of the JobMaster, around the execution machine and around the coordinator, pass each fact to their rules
through `ObservedRules`, which records the fact and the commands that follow from it. The log is bounded, and keeps no
reference to an event: only names and plain values.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

import msgspec

ENTRIES_MAX = 1000
"""Bound on the entries that the log keeps. A higher value lets people look further back."""
TEXT_MAX = 200
"""Bound on the characters of a value that the log keeps."""
LAST_ENTRIES = 40
"""Number of the log's last entries that an error about broken rules shows."""

EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")
EventIn = TypeVar("EventIn", contravariant=True)
CommandOut = TypeVar("CommandOut", covariant=True)


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event that a loop passed to its rules, or a command that it carried out."""

    at_s: float
    """Seconds since the Unix epoch."""
    loop: str
    """The loop that recorded it: "execution" or "checkpoints"."""
    is_command: bool
    name: str
    values: dict[str, str]
    """The plain values of its fields, by name."""

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.loop} {'->' if self.is_command else '<-'} {self.name}({said})"


class EventLog:
    """A bounded log. Thread-safe. `now` returns seconds since the Unix epoch."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._entries: deque[LoggedEvent] = deque(maxlen=ENTRIES_MAX)

    def event(self, loop: str, event: object) -> None:
        """Record an event. A tick is not recorded, since it only says that time has passed."""
        if not type(event).__name__.endswith("Tick"):
            self._note(loop, event, is_command=False)

    def command(self, loop: str, command: object) -> None:
        self._note(loop, command, is_command=True)

    def recent(self) -> tuple[LoggedEvent, ...]:
        """Return the entries that are kept, oldest first."""
        with self._lock:
            return tuple(self._entries)

    def _note(self, loop: str, fact: object, *, is_command: bool) -> None:
        entry = LoggedEvent(self._now(), loop, is_command, type(fact).__name__, _plain_values(fact))
        with self._lock:
            self._entries.append(entry)


class Rules(Protocol[EventIn, CommandOut]):
    """Pure rules that a loop runs: the execution machine, or the coordinator."""

    def handle(self, event: EventIn, /) -> Sequence[CommandOut]: ...

    def validate(self) -> None: ...


class ObservedRules(Generic[EventT, CommandT]):
    """Pure rules whose events and commands are recorded in a log. `loop`: the name of the rules in the log."""

    def __init__(self, loop: str, rules: Rules[EventT, CommandT], event_log: EventLog) -> None:
        self._loop = loop
        self._rules = rules
        self._event_log = event_log

    def handle(self, event: EventT) -> Sequence[CommandT]:
        """Pass an event to the rules; return the commands that follow from it, in their order."""
        self._event_log.event(self._loop, event)
        commands = self._rules.handle(event)
        for command in commands:
            self._event_log.command(self._loop, command)
        return commands

    def validate(self) -> None:
        """Check the invariants of the rules; for tests. Raises `AssertionError` with the last entries of the log."""
        try:
            self._rules.validate()
        except AssertionError as broken:
            last = "\n".join(f"  {entry}" for entry in self._event_log.recent()[-LAST_ENTRIES:])
            raise AssertionError(f"{broken}\nthe last events and commands:\n{last}") from None


def _plain_values(fact: object) -> dict[str, str]:
    """Return the fields of a dataclass that are numbers, texts or errors, or whose types define their own text.

    Collections are left out, since they may be large.
    """
    found = {}
    for name in _field_names(type(fact)):
        value = getattr(fact, name)
        kind = type(value)
        if kind in _NUMBERS:
            found[name] = str(value)
        elif kind not in _COLLECTIONS and _is_plain(value):
            found[name] = _shown(value)
    return found


_NUMBERS = frozenset((bool, int, float))
_COLLECTIONS = frozenset((dict, list, set, frozenset, tuple))
"""Types whose values need no further look, since facts are recorded thousands of times a second."""

_field_names_of: dict[type, tuple[str, ...]] = {}
"""The names of the fields of each dataclass that was recorded; empty for other classes."""


def _field_names(kind: type) -> tuple[str, ...]:
    found = _field_names_of.get(kind)
    if found is None:
        found = _field_names_of[kind] = tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()
    return found


def _is_plain(value: object) -> bool:
    is_named_tuple = isinstance(value, tuple) and hasattr(value, "_fields")
    has_words = is_dataclass(value) and type(value).__str__ is not object.__str__
    return is_named_tuple or has_words or isinstance(value, bool | int | float | str | Enum | Exception)


def _shown(value: object) -> str:
    shown = value.value if isinstance(value, Enum) else value
    return str(shown)[:TEXT_MAX]
