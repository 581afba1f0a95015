"""Functions of numbers."""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.conversions import fitted_decimal
from holdfast.expressions.mapping import mapped, mapping
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, constant, failed_where, with_arrays
from holdfast.expressions.table import function, simple
from holdfast.expressions.types import bounded, is_integer, type_name

DOUBLE = pa.float64()


def _numpy(names: str, fn: Callable[..., Any], count: int = 1, null_if: Callable[..., Any] | None = None) -> None:
    """Add a function of doubles to the table. `null_if` selects the values for which the result is null."""

    def kernel(*arrays: pa.Array) -> pa.Array:
        values = [pc.fill_null(each, 1.0).to_numpy(zero_copy_only=False) for each in arrays]
        with np.errstate(all="ignore"):
            found = fn(*values)
            missing = np.zeros(len(found), bool) if null_if is None else null_if(*values)
        for each in arrays:
            missing = missing | each.is_null().to_numpy(zero_copy_only=False)
        return pa.array(found, DOUBLE, mask=missing)

    kernel.__module__ = __name__
    simple(names, ", ".join(["double"] * count), DOUBLE, kernel, arrays=True)


def _each(fn: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(fn, otypes=[float])


_numpy("sqrt", np.sqrt)
_numpy("cbrt", np.cbrt)
_numpy("exp", np.exp)
_numpy("expm1", np.expm1)
_numpy("ln", np.log, null_if=lambda x: x <= 0)
_numpy("log10", np.log10, null_if=lambda x: x <= 0)
_numpy("log2", np.log2, null_if=lambda x: x <= 0)
_numpy("log1p", np.log1p, null_if=lambda x: x <= -1)
_numpy("sin", np.sin)
_numpy("cos", np.cos)
_numpy("tan", np.tan)
_numpy("asin", np.arcsin)
_numpy("acos", np.arccos)
_numpy("atan", np.arctan)
_numpy("sinh", np.sinh)
_numpy("cosh", np.cosh)
_numpy("tanh", np.tanh)
_numpy("asinh", np.arcsinh)
_numpy("acosh", np.arccosh)
_numpy("atanh", np.arctanh)
_numpy("cot", lambda x: 1.0 / np.tan(x))
_numpy("sec", lambda x: 1.0 / np.cos(x))
_numpy("csc", lambda x: 1.0 / np.sin(x))
_numpy("degrees", np.degrees)
_numpy("radians", lambda x: x / 180.0 * math.pi)
_numpy("rint", np.rint)
_numpy("atan2", lambda y, x: np.arctan2(y + 0.0, x + 0.0), 2)
_numpy("hypot", np.hypot, 2)


def _power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Return powers as Java does: 1 to the power of NaN or of infinity is NaN."""
    found = np.power(base, exponent)
    return np.where((np.abs(base) == 1) & ~np.isfinite(exponent), np.nan, found)


_numpy("pow power", _power, 2)


@function("log", "double, double?")
def log(_: Binding, first: Term, second: Term | None = None) -> Term:
    def kernel(*arrays: pa.Array) -> pa.Array:
        values = [pc.fill_null(each, 1.0).to_numpy(zero_copy_only=False) for each in arrays]
        missing = np.zeros(len(values[0]), bool)
        for value, each in zip(values, arrays, strict=True):
            missing |= (value <= 0) | each.is_null().to_numpy(zero_copy_only=False)
        with np.errstate(all="ignore"):
            found = np.log(values[0]) if len(values) == 1 else np.log(values[1]) / np.log(values[0])
        return pa.array(found, DOUBLE, mask=missing)

    return applied(DOUBLE, with_arrays(kernel), first, *([] if second is None else [second]))


@function("sign signum", "double")
def sign(_: Binding, node: Term) -> Term:
    return applied(DOUBLE, with_arrays(lambda array: pc.if_else(pc.equal(array, 0.0), array, pc.sign(array))), node)


@function("e")
def e(_: Binding) -> Term:
    return constant(pa.scalar(math.e))


@function("pi")
def pi(_: Binding) -> Term:
    return constant(pa.scalar(math.pi))


def _to_whole(names: str, kernel: Callable[..., Any]) -> None:
    @function(names, "number")
    def build(binder: Binding, node: Term) -> Term:
        ansi = binder.settings.ansi
        if is_integer(node.type):
            return applied(pa.int64(), lambda array: array.cast(pa.int64()), node)
        if pa.types.is_decimal(node.type):
            kind = bounded(node.type.precision - node.type.scale + 1, 0)
            up = "up" if names.startswith("ceil") else "down"

            def of_decimals(array: pa.Array) -> pa.Array:
                wide = pc.round(array.cast(pa.decimal256(node.type.precision + 2, node.type.scale)), 0, up)
                return wide.cast(pa.decimal256(70, 0)).cast(kind)

            return applied(kind, with_arrays(of_decimals), node)

        def of_floats(array: pa.Array) -> pa.Array:
            found = kernel(pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False).astype(np.float64))
            top = 2.0**63
            if ansi and ((found < -top) | (found >= top)).any():
                raise pa.ArrowInvalid(f"{names.split()[0]}: a number is out of the range of BIGINT")
            inside = np.clip(np.nan_to_num(found, nan=0.0), -top, np.nextafter(top, 0)).astype(np.int64)
            return pa.array(
                np.where(found >= top, 2**63 - 1, inside),
                pa.int64(),
                mask=array.is_null().to_numpy(zero_copy_only=False),
            )

        return applied(pa.int64(), with_arrays(of_floats), node, fails=ansi)


_to_whole("ceil ceiling", np.ceil)
_to_whole("floor", np.floor)


def _rounding(name: str, how: str, arrow: Any) -> None:
    @function(name, "number, int?")
    def build(binder: Binding, node: Term, digits: Term | None = None) -> Term:
        if digits is not None and (digits.constant is None or not digits.constant.is_valid):
            raise ExpressionRefused(f"{name}: the number of digits has to be a literal")
        places = 0 if digits is None else int(digits.constant.as_py())  # type: ignore[union-attr]
        if is_integer(node.type):
            if places >= 0:
                return node
            return _rounded_whole(binder, node, places, how)
        if pa.types.is_decimal(node.type):
            scale = min(node.type.scale, max(places, 0))
            if places < 0:
                raise ExpressionRefused(
                    f"{name} of {type_name(node.type)} to {places} digits is not supported in expressions"
                )
            kind = bounded(node.type.precision - node.type.scale + scale + 1, scale)
            if places >= node.type.scale:
                kind = bounded(node.type.precision - node.type.scale + node.type.scale + 1, node.type.scale)
                return applied(kind, lambda array: array.cast(kind), node)

            def of_decimals(array: pa.Array) -> pa.Array:
                wide = pc.round(array.cast(pa.decimal256(node.type.precision + 2, node.type.scale)), scale, arrow)
                return fitted_decimal(wide, kind, "legacy")

            return applied(kind, with_arrays(of_decimals), node)

        def rounded(value: float) -> float:
            if not math.isfinite(value):
                return value
            text = repr(value) if node.type == DOUBLE else str(np.float32(value))
            return float(_quantized(Decimal(text), places, how)) + 0.0

        return applied(node.type, with_arrays(lambda array: mapped(array, rounded, node.type)), node)


def _quantized(value: Decimal, places: int, how: str) -> Decimal:
    from decimal import Context

    return value.quantize(Decimal(1).scaleb(-places), how, Context(prec=800))


def _rounded_whole(binder: Binding, node: Term, places: int, how: str) -> Term:
    bits = node.type.bit_width

    def rounded(value: int) -> int:
        made = int(_quantized(Decimal(value), places, how))
        if not -(2 ** (bits - 1)) <= made < 2 ** (bits - 1):
            if binder.settings.ansi:
                raise pa.ArrowInvalid(
                    f"{value} rounded to {places} digits is out of the range of {type_name(node.type)}"
                )
            made = (made + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        return made

    return applied(
        node.type, with_arrays(lambda array: mapped(array, rounded, node.type)), node, fails=binder.settings.ansi
    )


_rounding("round", ROUND_HALF_UP, "half_towards_infinity")
_rounding("bround", ROUND_HALF_EVEN, "half_to_even")


def _shift(name: str, fn: Callable[[np.ndarray, np.ndarray, int], np.ndarray]) -> None:
    @function(name, "integer, int")
    def build(binder: Binding, node: Term, count: Term) -> Term:
        from holdfast.expressions.conversions import cast

        kind = node.type if node.type == pa.int64() else pa.int32()

        def kernel(values: pa.Array, counts: pa.Array) -> pa.Array:
            bits = kind.bit_width
            number = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
            by = pc.fill_null(counts, 0).to_numpy(zero_copy_only=False).astype(number.dtype) & (bits - 1)
            missing = pc.or_(values.is_null(), counts.is_null()).to_numpy(zero_copy_only=False)
            return pa.array(fn(number, by, bits), kind, mask=missing)

        return applied(kind, with_arrays(kernel), cast(node, kind, binder.settings), count)


_shift("shiftleft", lambda number, by, _: np.left_shift(number, by))
_shift("shiftright", lambda number, by, _: np.right_shift(number, by))
_shift(
    "shiftrightunsigned",
    lambda number, by, bits: np.right_shift(number.view(f"u{bits // 8}"), by.view(f"u{bits // 8}")).view(
        f"i{bits // 8}"
    ),
)


@function("bit_count", "integer")
def bit_count(_: Binding, node: Term) -> Term:
    def kernel(array: pa.Array) -> pa.Array:
        wide = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        return pa.array(
            np.bitwise_count(wide.view(np.uint64)).astype(np.int32), mask=array.is_null().to_numpy(zero_copy_only=False)
        )

    return applied(pa.int32(), with_arrays(kernel), node)


@function("bit_get getbit", "integer, int")
def bit_get(_: Binding, node: Term, place: Term) -> Term:
    bits = node.type.bit_width

    def kernel(values: pa.Array, places: pa.Array) -> pa.Array:
        outside = pc.or_(pc.less(places, 0), pc.greater_equal(places, bits))
        failed_where(pc.and_(values.is_valid(), outside), f"there is no bit {{}} among {bits}", places)
        number, by = (
            pc.fill_null(each, 0).to_numpy(zero_copy_only=False).astype(np.int64) for each in (values, places)
        )
        missing = pc.or_(values.is_null(), places.is_null()).to_numpy(zero_copy_only=False)
        return pa.array(np.right_shift(number, by & 63) & 1, pa.int8(), mask=missing)

    return applied(pa.int8(), with_arrays(kernel), node, place, fails=True)


def _per_value(names: str, takes: str, gives: pa.DataType, fn: Callable[..., Any], fails: bool = False) -> None:
    kernel = mapping(fn, gives)
    kernel.__module__ = __name__
    simple(names, takes, gives, kernel, arrays=True, fails=fails)


_per_value("factorial", "int", pa.int64(), lambda n: math.factorial(n) if 0 <= n <= 20 else None)
_per_value("bin", "long", pa.string(), lambda n: f"{n & (2**64 - 1):b}")


@function("hex", "any")
def hexadecimal(binder: Binding, node: Term) -> Term:
    if is_integer(node.type):
        return applied(
            pa.string(),
            with_arrays(lambda array: mapped(array.cast(pa.int64()), lambda n: f"{n & (2**64 - 1):X}", pa.string())),
            node,
        )
    if node.type == pa.string():
        return applied(
            pa.string(),
            with_arrays(lambda array: mapped(array, lambda text: text.encode().hex().upper(), pa.string())),
            node,
        )
    if node.type == pa.binary():
        return applied(
            pa.string(), with_arrays(lambda array: mapped(array, lambda data: data.hex().upper(), pa.string())), node
        )
    raise ExpressionRefused(f"hex of {type_name(node.type)}; expected BIGINT, STRING or BINARY")


def _unhex(text: str) -> bytes | None:
    if not text.isascii():
        return None
    try:
        return bytes.fromhex("0" * (len(text) % 2) + text) if text.isalnum() or not text else None
    except ValueError:
        return None


_per_value("unhex", "string", pa.binary(), _unhex)


@function("width_bucket", "double, double, double, long")
def width_bucket(_: Binding, value: Term, low: Term, high: Term, count: Term) -> Term:
    def place(v: float, a: float, b: float, n: int) -> int | None:
        if n <= 0 or n == 2**63 - 1 or v != v or a == b or not math.isfinite(a) or not math.isfinite(b):
            return None
        lower, upper = min(a, b), max(a, b)
        if a < b:
            return 0 if v < lower else n + 1 if v >= upper else int(n * (v - lower) / (upper - lower)) + 1
        return 0 if v > upper else n + 1 if v <= lower else int(n * (upper - v) / (upper - lower)) + 1

    return applied(pa.int64(), with_arrays(mapping(place, pa.int64())), value, low, high, count)


__all__ = ["ROUND_CEILING", "ROUND_FLOOR"]
