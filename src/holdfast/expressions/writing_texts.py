"""Values as texts, as Spark's cast to STRING writes them."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions import zones
from holdfast.expressions.types import INSTANT, LOCAL, is_integer


def writer(found: pa.DataType, ansi: bool, zone: str) -> Callable[[pa.Array], pa.Array] | None:
    """Return the kernel that writes values of a type; None if there is none."""
    if is_integer(found) or found == pa.bool_():
        return lambda array: array.cast(pa.string())
    if pa.types.is_floating(found):
        return written_floats
    if pa.types.is_decimal(found):
        return plain_decimals if ansi else lambda array: array.cast(pa.string())
    if found == pa.date32():
        return written_dates
    if found == LOCAL:
        return written_times
    if found == INSTANT:
        return lambda array: written_times(zones.to_local(array, zone))
    if found == pa.binary():
        return lambda array: array.cast(pa.string())
    return None


def plain_decimals(array: pa.Array) -> pa.Array:
    """Write decimals without an exponent."""
    texts = array.cast(pa.string())
    with_exponent = pc.match_substring(texts, "E")
    if not pc.any(with_exponent).as_py():
        return texts
    return pa.array([None if each is None else f"{each:f}" for each in array.to_pylist()], pa.string())


def written_floats(array: pa.Array) -> pa.Array:
    """Write floating-point numbers as Java does, with the fewest digits that identify the number."""
    values = array.unique()
    texts = pa.array([java_text(each, array.type) for each in values.to_pylist()], pa.string())
    places = pc.index_in(array, values)
    return texts.take(places)


def java_text(value: float | None, kind: pa.DataType) -> str | None:
    if value is None:
        return None
    if value != value:
        return "NaN"
    if value in (np.inf, -np.inf):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if np.signbit(value) else "0.0"
    number = np.float32(value) if kind == pa.float32() else np.float64(value)
    if 1e-3 <= abs(value) < 1e7:
        return str(np.format_float_positional(number, unique=True, trim="0"))
    mantissa, _, exponent = np.format_float_scientific(number, unique=True, trim="0").partition("e")
    if len(mantissa.lstrip("-")) == len("5.0"):  # Java writes the nearest number of at least two digits: 4.9E-324.
        mantissa, _, exponent = f"{float(number):.1e}".partition("e")
    return f"{mantissa}E{int(exponent)}"


def written_dates(array: pa.Array) -> pa.Array:
    _refuse_far(pc.year(array))
    return array.cast(pa.string())


def written_times(array: pa.Array) -> pa.Array:
    """Write local times, without zeros at the end of the fraction."""
    _refuse_far(pc.year(array))
    return pc.replace_substring_regex(
        pc.replace_substring_regex(array.cast(pa.string()), r"(\.[0-9]*?)0+$", r"\1"), r"\.$", ""
    )


def _refuse_far(years: pa.Array) -> None:
    outside = pc.or_(pc.less(years, 1), pc.greater(years, 9999))
    if pc.any(outside).as_py():
        raise pa.ArrowInvalid("a time before the year 1 or after 9999 has no text here")
