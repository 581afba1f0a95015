"""The columns of `Stream.select` as the user gave them: names, texts in Spark's SQL, and expressions by name. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import SettingsError
from holdfast.expressions.declared import SqlExpression, declared
from holdfast.expressions.nodes import SqlSettings
from holdfast.graph.projecting import Projection


def selected(given: Sequence[Any], computed: Mapping[str, Any], settings: SqlSettings) -> Projection:
    """Return the step that makes these columns. Raises `SettingsError`."""
    named = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    if not named and not computed:
        raise SettingsError("select() got no column; name a column")
    added = bool(named) and isinstance(named[0], str) and named[0] == "*"
    columns: dict[str, Any] = {}
    for each in named[1:] if added else named:
        name, made = _column(each, settings)
        if name in columns or name in computed:
            raise SettingsError(f"select({each!r}, …): name each column once")
        columns[name] = made
    for name, each in computed.items():
        columns[name] = declared(each, settings, f"select({name}=…)")
        _parse(columns[name])
    return Projection(columns, added)


def _column(given: Any, settings: SqlSettings) -> tuple[str, Any]:
    """Return the name and the expression of a column; a text without a name of its own is the name of a column."""
    if isinstance(given, str) and (given.isidentifier() or not given):
        if not given:
            raise SettingsError("select('', …): name each column once")
        return given, None
    made = declared(given, settings, "select(…)")
    if not isinstance(made, SqlExpression):
        raise SettingsError(f"select({given}, …): an expression of PyArrow needs a name: select(name={given})")
    name = made.name
    if name is None and not isinstance(given, str):
        raise SettingsError(f"select({made}, …): give the Column a name with .alias(…)")
    return (made.text, None) if name is None else (name, made)


def _parse(made: Any) -> None:
    if isinstance(made, SqlExpression):
        _ = made.tree
