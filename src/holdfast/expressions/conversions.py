"""Casts between Spark's types, in three modes: ANSI (a value that cannot be cast fails), `try_cast` (it becomes null),
and Spark's older mode (it becomes null, and whole numbers wrap around)."""

import re
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions import reading_texts, writing_texts, zones
from holdfast.expressions.lists import with_items
from holdfast.expressions.nodes import (
    ExpressionRefused,
    Kernel,
    SqlSettings,
    Term,
    applied,
    array_of,
    failed_where,
    null_of,
    with_arrays,
)
from holdfast.expressions.types import INSTANT, LOCAL, is_integer, is_number, is_time, type_name

CastMode = Literal["ansi", "try", "legacy"]

_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def mode_of(settings: SqlSettings) -> CastMode:
    return "ansi" if settings.ansi else "legacy"


def cast(node: Term, wanted: pa.DataType, settings: SqlSettings, mode: CastMode | None = None) -> Term:
    """Make the term that casts the values of another. Raises `ExpressionRefused` if there is no such cast."""
    if node.type == wanted:
        return node
    if pa.types.is_null(node.type):
        return _failing_as(node, wanted) if node.fails else null_of(wanted)
    if node.constant is not None and node.type == pa.string() and is_time(wanted):
        _refuse_moving(node.constant.as_py())
    mode = mode or mode_of(settings)
    kernel = kernel_for(node.type, wanted, mode, settings.zone)
    fails = (mode == "ansi" and may_fail(node.type, wanted)) or (node.type == pa.string() and is_time(wanted))
    made = applied(wanted, with_arrays(kernel), node, fails=fails)
    return Term(wanted, made.run, made.fails, made.constant, node.name)


def _refuse_moving(text: str | None) -> None:
    """Raise `ExpressionRefused` for a time that Spark reads in literals alone, such as `now`."""
    if re.match(r"\s*(epoch|now|today|tomorrow|yesterday)\b", text or "", re.IGNORECASE):
        raise ExpressionRefused(
            f"the time {text!r} is not supported in expressions: its value would change when a batch is processed "
            "again; use with_batch_time(…), or ctx.batch_time in a function"
        )


def _failing_as(node: Term, wanted: pa.DataType) -> Term:
    """Return a term that fails wherever it is run, such as `raise_error('…')`, with a type."""
    return Term(wanted, lambda rows: array_of(node.run(rows), rows.count).cast(wanted), True)


