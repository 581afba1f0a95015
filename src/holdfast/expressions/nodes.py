"""Typed expressions: a tree of terms, each of which has its type and a function that computes its values over rows.

A term is prepared once, when an expression is bound to a schema; only `run` is called for each batch. Values are an
array with a value for each row, or a scalar if all rows have the same value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused

Kernel = Callable[..., pa.Array]
"""A function that computes the values of a term from the values of others."""
Value = Any
"""An array with a value for each row, or a scalar for all rows."""


class ExpressionRefused(JobRefused):
    """An expression that cannot be run. The message names the part, and says what to do."""


@dataclass(frozen=True)
class SqlSettings:
    """Settings of Spark that change results: `spark.sql.ansi.enabled` and `spark.sql.session.timeZone`."""

    ansi: bool = True
    zone: str = "UTC"


class Scope:
    """The rows over which terms run: columns by name, which are taken from a batch only when a term asks for them."""

    def __init__(self, column: Callable[[str], pa.Array], count: int) -> None:
        self._column = column
        self._known: dict[str, pa.Array] = {}
        self._values: dict[object, Value] = {}
        self.count = count

    def column(self, name: str) -> pa.Array:
        if name not in self._known:
            self._known[name] = self._column(name)
        return self._known[name]

    def once(self, part: object, run: "Callable[[Scope], Value]") -> Value:
        """Return the value of a part, which is computed only once."""
        if part not in self._values:
            self._values[part] = run(self)
        return self._values[part]

    def taken(self, places: pa.Array) -> "Scope":
        """Return a scope with the rows at these positions."""
        return Scope(lambda name: self.column(name).take(places), len(places))

    def with_columns(self, columns: Mapping[str, pa.Array]) -> "Scope":
        """Return a scope with further columns, which are the parameters of a lambda."""
        made = Scope(self.column, self.count)
        made._known.update(columns)
        return made


@dataclass(frozen=True)
class Term:
    """A part of an expression.

    `fails`: it raises `pa.ArrowInvalid` for some rows, so it runs only over the rows that need it.
    `costly`: it takes so long for each row that it, too, runs only over the rows that need it.
    `constant`: its value, if it is the same for all rows.
    """

    type: pa.DataType
    run: Callable[[Scope], Value]
    fails: bool = False
    constant: pa.Scalar | None = None
    name: str | None = None
    """The name that Spark gives it within `struct(…)`: of a column, a field, or an alias."""
    costly: bool = False
    digits: int | None = None
    """The number of digits of a literal whole number, which Spark uses as its precision in operations with decimals."""
    parts: "tuple[Term, str] | None" = None
    """The text and the separator of an array of a text's parts, so that a single part is found without the array."""

    @property
    def is_constant(self) -> bool:
        return self.constant is not None


class Binding(Protocol):
    """The part of the binder that functions use to make their terms."""

    settings: SqlSettings
    parameters: dict[str, Term]

    def bound(self, tree: Any) -> Term:
        """Return the term of a tree."""

    def fitted(self, node: Term, kind: str, place: str) -> Term:
        """Cast an argument to the type that a function takes."""

    def together(self, nodes: Sequence[Term], place: str) -> list[Term]:
        """Cast terms to their common type."""


class SharedTerm:
    """A term that may occur several times in an expression. Its value over the same rows is then computed once."""

    def __init__(self, term: Term) -> None:
        self._run = term.run
        self._uses = 0
        self._term = term if term.is_constant else replace(term, run=self._value)

    def used(self) -> Term:
        """Return the term for another occurrence."""
        self._uses += 1
        return self._term

    def _value(self, rows: Scope) -> Value:
        return rows.once(self, self._run) if self._uses > 1 else self._run(rows)


def constant(value: pa.Scalar, digits: int | None = None) -> Term:
    return Term(value.type, lambda _: value, constant=value, digits=digits)


def null_of(kind: pa.DataType) -> Term:
    return constant(pa.scalar(None, kind))


def array_of(value: Value, count: int) -> pa.Array:
    """Return the value as an array with a value for each row."""
    if isinstance(value, pa.Scalar):
        return (
            pa.repeat(value, count)
            if value.is_valid or not pa.types.is_nested(value.type)
            else nulls(value.type, count)
        )
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def nulls(kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind)


_ONE = Scope(lambda name: nulls(pa.null(), 1), 1)


def applied(
    kind: pa.DataType, kernel: Callable[..., pa.Array], *inputs: Term, fails: bool = False, costly: bool = False
) -> Term:
    """Make the term that applies a kernel to the values of terms. A kernel gets at least one array among scalars."""
    over_constants = all(each.is_constant for each in inputs)
    failing = fails or any(each.fails for each in inputs)

    def run(rows: Scope) -> Value:
        values = [each.run(rows) for each in inputs]
        if over_constants:
            values = [array_of(each, rows.count) for each in values]
        return kernel(*values)

    if over_constants:
        try:
            value = array_of(run(_ONE), 1)[0]
        except pa.ArrowInvalid:
            return Term(kind, run, True)
        return constant(value)
    return Term(kind, run, failing, costly=costly or any(each.costly for each in inputs))


def with_arrays(kernel: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    """Make a kernel that receives only arrays, even for values that are the same for all rows."""

    def run(*values: Value) -> pa.Array:
        count = max(len(each) for each in values if not isinstance(each, pa.Scalar))
        return kernel(*(array_of(each, count) for each in values))

    return run


def failed_where(wrong: Value, message: str, *shown: Value) -> None:
    """Raise `pa.ArrowInvalid` if a row is wrong. The message shows the values of the first wrong row."""
    if not isinstance(wrong, pa.Scalar) and pc.any(wrong).as_py():
        place = pc.index(wrong, True).as_py()
        values = [each if isinstance(each, pa.Scalar) else each[place] for each in shown]
        raise pa.ArrowInvalid(message.format(*(repr(each.as_py()) for each in values)))


__all__ = [
    "ExpressionRefused",
    "Scope",
    "SharedTerm",
    "SqlSettings",
    "Term",
    "Value",
    "applied",
    "array_of",
    "constant",
    "failed_where",
    "null_of",
    "nulls",
    "with_arrays",
]
