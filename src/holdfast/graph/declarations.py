"""Everything that a user declared: sources, keyed operators and sinks, by name, in order. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.operator import OperatorInput, OperatorSpec
from holdfast.functions.windows.declared import AnyWindow
from holdfast.graph.nodes import Node, ReadNode, reads_of
from holdfast.graph.program import (
    DEAD_LETTERS,
)
from holdfast.sinks.base import Sink
from holdfast.sources.base import Source


@dataclass(frozen=True)
class InputDeclaration:
    """A keyed stream as an operator's input: its rows, its key columns and perhaps a window.

    `window_place`: number of key columns before the window.
    """

    node: Node
    key_columns: tuple[str, ...]
    window: AnyWindow | None = None
    window_place: int = 0
    timed: bool = False
    """True if each row needs an event time."""
    plain: bool = False
    """True if `window_start` among the keys is a column like any other, and not the previous window."""
    reads: tuple[str, ...] | None = None
    """The columns that the operator reads besides its keys, so that others need not be sent to it; None: all
    columns."""
    computed: dict[str, Any] = field(default_factory=dict)
    """Columns that are computed from others before rows reach the operator."""
    broadcast: str = ""
    """Name of the broadcast state that the rows make in every subtask; empty: rows are divided by key."""

    @property
    def shown_keys(self) -> tuple[str, ...]:
        """The keys as they were declared."""
        keys = tuple(map(repr, self.key_columns))
        window = () if self.window is None else (str(self.window),)
        return (*keys[: self.window_place], *window, *keys[self.window_place :])

    def as_broadcast(self, name: str) -> "InputDeclaration":
        """Make the same input go to every subtask. Raises `SettingsError`."""
        if self.window is not None:
            raise SettingsError(
                f"process(broadcast={{{name!r}: …}}) is keyed by {self.window}; key it by columns alone"
            )
        return replace(self, broadcast=name, plain=True)


def keyed_by(node: Node, keys: tuple[Any, ...]) -> InputDeclaration:
    """Return the input of an operator that is keyed by columns, and by at most one window. Raises `SettingsError`."""
    if len(keys) == 1 and isinstance(keys[0], list | tuple):
        keys = tuple(keys[0])
    if not keys or not all(isinstance(key, AnyWindow) or (isinstance(key, str) and key) for key in keys):
        raise SettingsError(f"key_by{keys!r} is not allowed: name at least one column, and at most one hf.window")
    columns = tuple(key for key in keys if isinstance(key, str))
    windows = [place for place, key in enumerate(keys) if isinstance(key, AnyWindow)]
    if len(set(columns)) < len(columns):
        raise SettingsError(f"key_by{keys!r} names a column twice")
    if len(windows) > 1:
        raise SettingsError(f"key_by{keys!r} has {len(windows)} windows: give only a single window")
    place = windows[0] if windows else 0
    window = next((key for key in keys if isinstance(key, AnyWindow)), None)
    return InputDeclaration(node, columns, window, place)


@dataclass(frozen=True)
class OperatorDeclaration:
    """An operator whose `specify` makes its spec from its name and its inputs, in the order of `inputs`."""

    name: str
    inputs: tuple[InputDeclaration, ...]
    specify: Callable[[str, tuple[OperatorInput, ...]], OperatorSpec]

    @property
    def reads(self) -> tuple[ReadNode, ...]:
        """The reads that the rows of all inputs come from."""
        return reads_of(*(each.node for each in self.inputs))

    @property
    def keyed_reads(self) -> tuple[ReadNode, ...]:
        """The reads of the inputs that are divided by key: event time depends only on these."""
        return reads_of(*(each.node for each in self.inputs if not each.broadcast))


@dataclass(frozen=True)
class SinkDeclaration:
    name: str
    sink: Sink
    node: Node


@dataclass
class Declarations:
    """Everything declared so far, in order, by name."""

    sources: dict[str, Source] = field(default_factory=dict)
    operators: dict[str, OperatorDeclaration] = field(default_factory=dict)
    sinks: dict[str, SinkDeclaration] = field(default_factory=dict)
    unnamed: dict[str, str] = field(default_factory=dict)
    """Kinds of the unnamed parts, by the names that were made for them."""

    def name_for(self, given: str | None, kind: str) -> str:
        """Return the given name, or kind plus declaration order; refuse a name that is taken or cannot be part of a
        path."""
        taken = {*self.sources, *self.operators, *self.sinks}
        if given is None:
            number = 1
            while f"{kind}-{number}" in taken:
                number += 1
            self.unnamed[f"{kind}-{number}"] = kind
            return f"{kind}-{number}"
        if not given or not all(c.isalnum() or c in "-_." for c in given) or given.startswith("."):
            raise JobRefused(
                f"name {given!r}: letters, digits, '-', '_' and '.' are allowed, and it may not begin with '.'"
            )
        if given == DEAD_LETTERS:
            raise JobRefused(f"name {given!r} is that of the dead letters' own sink; choose another")
        if given in taken:
            raise JobRefused(f"name {given!r} is used twice in this job; give each source, operator and sink its own")
        return given