def may_fail(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether the cast fails for some values."""
    if pa.types.is_nested(found):
        return True
    if wanted in (pa.string(), pa.binary()) or (found == pa.bool_() and not pa.types.is_decimal(wanted)):
        return False
    if is_integer(found) and is_integer(wanted):
        return _BITS[found] > _BITS[wanted]
    return not (is_number(found) and pa.types.is_floating(wanted)) and not (is_time(found) and is_time(wanted))


def kernel_for(found: pa.DataType, wanted: pa.DataType, mode: CastMode, zone: str) -> Kernel:
    """Return the kernel of a cast. Raises `ExpressionRefused` if Spark or Holdfast does not have it."""
    if found == wanted:
        return lambda array: array
    if pa.types.is_null(found):
        return lambda array: pa.nulls(len(array), wanted)
    if pa.types.is_nested(found) or pa.types.is_nested(wanted):
        return _nested(found, wanted, mode, zone)
    kernel = None
    if wanted == pa.string():
        kernel = writing_texts.writer(found, mode == "ansi", zone)
    elif found == pa.string():
        kernel = reading_texts.reader(wanted, mode, zone)
    elif wanted == pa.bool_() and is_number(found):
        zero = pa.scalar(0, pa.int8()).cast(found)
        kernel = lambda array: pc.not_equal(array, zero)  # noqa: E731
    elif found == pa.bool_() and pa.types.is_decimal(wanted):
        to_wanted = to_decimal(pa.int8(), wanted, mode)
        kernel = lambda array: to_wanted(array.cast(pa.int8()))  # noqa: E731
    elif found == pa.bool_() and is_number(wanted):
        kernel = lambda array: array.cast(pa.int8()).cast(pa.int64()).cast(wanted)  # noqa: E731
    elif is_number(found) and is_number(wanted):
        kernel = _number(found, wanted, mode)
    elif is_time(found) and is_time(wanted):
        kernel = zones.between(found, wanted, zone)
    elif found == INSTANT and is_number(wanted):
        kernel = _seconds(wanted, mode)
    elif wanted == INSTANT and is_integer(found):
        kernel = _instant(mode)
    if kernel is None:
        raise ExpressionRefused(
            f"a cast of {type_name(found)} to {type_name(wanted)} is not supported in expressions; use transform(…)"
        )
    return kernel


def _number(found: pa.DataType, wanted: pa.DataType, mode: CastMode) -> Kernel:
    if pa.types.is_decimal(wanted):
        return to_decimal(found, wanted, mode)
    if pa.types.is_floating(wanted):
        if pa.types.is_decimal(found):
            return lambda array: reading_texts.parsed_floats(array.cast(pa.string()), wanted)
        return lambda array: pc.cast(array, wanted, safe=False)
    if pa.types.is_floating(found):
        return _floating_to_whole(wanted, mode)
    if pa.types.is_decimal(found):
        whole = pa.decimal128(found.precision, 0)
        return lambda array: _whole_in_range(_truncated(array, whole), wanted, mode)
    if _BITS[found] <= _BITS[wanted]:
        return lambda array: array.cast(wanted)
    if mode == "legacy":
        return lambda array: pc.cast(array, wanted, safe=False)
    return lambda array: _whole_in_range(array, wanted, mode)


def _truncated(array: pa.Array, whole: pa.DataType) -> pa.Array:
    return (
        pc.trunc(array)
        .cast(pa.decimal256(whole.precision + array.type.scale, array.type.scale))
        .cast(pa.decimal128(whole.precision, 0))
    )


def _whole_in_range(array: pa.Array, wanted: pa.DataType, mode: CastMode) -> pa.Array:
    low, high = -(2 ** (_BITS[wanted] - 1)), 2 ** (_BITS[wanted] - 1) - 1
    if pa.types.is_decimal(array.type):
        wide = pa.decimal128(38, 0)
        array, bounds = array.cast(wide), [pa.scalar(each, wide) for each in (low, high)]
    else:
        bounds = [pa.scalar(low, array.type), pa.scalar(high, array.type)]
    inside = pc.and_(pc.greater_equal(array, bounds[0]), pc.less_equal(array, bounds[1]))
    if mode == "ansi":
        failed_where(pc.invert(inside), f"{{}} is out of the range of {type_name(wanted)}", array)
        return array.cast(wanted)
    if mode == "legacy":
        return _wrapped(array, wanted)
    return pc.if_else(inside, array, None).cast(wanted)


def _wrapped(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Keep the low bits of numbers that are too large, as Java does."""
    if not pa.types.is_decimal(array.type):
        return pc.cast(array, wanted, safe=False)
    modulus = 1 << _BITS[wanted]
    half = modulus >> 1
    values = [None if each is None else (int(each) + half) % modulus - half for each in array.to_pylist()]
    return pa.array(values, wanted)


def _floating_to_whole(wanted: pa.DataType, mode: CastMode) -> Kernel:
    bits = _BITS[wanted]

    def kernel(array: pa.Array) -> pa.Array:
        found = np.asarray(pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False), np.float64)
        whole = np.trunc(found)
        bound = float(2 ** (bits - 1))
        inside = (whole >= -bound) & (whole < bound)
        if mode != "legacy":
            mask = pa.array(~inside)
            if mode == "ansi":
                failed_where(mask, f"{{}} is out of the range of {type_name(wanted)}", array)
            made = pa.array(np.where(inside, whole, 0).astype(np.int64)).cast(wanted)
            return pc.if_else(pc.and_(array.is_valid(), pc.invert(mask)), made, None)
        first = bits if bits > 32 else 32
        top = 2.0 ** (first - 1)
        least, most = -(2 ** (first - 1)), 2 ** (first - 1) - 1
        whole = np.nan_to_num(whole, nan=0.0, posinf=top, neginf=-top)
        bounded = np.where(
            whole >= top,
            most,
            np.where(whole < -top, least, np.clip(whole, -top, np.nextafter(top, 0)).astype(np.int64)),
        )
        return pc.if_else(array.is_valid(), pc.cast(pa.array(bounded.astype(np.int64)), wanted, safe=False), None)

    return kernel


