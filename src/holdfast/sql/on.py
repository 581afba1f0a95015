"""`left.join(right, on=…)` as a join of keyed streams, for a condition in Spark's SQL or a `Column` of PySpark."""

from collections.abc import Sequence
from typing import Any

from holdfast.errors import JobRefused, SettingsError
from holdfast.expressions.declared import declared
from holdfast.functions.joins.declared import check_how
from holdfast.sql.joining import Join
from holdfast.sql.relations import Names, relation_of
from holdfast.sql.scopes import Table, all_of, conditions

LEFT_NAME, RIGHT_NAME = "left", "right"
"""The names of the sides in a condition."""


def joined_on(left: Any, right: Any, on: Any, how: str, **options: Any) -> Any:
    """Return the joined rows of two streams. Raises `SettingsError` or `JobRefused`."""
    check_how(how)
    if type(right) is not type(left):
        raise SettingsError(f"join({right!r}): expected a stream; join keyed streams with key_by(…).join(…)")
    if right._job is not left._job:
        raise JobRefused("join of streams of different jobs: read both sources in one job")
    names = _columns(on)
    if names:
        return left.key_by(*names).join(right.key_by(*names), how=how, **options)
    tree = declared(on, left._job.expression_settings, "join(on=…)").tree
    tables = {LEFT_NAME: Table(left), RIGHT_NAME: Table(right)}
    seen = Names(tables)
    wanted = all_of([seen.qualified(each) for each in conditions(tree)])
    sides = (relation_of(LEFT_NAME, tables[LEFT_NAME]), relation_of(RIGHT_NAME, tables[RIGHT_NAME]))
    given = {name: value for name, value in options.items() if name != "suffix" or value is not None}
    return Join(tree, sides, how, None, options={"suffix": None, **given}).relation(wanted).stream


def _columns(on: Any) -> Sequence[str]:
    """Return the columns that both sides share if `on` gives their names, and no columns otherwise."""
    if isinstance(on, str) and on.isidentifier():
        return (on,)
    if isinstance(on, list | tuple) and on and all(isinstance(each, str) for each in on):
        return tuple(on)
    return ()
