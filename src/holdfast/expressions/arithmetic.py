"""Arithmetic of whole numbers, floating-point numbers and decimals, with Spark's overflow and division by zero."""

from collections.abc import Callable
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions import times
from holdfast.expressions.conversions import cast, fitted_decimal, mode_of
from holdfast.expressions.nodes import (
    Binding,
    ExpressionRefused,
    Kernel,
    Term,
    Value,
    applied,
    array_of,
    failed_where,
    with_arrays,
)
from holdfast.expressions.table import function
from holdfast.expressions.types import bounded, decimal_of, is_integer, is_number, type_name, wider_number

_EXACT = Context(prec=200)
_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_WRAPPING = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


def _numbers(binder: Binding, sign: str, left: Term, right: Term) -> tuple[Term, Term]:
    made = []
    for each in (left, right):
        if pa.types.is_null(each.type):
            other = right if each is left else left
            each = cast(each, other.type if is_number(other.type) else pa.float64(), binder.settings)
        made.append(binder.fitted(each, "number", f"an operand of {sign}"))
    texts = [each.type == pa.string() for each in (left, right)]
    if any(texts) and not all(texts):
        other = made[texts.index(False)]
        if is_integer(other.type):
            text = cast(left if texts[0] else right, pa.int64(), binder.settings)
            made[texts.index(True)] = text
    return made[0], made[1]


def _are_decimals(left: Term, right: Term) -> bool:
    kinds = (left.type, right.type)
    return any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds))


def calculated(binder: Binding, sign: str, left: Term, right: Term, mode: str | None = None) -> Term:
    """Make `+`, `-` or `*` of two numbers, or of a time and an interval."""
    timed = times.calculated(binder, sign, left, right)
    if timed is not None:
        return timed
    left, right = _numbers(binder, sign, left, right)
    mode = mode or mode_of(binder.settings)
    if _are_decimals(left, right):
        return _decimals(binder, sign, left, right, mode)
    kind = wider_number(left.type, right.type, binder.settings.ansi)
    left, right = cast(left, kind, binder.settings), cast(right, kind, binder.settings)
    if pa.types.is_floating(kind) or mode == "legacy":
        return applied(kind, _WRAPPING[sign], left, right)
    if mode == "ansi":
        return applied(kind, _CHECKED[sign], left, right, fails=True)
    return applied(kind, with_arrays(_tried(_CHECKED[sign], _WRAPPING[sign], sign)), left, right)


def _tried(checked: Kernel, wrapping: Kernel, sign: str) -> Kernel:
    """Make a kernel whose result is null for values that overflow."""

    def kernel(left: pa.Array, right: pa.Array) -> pa.Array:
        try:
            return checked(left, right)
        except pa.ArrowInvalid:
            wide = pa.decimal256(40, 0)
            exact = wrapping(
                left.cast(pa.decimal128(20, 0)).cast(wide), right.cast(pa.decimal128(20, 0)).cast(pa.decimal256(35, 0))
            )
            found = wrapping(left, right)
            same = pc.equal(found.cast(pa.decimal128(20, 0)).cast(pa.decimal256(exact.type.precision, 0)), exact)
            return pc.if_else(same, found, None)

    return kernel


def _decimals(binder: Binding, sign: str, left: Term, right: Term, mode: str) -> Term:
    one, other = decimal_of(left.type, left.digits), decimal_of(right.type, right.digits)
    left, right = cast(left, one, binder.settings), cast(right, other, binder.settings)
    scale = max(one.scale, other.scale)
    if sign == "*":
        kind = bounded(one.precision + other.precision + 1, one.scale + other.scale)
    else:
        kind = bounded(max(one.precision - one.scale, other.precision - other.scale) + scale + 1, scale)

    def long_product(first: pa.Array, second: pa.Array) -> pa.Array:
        pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
        made = [None if a is None or b is None else _EXACT.multiply(a, b) for a, b in pairs]
        return fitted_decimal(pa.array(made, pa.decimal256(76, one.scale + other.scale)), kind, mode)  # type: ignore[arg-type]

    if sign == "*" and one.precision + other.precision + 1 > 76:
        return applied(kind, with_arrays(long_product), left, right, fails=mode == "ansi")

    def kernel(first: Value, second: Value) -> pa.Array:
        wide = [each.cast(pa.decimal256(each.type.precision, each.type.scale)) for each in (first, second)]
        return fitted_decimal(_WRAPPING[sign](*wide), kind, mode)  # type: ignore[arg-type]

    exact = one.precision + other.precision + 1 <= 38 and sign == "*"
    exact = exact or (sign != "*" and kind.scale == scale and kind.precision < 38)
    if exact:
        return applied(kind, lambda first, second: _WRAPPING[sign](first, second).cast(kind), left, right)
    return applied(kind, kernel, left, right, fails=mode == "ansi")


