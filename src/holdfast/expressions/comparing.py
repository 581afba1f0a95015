"""Comparisons with Spark's rules: NaN equals NaN and is above every number, -0.0 equals 0.0, texts compare by bytes."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.choosing import both, chosen, either, first_true, negated
from holdfast.expressions.nodes import Binding, ExpressionRefused, Kernel, Term, Value, applied, constant, null_of
from holdfast.expressions.table import function
from holdfast.expressions.types import type_name


def _nan_equal(left: Value, right: Value) -> pa.Array:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _nan_less(left: Value, right: Value) -> pa.Array:
    return pc.or_(pc.less(left, right), pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))


_PLAIN: dict[str, Kernel] = {
    "eq": pc.equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
    "ne": pc.not_equal,
}
_FLOATS: dict[str, Kernel] = {
    "eq": _nan_equal,
    "ne": lambda left, right: pc.invert(_nan_equal(left, right)),
    "lt": _nan_less,
    "gt": lambda left, right: _nan_less(right, left),
    "le": lambda left, right: pc.invert(_nan_less(right, left)),
    "ge": lambda left, right: pc.invert(_nan_less(left, right)),
}
_TO_NUMBER: dict[str, Kernel] = {
    **_PLAIN,
    "gt": lambda left, right: pc.invert(pc.less_equal(left, right)),
    "ge": lambda left, right: pc.invert(pc.less(left, right)),
}
"""Comparisons of floating-point numbers whose right side is a number other than NaN."""


def compared(binder: Binding, how: str, left: Term, right: Term) -> Term:
    """Make a comparison. Raises `ExpressionRefused` for types that cannot be compared."""
    left, right = binder.together([left, right], f"the comparison {how}")
    if pa.types.is_null(left.type):
        return null_of(pa.bool_())
    return applied(pa.bool_(), _kernel(how, left, right), left, right)


def _kernel(how: str, left: Term, right: Term) -> Kernel:
    kind = left.type
    if pa.types.is_nested(kind):
        raise ExpressionRefused(f"values of {type_name(kind)} are not compared in expressions; use transform(…)")
    if not pa.types.is_floating(kind):
        return _PLAIN[how]
    other = None if right.constant is None else right.constant.as_py()
    return _FLOATS[how] if right.constant is None or other is None or other != other else _TO_NUMBER[how]


def _comparison(how: str) -> Callable[[Binding, Term, Term], Term]:
    return lambda binder, left, right: compared(binder, how, left, right)


equal, unequal, less, most, greater, least_of = (_comparison(each) for each in ("eq", "ne", "lt", "le", "gt", "ge"))


@function("equal_null", "any, any")
def is_same(binder: Binding, left: Term, right: Term) -> Term:
    """Make `<=>`, for which nulls are equal."""
    left, right = binder.together([left, right], "the comparison <=>")
    if pa.types.is_null(left.type):
        return constant(pa.scalar(True))
    kernel = _kernel("eq", left, right)

    def same(one: Value, other: Value) -> pa.Array:
        nulls = pc.and_(pc.is_null(one), pc.is_null(other))
        return pc.or_(pc.fill_null(kernel(one, other), False), nulls)

    return applied(pa.bool_(), same, left, right)


def is_other(binder: Binding, left: Term, right: Term) -> Term:
    return negated(binder, is_same(binder, left, right))


def is_in(binder: Binding, value: Term, given: Sequence[Term]) -> Term:
    """Make `IN` over a list."""
    value, *listed = binder.together([value, *given], "IN")
    constants = [each.constant for each in listed if each.constant is not None]
    if len(constants) < len(listed) or pa.types.is_floating(value.type) or pa.types.is_nested(value.type):
        found = compared(binder, "eq", value, listed[0])
        for each in listed[1:]:
            found = either(binder, found, compared(binder, "eq", value, each))
        return found
    known = pa.array([each.as_py() for each in constants if each.is_valid], value.type)
    has_null = len(known) < len(constants)

    def kernel(array: pa.Array) -> pa.Array:
        inside = pc.is_in(array, known)
        if has_null:
            inside = pc.if_else(inside, True, pa.scalar(None, pa.bool_()))
        return pc.if_else(array.is_valid(), inside, None)

    return applied(pa.bool_(), kernel, value)


@function("isnan", "number")
def isnan(_: Binding, value: Term) -> Term:
    if not pa.types.is_floating(value.type):
        return applied(pa.bool_(), lambda array: pc.and_(array.is_valid(), False), value)
    return applied(pa.bool_(), lambda array: pc.fill_null(pc.is_nan(array), False), value)


@function("nullif", "any, any")
def nullif(binder: Binding, value: Term, other: Term) -> Term:
    return chosen(binder, [compared(binder, "eq", value, other)], [null_of(pa.null()), value])


@function("nullifzero", "number")
def nullifzero(binder: Binding, value: Term) -> Term:
    return nullif(binder, value, constant(pa.scalar(0, pa.int32())))


@function("nanvl", "double, double")
def nanvl(binder: Binding, value: Term, other: Term) -> Term:
    return first_true([isnan(binder, value)], [other, value])


def _extreme(name: str, how: str) -> None:
    @function(name, "any, any, any*")
    def build(binder: Binding, *given: Term) -> Term:
        nodes = binder.together(given, name)
        kernel = _kernel(how, nodes[0], constant(pa.scalar(None, nodes[0].type)))

        def run(*values: Value) -> pa.Array:
            found = values[0]
            for each in values[1:]:
                better = pc.fill_null(kernel(each, found), False)
                found = pc.if_else(pc.or_(better, pc.is_null(found)), each, found)
            return found

        return applied(nodes[0].type, run, *nodes)


_extreme("greatest", "gt")
_extreme("least", "lt")

__all__ = ["both", "compared", "is_in", "is_other", "is_same"]