def to_decimal(found: pa.DataType, wanted: pa.DataType, mode: CastMode) -> Kernel:
    """Return the kernel that rounds half up to a decimal's scale. Values with too many digits before the point fail."""

    def kernel(array: pa.Array) -> pa.Array:
        if pa.types.is_floating(array.type):
            finite = pc.if_else(pc.is_finite(array), array, None)  # NaN and infinity become null even in ANSI mode
            return reading_texts.read_decimals(writing_texts.written_floats(finite), wanted, mode)
        scale = array.type.scale if pa.types.is_decimal(array.type) else 0
        room = max(wanted.scale, scale)
        precision = array.type.precision if pa.types.is_decimal(array.type) else 20
        wide = array.cast(pa.decimal128(20, 0)) if not pa.types.is_decimal(array.type) else array
        wide = wide.cast(pa.decimal256(min(76, precision + room), scale)).cast(
            pa.decimal256(min(76, precision - scale + room + 1), room)
        )
        return fitted_decimal(wide, wanted, mode)

    return kernel


def fitted_decimal(array: pa.Array, wanted: pa.DataType, mode: CastMode) -> pa.Array:
    """Round decimals of 256 bits half up to the wanted scale. Values with too many digits fail or become null."""
    if array.type.scale > wanted.scale:
        array = pc.round(array, wanted.scale, "half_towards_infinity")
    bound = pa.scalar(10 ** (wanted.precision - wanted.scale), pa.decimal256(76, 0))
    inside = pc.less(pc.abs(array), bound.cast(pa.decimal256(76, min(array.type.scale, 76 - 39))))
    if mode == "ansi":
        failed_where(pc.invert(inside), f"{{}} has more digits than {type_name(wanted)}", array)
    array = pc.if_else(inside, array, None)
    return (
        array.cast(pa.decimal256(76, wanted.scale), safe=False).cast(wanted, safe=False)
        if len(array)
        else pa.array([], wanted)
    )


def _seconds(wanted: pa.DataType, mode: CastMode) -> Kernel:
    def kernel(array: pa.Array) -> pa.Array:
        micros = array.cast(pa.int64())
        if pa.types.is_floating(wanted):
            return pc.divide(micros.cast(pa.float64(), safe=False), 1e6).cast(wanted, safe=False)
        seconds = zones.floor_divided(micros, 1_000_000)
        if wanted == pa.int64():
            return seconds
        return _whole_in_range(seconds, wanted, "ansi" if mode == "ansi" else "try")

    if pa.types.is_decimal(wanted):
        raise ExpressionRefused("a cast of TIMESTAMP to DECIMAL is not supported in expressions; use transform(…)")
    return kernel


def _instant(mode: CastMode) -> Kernel:
    most = (2**63 - 1) // 1_000_000

    def kernel(array: pa.Array) -> pa.Array:
        seconds = array.cast(pa.int64())
        micros = pc.multiply(seconds, 1_000_000)
        micros = pc.if_else(pc.greater(seconds, most), 2**63 - 1, micros)
        return pc.if_else(pc.less(seconds, -most), -(2**63), micros).cast(INSTANT)

    return kernel


def _nested(found: pa.DataType, wanted: pa.DataType, mode: CastMode, zone: str) -> Kernel:
    types = pa.types
    if types.is_map(found) and types.is_map(wanted):
        keys = kernel_for(found.key_type, wanted.key_type, mode, zone)
        items = kernel_for(found.item_type, wanted.item_type, mode, zone)

        def of_maps(array: pa.Array) -> pa.Array:
            return pa.MapArray.from_arrays(array.offsets, keys(array.keys), items(array.items), mask=array.is_null())

        return of_maps
    if types.is_list(found) and types.is_list(wanted):
        inner = kernel_for(found.value_type, wanted.value_type, mode, zone)
        return lambda array: with_items(array, inner(array.flatten()))
    if types.is_struct(found) and types.is_struct(wanted) and found.num_fields == wanted.num_fields:
        kernels = [kernel_for(a.type, b.type, mode, zone) for a, b in zip(found, wanted, strict=True)]

        def of_structs(array: pa.Array) -> pa.Array:
            made = [each(array.field(place)) for place, each in enumerate(kernels)]
            return pa.StructArray.from_arrays(made, fields=list(wanted), mask=array.is_null())

        return of_structs
    raise ExpressionRefused(
        f"a cast of {type_name(found)} to {type_name(wanted)} is not supported in expressions; use transform(…)"
    )


__all__ = ["LOCAL", "CastMode", "cast", "fitted_decimal", "kernel_for", "may_fail", "mode_of", "to_decimal"]
