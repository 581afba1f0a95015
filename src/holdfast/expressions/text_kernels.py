"""Compiled loops over the bytes of texts: a part between separators, and the number of occurrences of a text.

A character's bytes in UTF-8 occur within no other characters, so texts are found by their bytes. NumPy marks the bytes
that may begin a separator, and the loop visits marks, eight bytes at a time.
"""

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

_0, _1, _3, _7, _8, _56 = map(np.uint64, (0, 1, 3, 7, 8, 56))
_ONES, _ALL = np.uint64(0x0101010101010101), np.uint64(0xFFFFFFFFFFFFFFFF)


def part_of(array: pa.Array, separator: str, number: int) -> tuple[pa.Array, np.ndarray]:
    """Return a part of each text, counted from 1, or from the end for negative numbers, and mark the texts that have
    such a part. Of others it is empty; a null stays null."""
    places, data, sought = _bytes_of(array, separator)
    marks = np.zeros((len(data) + 8) // 8, np.uint64)
    np.equal(data, sought[0], out=marks.view(np.bool_)[: len(data)])
    ends, parts, there = _compiled()[0](places, data, marks, sought, number)
    valid = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    buffers = (pa.py_buffer(each) for each in (ends, parts, valid))
    return pa.StringArray.from_buffers(len(array), *buffers), there


def count_of(array: pa.Array, sought: str) -> pa.Array:
    """Count the occurrences of a text in each text; they do not overlap."""
    counts = _compiled()[1](*_bytes_of(array, sought))
    return pa.array(counts, mask=array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None)


def _bytes_of(array: pa.Array, sought: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the places of the texts, their bytes from the first place on, and the bytes of the text sought."""
    _, offsets, data = array.buffers()
    places = np.zeros(len(array) + 1, np.int32)
    if offsets is not None and len(array):
        places = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    first, size = int(places[0]), int(places[-1] - places[0])
    octets = np.frombuffer(data, np.uint8, size, first) if size else np.zeros(0, np.uint8)
    return places, octets, np.array(list(sought.encode()), np.uint8)


def _parts(places: Any, data: Any, marks: Any, sought: Any, number: int) -> Any:
    """Return offsets, bytes and presence of a part of each text. Places are unsigned: signed ones cost a check for each
    access."""
    rows, width, origin = len(places) - 1, np.uint64(len(sought)), np.uint64(places[0])
    begins, there = np.empty(rows, np.uint64), np.empty(rows, np.bool_)
    ends = np.zeros(rows + 1, np.int32)
    for row in range(rows):
        start, stop = np.uint64(places[row]) - origin, np.uint64(places[row + 1]) - origin
        begin, end, part, wanted = start, stop, 1, number
        for turn in range(2 if number < 0 else 1):
            begin, end, part, at = start, stop, 1, start >> _3
            word = marks[at] & (_ALL << ((start & _7) << _3))
            while True:
                while word == _0 and ((at + _1) << _3) < stop:
                    at += _1
                    word = marks[at]
                lowest = word & (_0 - word)
                place = (at << _3) + ((((lowest - _1) & _ONES) * _ONES) >> _56)
                if word == _0 or place + width > stop:
                    break
                word ^= lowest
                same = place >= begin
                for each in range(1, len(sought)):
                    same &= data[place + np.uint64(each)] == sought[each]
                if same:
                    if part == wanted and turn == (number < 0):
                        end = place
                        break
                    part += 1
                    begin = place + width
            if number < 0 and turn == 0:
                wanted = part + 1 + number
        there[row] = part == wanted
        begins[row] = begin
        ends[row + 1] = ends[row] + (np.int32(end - begin) if part == wanted else 0)
    out = np.empty(max(ends[rows], 1), np.uint8)
    for row in range(rows):
        target, begin = np.uint64(ends[row]), begins[row]
        for each in range(np.uint64(ends[row + 1] - ends[row])):
            out[target + each] = data[begin + each]
    return ends, out, there


def _counts(places: Any, data: Any, sought: Any) -> Any:
    """Return how many times each text has the bytes that are sought."""
    counts, width, origin = np.empty(len(places) - 1, np.int32), np.uint64(len(sought)), np.uint64(places[0])
    for row in range(len(counts)):
        place, stop, count = np.uint64(places[row]) - origin, np.uint64(places[row + 1]) - origin, 0
        if width == _1:
            for each in range(place, stop):
                count += data[each] == sought[0]
        else:
            while place + width <= stop:
                same = data[place] == sought[0]
                for each in range(1, len(sought) if same else 1):
                    same &= data[place + np.uint64(each)] == sought[each]
                count += same
                place += width if same else _1
        counts[row] = count
    return counts


@cache
def _compiled() -> tuple[Any, ...]:
    """Return the compiled forms of `_parts` and `_counts`: with the first call, since Numba loads in a quarter of a
    second."""
    from numba import njit

    from holdfast.kernels.cache import kept_by_content

    return tuple(kept_by_content(njit(nogil=True)(each)) for each in (_parts, _counts))