def _without_zero(divisor: Value, mode: str, rows: int) -> Value:
    """Return divisors without zeros, which are an error in ANSI mode, and give null in others. `rows`: their number."""
    is_decimal = pa.types.is_decimal(divisor.type)
    zero = pc.equal(divisor, pa.scalar(Decimal(0) if is_decimal else 0, divisor.type))
    if mode == "ansi":
        failed_where(array_of(zero, rows), "division by zero")
        return divisor
    return pc.if_else(zero, pa.scalar(None, divisor.type), divisor)


def divided(binder: Binding, left: Term, right: Term, mode: str | None = None) -> Term:
    """Make `/`, whose result is a DOUBLE, or a DECIMAL for decimals."""
    timed = times.calculated(binder, "/", left, right)
    if timed is not None:
        return timed
    left, right = _numbers(binder, "/", left, right)
    mode = mode or mode_of(binder.settings)
    if _are_decimals(left, right):
        return _decimal_quotient(binder, left, right, mode)
    left, right = (cast(each, pa.float64(), binder.settings) for each in (left, right))
    zero_free = _never_zero(right)

    def kernel(first: Value, second: Value) -> pa.Array:
        return pc.divide(first, second if zero_free else _needed(first, second, mode))

    return applied(pa.float64(), kernel, left, right, fails=mode == "ansi" and not zero_free)


def _needed(first: Value, second: Value, mode: str) -> Value:
    """Check only divisors that have a dividend, since null divided by zero is null."""
    rows = len(second if isinstance(first, pa.Scalar) else first)
    if mode != "ansi" or (isinstance(first, pa.Scalar) and first.is_valid) or not _has_nulls(first):
        return _without_zero(second, mode, rows)
    return _without_zero(pc.if_else(pc.is_valid(first), second, None), mode, rows)


def _has_nulls(value: Value) -> bool:
    return not value.is_valid if isinstance(value, pa.Scalar) else value.null_count > 0


def _never_zero(node: Term) -> bool:
    return node.constant is not None and node.constant.is_valid and bool(node.constant.as_py())


def _decimal_quotient(binder: Binding, left: Term, right: Term, mode: str) -> Term:
    one, other = decimal_of(left.type, left.digits), decimal_of(right.type, right.digits)
    left, right = cast(left, one, binder.settings), cast(right, other, binder.settings)
    scale = max(6, one.scale + other.precision + 1)
    kind = bounded(one.precision - one.scale + other.scale + scale, scale)

    def kernel(first: pa.Array, second: pa.Array) -> pa.Array:
        second = _needed(first, second, mode)
        shift = kind.scale + 1 + other.scale
        values = [
            None if a is None or b is None else _quotient(a, b, one.scale, shift)
            for a, b in zip(first.to_pylist(), second.to_pylist(), strict=True)
        ]
        return fitted_decimal(_as_decimals(values, kind.scale + 1), kind, mode)  # type: ignore[arg-type]

    return applied(kind, with_arrays(kernel), left, right, fails=mode == "ansi")


