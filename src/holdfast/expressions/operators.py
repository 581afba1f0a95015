"""Operators of Spark's SQL, by the classes of sqlglot's nodes, and access to fields and items."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from holdfast.expressions.arithmetic import divided, minus, negative, plus, product, remainder, whole_quotient
from holdfast.expressions.choosing import both, chosen, either, is_null, negated
from holdfast.expressions.comparing import (
    compared,
    equal,
    greater,
    is_in,
    is_other,
    is_same,
    least_of,
    less,
    most,
    unequal,
)
from holdfast.expressions.conversions import cast
from holdfast.expressions.nested import field_of, item_of
from holdfast.expressions.nodes import Binding, Term, applied
from holdfast.expressions.table import Build, found
from holdfast.expressions.types import wider_number


def _bits(kernel: Any) -> Build:
    def build(binder: Binding, left: Term, right: Term) -> Term:
        nodes = [binder.fitted(each, "integer", "an operand of a bitwise operator") for each in (left, right)]
        kind = pa.int32() if all(pa.types.is_null(each.type) for each in nodes) else None
        for each in nodes:
            if not pa.types.is_null(each.type):
                kind = each.type if kind is None else wider_number(kind, each.type, binder.settings.ansi)
        return applied(kind, kernel, *(cast(each, kind, binder.settings) for each in nodes))

    return build


def _bit_not(binder: Binding, node: Term) -> Term:
    node = binder.fitted(node, "integer", "the operand of ~")
    return applied(node.type, pc.bit_wise_not, node)


def _joined(binder: Binding, left: Term, right: Term) -> Term:
    return found("concat").node(binder, [left, right])


def _modulo(binder: Binding, left: Term, right: Term) -> Term:
    return remainder(binder, left, right)


def _quotient(binder: Binding, left: Term, right: Term) -> Term:
    return divided(binder, left, right)


def _shifted(name: str) -> Build:
    return lambda binder, left, right: found(name).node(binder, [left, right])


OPERATORS: dict[type[exp.Expression], Build] = {
    exp.Add: plus,
    exp.Sub: minus,
    exp.Mul: product,
    exp.Div: _quotient,
    exp.IntDiv: whole_quotient,
    exp.Mod: _modulo,
    exp.EQ: equal,
    exp.NEQ: unequal,
    exp.LT: less,
    exp.LTE: most,
    exp.GT: greater,
    exp.GTE: least_of,
    exp.NullSafeEQ: is_same,
    exp.NullSafeNEQ: is_other,
    exp.And: both,
    exp.Or: either,
    exp.Not: negated,
    exp.DPipe: _joined,
    exp.BitwiseAnd: _bits(pc.bit_wise_and),
    exp.BitwiseOr: _bits(pc.bit_wise_or),
    exp.BitwiseXor: _bits(pc.bit_wise_xor),
    exp.BitwiseNot: _bit_not,
    exp.BitwiseLeftShift: _shifted("shiftleft"),
    exp.BitwiseRightShift: _shifted("shiftright"),
}

__all__ = [
    "OPERATORS",
    "both",
    "chosen",
    "compared",
    "field_of",
    "is_in",
    "is_null",
    "is_same",
    "item_of",
    "negated",
    "negative",
]
