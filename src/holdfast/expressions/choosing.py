"""Conditions: three-valued AND, OR and NOT, CASE, and values that are computed only for the rows that need them.

A part that may fail runs only over the rows that need it, so that `CASE WHEN b <> 0 THEN a / b END` fails for no row.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.nodes import (
    Binding,
    ExpressionRefused,
    Scope,
    Term,
    Value,
    applied,
    array_of,
    constant,
    null_of,
)
from holdfast.expressions.table import function
from holdfast.expressions.types import type_name


def condition(node: Term, place: str) -> Term:
    """Return the term as a condition. Raises `ExpressionRefused` if it is no boolean."""
    if pa.types.is_null(node.type):
        return null_of(pa.bool_())
    if node.type != pa.bool_():
        raise ExpressionRefused(f"{place} is {type_name(node.type)}; expected a condition, BOOLEAN")
    return node


def both(_: Binding, left: Term, right: Term) -> Term:
    return _joined("AND", left, right, pc.and_kleene, False)


def either(_: Binding, left: Term, right: Term) -> Term:
    return _joined("OR", left, right, pc.or_kleene, True)


def _joined(word: str, left: Term, right: Term, kernel: object, decides: bool) -> Term:
    left, right = condition(left, f"the left of {word}"), condition(right, f"the right of {word}")
    if not right.fails:
        return applied(pa.bool_(), kernel, left, right)  # type: ignore[arg-type]

    def run(rows: Scope) -> Value:
        first = array_of(left.run(rows), rows.count)
        needed = pc.fill_null(pc.not_equal(first, decides), True)
        second = _scattered([(needed, right)], rows, pa.bool_())
        return kernel(first, pc.if_else(needed, second, decides))  # type: ignore[operator]

    return Term(pa.bool_(), run, True)


def negated(_: Binding, node: Term) -> Term:
    return applied(pa.bool_(), pc.invert, condition(node, "the operand of NOT"))


def chosen(binder: Binding, conditions: Sequence[Term], values: Sequence[Term]) -> Term:
    """Make `CASE`: the value of the first condition that is true, or the last value."""
    conditions = [condition(each, "a condition of CASE") for each in conditions]
    values = binder.together(values, "CASE")
    return first_true(conditions, values)


def first_true(conditions: Sequence[Term], values: Sequence[Term]) -> Term:
    kind = values[0].type
    nodes = [*conditions, *values]
    if not any(each.fails or each.costly for each in [*conditions[1:], *values]) and not pa.types.is_nested(kind):
        return _without_failures(conditions, values)

    def run(rows: Scope) -> Value:
        open_rows = np.ones(rows.count, bool)
        parts = []
        for place, each in enumerate(conditions):
            where = pa.array(open_rows) if place else None
            found = each.run(rows) if where is None else _scattered([(where, each)], rows, pa.bool_())
            true = pc.fill_null(array_of(found, rows.count), False).to_numpy(zero_copy_only=False) & open_rows
            parts.append((pa.array(true), values[place]))
            open_rows &= ~true
        parts.append((pa.array(open_rows), values[-1]))
        return _scattered(parts, rows, kind)

    return Term(kind, run, any(each.fails for each in nodes))


def _without_failures(conditions: Sequence[Term], values: Sequence[Term]) -> Term:
    count = len(conditions)

    def kernel(*given: Value) -> pa.Array:
        made = given[-1]
        for place in reversed(range(count)):
            made = pc.if_else(_true(given[place]), given[count + place], made)
        return made

    return applied(values[0].type, kernel, *conditions, *values)


def _true(found: Value) -> Value:
    return pc.fill_null(found, False)


def _scattered(parts: Sequence[tuple[pa.Array, Term]], rows: Scope, kind: pa.DataType) -> pa.Array:
    """Run each term over its own rows only; rows that belong to no term are null."""
    arrays, places = [], []
    for where, node in parts:
        chosen_rows = np.flatnonzero(where.to_numpy(zero_copy_only=False))
        if not len(chosen_rows):
            continue
        some = rows if len(chosen_rows) == rows.count else rows.taken(pa.array(chosen_rows))
        arrays.append(array_of(node.run(some), len(chosen_rows)))
        places.append(chosen_rows)
    if not arrays:
        return pa.nulls(rows.count, kind)
    if len(arrays) == 1 and len(places[0]) == rows.count:
        return arrays[0]
    at = np.full(rows.count, -1, np.int64)
    at[np.concatenate(places)] = np.arange(sum(map(len, places)))
    found = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    return found.take(pa.array(at, mask=at < 0))


def is_null(_: Binding, node: Term) -> Term:
    return applied(pa.bool_(), pc.is_null, node)


def is_not_null(_: Binding, node: Term) -> Term:
    return applied(pa.bool_(), pc.is_valid, node)


function("isnull", "any")(is_null)
function("isnotnull", "any")(is_not_null)


@function("coalesce ifnull nvl", "any, any*")
def coalesce(binder: Binding, *given: Term) -> Term:
    values = binder.together(given, "coalesce")
    if any(each.fails for each in values[1:]) or pa.types.is_nested(values[0].type):
        return first_true([is_not_null(binder, each) for each in values[:-1]], values)
    return applied(values[0].type, pc.coalesce, *values)


@function("nvl2", "any, any, any")
def nvl2(binder: Binding, tested: Term, there: Term, missing: Term) -> Term:
    return chosen(binder, [is_not_null(binder, tested)], [there, missing])


@function("raise_error", "string")
def raise_error(_: Binding, message: Term) -> Term:
    def run(rows: Scope) -> Value:
        if rows.count:
            raise pa.ArrowInvalid(str(array_of(message.run(rows), rows.count)[0].as_py()))
        return pa.nulls(0)

    return Term(pa.null(), run, True)


@function("zeroifnull", "number")
def zeroifnull(binder: Binding, value: Term) -> Term:
    return coalesce(binder, value, constant(pa.scalar(0, pa.int32())))