def _quotient(one: object, other: object, scale: int, shift: int) -> int:
    """Divide two decimals as whole numbers, rounded towards zero, with `shift` more digits."""
    assert isinstance(one, Decimal) and isinstance(other, Decimal)
    top = int(_EXACT.scaleb(one, Decimal(scale))) * 10 ** (shift - scale if shift >= scale else 0)
    bottom = int(_EXACT.scaleb(other, Decimal(-int(other.as_tuple().exponent))))
    made = int(abs(top) // abs(bottom))
    return made if (top < 0) == (bottom < 0) else -made


def _as_decimals(values: list[int | None], scale: int) -> pa.Array:
    return pa.array(
        [None if each is None else _EXACT.scaleb(Decimal(each), Decimal(-scale)) for each in values],
        pa.decimal256(76, scale),
    )


def whole_quotient(binder: Binding, left: Term, right: Term) -> Term:
    """Make `div`, the whole part of a quotient, a BIGINT."""
    left, right = _numbers(binder, "div", left, right)
    if not is_integer(left.type) or not is_integer(right.type):
        raise ExpressionRefused(
            f"div of {type_name(left.type)} and {type_name(right.type)} is not supported here; cast both to BIGINT"
        )
    left, right = (cast(each, pa.int64(), binder.settings) for each in (left, right))
    mode = mode_of(binder.settings)

    def kernel(first: Value, second: Value) -> pa.Array:
        second = _needed(first, second, mode)
        if mode == "ansi":
            return pc.divide_checked(first, second)
        negative = pc.equal(second, -1)
        return pc.if_else(negative, pc.negate(first), pc.divide(first, pc.if_else(negative, 1, second)))

    return applied(pa.int64(), kernel, left, right, fails=mode == "ansi")


def remainder(binder: Binding, left: Term, right: Term, mode: str | None = None, positive: bool = False) -> Term:
    """Make `%`, which has the sign of the dividend, or `pmod`, which is not negative."""
    left, right = _numbers(binder, "%", left, right)
    mode = mode or mode_of(binder.settings)
    if _are_decimals(left, right):
        one, other = decimal_of(left.type, left.digits), decimal_of(right.type, right.digits)
        scale = max(one.scale, other.scale)
        kind = bounded(min(one.precision - one.scale, other.precision - other.scale) + scale, scale)
        common = bounded(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)
        if positive or common.scale != scale:
            raise ExpressionRefused(
                "this remainder of decimals is not supported in expressions; cast them to DOUBLE, or use transform(…)"
            )
        left, right = cast(left, common, binder.settings), cast(right, common, binder.settings)
    else:
        kind = common = wider_number(left.type, right.type, binder.settings.ansi)
        left, right = cast(left, kind, binder.settings), cast(right, kind, binder.settings)

    def kernel(first: pa.Array, second: pa.Array) -> pa.Array:
        second = _needed(first, second, mode)
        if pa.types.is_decimal(common):
            exact = [
                None if a is None or b is None else _EXACT.remainder(a, b)
                for a, b in zip(first.to_pylist(), second.to_pylist(), strict=True)
            ]
            return pa.array(exact, common).cast(kind)
        valid = pc.and_(first.is_valid(), second.is_valid())
        a = pc.fill_null(first, 0).to_numpy(zero_copy_only=False)
        b = pc.fill_null(second, 1).to_numpy(zero_copy_only=False)
        with np.errstate(all="ignore"):
            found = np.fmod(a, np.where(b == -1, 1, b)) if is_integer(kind) else np.fmod(a, b)
            if positive:
                found = np.where(
                    found < 0, np.fmod(found + b, np.where(b == -1, 1, b) if is_integer(kind) else b), found
                )
        return pc.if_else(valid, pa.array(found.astype(a.dtype), kind), None)

    return applied(kind, with_arrays(kernel), left, right, fails=mode == "ansi" and not _never_zero(right))


def negative(binder: Binding, node: Term) -> Term:
    if pa.types.is_duration(node.type):
        return applied(node.type, lambda array: pc.negate(array.cast(pa.int64())).cast(node.type), node)
    node = binder.fitted(_known(binder, node), "number", "the operand of -")
    if is_integer(node.type) and binder.settings.ansi:
        return applied(node.type, pc.negate_checked, node, fails=True)
    return applied(node.type, pc.negate, node)


def _signed(sign: str) -> Callable[[Binding, Term, Term], Term]:
    return lambda binder, left, right: calculated(binder, sign, left, right)


plus, minus, product = _signed("+"), _signed("-"), _signed("*")


def _try(name: str, sign: str) -> None:
    @function(name, "any, any")
    def build(binder: Binding, left: Term, right: Term) -> Term:
        if sign == "/":
            return divided(binder, left, right, "try")
        if sign == "%":
            return remainder(binder, left, right, "try")
        return calculated(binder, sign, left, right, "try")


for _name, _sign in (
    ("try_add", "+"),
    ("try_subtract", "-"),
    ("try_multiply", "*"),
    ("try_divide", "/"),
    ("try_mod", "%"),
):
    _try(_name, _sign)


@function("mod", "number, number")
def mod(binder: Binding, left: Term, right: Term) -> Term:
    return remainder(binder, left, right)


@function("pmod", "number, number")
def pmod(binder: Binding, left: Term, right: Term) -> Term:
    return remainder(binder, left, right, positive=True)


@function("negative", "number")
def negative_of(binder: Binding, node: Term) -> Term:
    return negative(binder, node)


@function("positive", "number")
def positive_of(_: Binding, node: Term) -> Term:
    return node


def _known(binder: Binding, node: Term) -> Term:
    """Return a null of unknown type as a DOUBLE, and other terms unchanged."""
    return cast(node, pa.float64(), binder.settings) if pa.types.is_null(node.type) else node


@function("abs", "number")
def absolute(binder: Binding, node: Term) -> Term:
    node = _known(binder, node)
    if is_integer(node.type) and binder.settings.ansi:
        return applied(node.type, pc.abs_checked, node, fails=True)
    return applied(node.type, pc.abs, node)
