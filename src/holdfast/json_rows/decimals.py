"""Exact conversion of texts to decimals.

PyArrow's own cast overflows silently if a text has more than 38 digits, or gets them by the scale of the type: it makes
902640103482957207.09… of `11111111111111111111` as DECIMAL(38, 20).
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FOUND_CHARS_MAX = 60
"""Characters of a wrong value in a reason."""
DECIMAL = re.compile(r"([+-]?)([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]{1,9}))?")


class Texts(NamedTuple):
    """An array that was made of texts, with nulls for the wrong ones, and the reasons for these by their place."""

    array: pa.Array
    reasons: Mapping[int, str]


def to_decimals(texts: pa.Array, type_: pa.DataType) -> Texts:
    """Read texts as decimals; digits that the type does not have are allowed if they are zeros."""
    if pc.all(pc.match_substring_regex(texts, few_digits(type_))).as_py() is not False:
        return Texts(pc.cast(texts, type_), {})
    reasons: dict[int, str] = {}
    found: list[int | None] = []
    for place, text in enumerate(texts.to_pylist()):
        number = None if text is None else unscaled(text, type_.precision, type_.scale)
        if number is None and text is not None:
            whole = type_.precision - type_.scale
            reasons[place] = (
                f"{shown_text(text)!r} is no number of up to {whole} digits and {type_.scale} decimal places"
            )
        found.append(number)
    size = type_.bit_width // 8
    data = b"".join((number or 0).to_bytes(size, "little", signed=True) for number in found)
    valid = np.packbits(np.array([number is not None for number in found], bool), bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(data)]
    return Texts(pa.Array.from_buffers(type_, len(found), buffers), reasons)


def few_digits(type_: pa.DataType) -> str:
    """Return the pattern of numbers that certainly fit a type, whatever their zeros; numbers with exponents are left
    out."""
    whole = type_.precision - type_.scale
    return rf"^[+-]?{f'[0-9]{{1,{whole}}}' if whole else '0'}(\.[0-9]{{0,{type_.scale}}})?$"


def unscaled(text: str, precision: int, scale: int) -> int | None:
    """Return a decimal as a whole number of its last digits; None if the text is no number, or has more digits."""
    match = DECIMAL.fullmatch(text)
    if match is None or not match[2] + match[3]:
        return None
    digits = (match[2] + match[3]).lstrip("0")
    if not digits:
        return 0
    significant = digits.rstrip("0")
    exponent = int(match[4] or 0) - len(match[3]) + len(digits) - len(significant)
    if exponent < -scale or len(significant) + exponent > precision - scale:
        return None
    factor: int = 10 ** (exponent + scale)
    return int(match[1] + significant) * factor


def shown_text(text: str) -> str:
    """Return the beginning of a text, for a reason."""
    return text if len(text) <= FOUND_CHARS_MAX else text[:FOUND_CHARS_MAX] + "…"
