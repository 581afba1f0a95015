"""Spark's hashes of columns: Murmur3 (x86, 32 bits) and XXH64. Each value's hash is the seed for the next column."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_M32, _M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _numbers(array: pa.Array) -> tuple[np.ndarray, int] | None:
    """Return values as whole numbers, with the width in bits with which Spark hashes them; None for texts."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int32), 32
    if pa.types.is_floating(kind):
        values = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False)
        values = np.where(values == 0, np.zeros(1, values.dtype), values)
        values = np.where(np.isnan(values), np.full(1, np.nan, values.dtype), values)
        bits = 32 if kind == pa.float32() else 64
        return values.view(np.int32 if bits == 32 else np.int64), bits
    if kind in (pa.string(), pa.binary()):
        return None
    if kind == pa.bool_():
        array = array.cast(pa.int8())
    wide = pa.types.is_timestamp(kind) or kind == pa.int64()
    whole = array.cast(pa.int64()) if wide else array.cast(pa.int32())
    return pc.fill_null(whole, 0).to_numpy(zero_copy_only=False), 64 if wide else 32


def _of_texts(array: pa.Array, seeds: np.ndarray, hashed: Callable[[bytes, int], int], kind: type) -> np.ndarray:
    """Return the hash of each text with its seed."""
    data = array.cast(pa.binary()).to_pylist()
    return np.array([hashed(each or b"", int(seed)) for each, seed in zip(data, seeds, strict=True)], kind)


def murmur3(array: pa.Array, seeds: np.ndarray) -> np.ndarray:
    """Return Murmur3 of each value with its seed."""
    numbers = _numbers(array)
    if numbers is None:
        return _of_texts(array, seeds, _murmur3_bytes, np.uint32)
    values, bits = numbers
    with np.errstate(over="ignore"):
        if bits == 32:
            return np.asarray(_finished(_mixed(seeds, values.astype(np.int32).view(np.uint32)), 4))
        wide = values.astype(np.int64).view(np.uint64)
        low, high = (wide & np.uint64(_M32)).astype(np.uint32), (wide >> np.uint64(32)).astype(np.uint32)
        return np.asarray(_finished(_mixed(_mixed(seeds, low), high), 8))


def _rotated(value: Any, by: int) -> Any:
    return (value << np.uint32(by)) | (value >> np.uint32(32 - by))


def _mixed(state: Any, value: Any) -> Any:
    value = _rotated(value * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated(state ^ value, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(state: Any, length: int) -> Any:
    state = state ^ np.uint32(length)
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


def _murmur3_bytes(data: bytes, seed: int) -> int:
    """Return Murmur3 of bytes. Spark mixes each byte after the last group of four separately, as a signed number."""
    with np.errstate(over="ignore"):
        state = np.uint32(seed)
        whole = len(data) - len(data) % 4
        for place in range(0, whole, 4):
            state = _mixed(state, np.uint32(int.from_bytes(data[place : place + 4], "little")))
        for each in data[whole:]:
            state = _mixed(state, np.uint32((each - 256 if each > 127 else each) & _M32))
        return int(_finished(state, len(data)))


def xxhash64(array: pa.Array, seeds: np.ndarray) -> np.ndarray:
    """Return XXH64 of each value with its seed."""
    numbers = _numbers(array)
    if numbers is None:
        return _of_texts(array, seeds, _xxh64_bytes, np.uint64)
    values, bits = numbers
    p1, p2, p3, p4, p5 = (np.uint64(each) for each in (_P1, _P2, _P3, _P4, _P5))
    with np.errstate(over="ignore"):
        if bits == 32:
            word = values.astype(np.int32).view(np.uint32).astype(np.uint64)
            state = seeds + p5 + np.uint64(4)
            state = _rotated64(state ^ (word * p1), 23) * p2 + p3
        else:
            word = values.astype(np.int64).view(np.uint64)
            state = seeds + p5 + np.uint64(8)
            state = _rotated64(state ^ (_rotated64(word * p2, 31) * p1), 27) * p1 + p4
        state = (state ^ (state >> np.uint64(33))) * p2
        state = (state ^ (state >> np.uint64(29))) * p3
        return np.asarray(state ^ (state >> np.uint64(32)))


def _rotated64(value: Any, by: int) -> Any:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _turn(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & _M64


def _round(state: int, word: int) -> int:
    return (_turn((state + word * _P2) & _M64, 31) * _P1) & _M64


def _xxh64_bytes(data: bytes, seed: int) -> int:
    place, length = 0, len(data)
    if length >= 32:
        lanes = [(seed + _P1 + _P2) & _M64, (seed + _P2) & _M64, seed, (seed - _P1) & _M64]
        while place <= length - 32:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], int.from_bytes(data[place : place + 8], "little"))
                place += 8
        state = sum(_turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _M64
        for lane in lanes:
            state = ((state ^ _round(0, lane)) * _P1 + _P4) & _M64
    else:
        state = (seed + _P5) & _M64
    state = (state + length) & _M64
    while place <= length - 8:
        state = (_turn(state ^ _round(0, int.from_bytes(data[place : place + 8], "little")), 27) * _P1 + _P4) & _M64
        place += 8
    if place <= length - 4:
        state = (_turn(state ^ (int.from_bytes(data[place : place + 4], "little") * _P1) & _M64, 23) * _P2 + _P3) & _M64
        place += 4
    for each in data[place:]:
        state = (_turn(state ^ (each * _P5) & _M64, 11) * _P1) & _M64
    state = ((state ^ (state >> 33)) * _P2) & _M64
    state = ((state ^ (state >> 29)) * _P3) & _M64
    return state ^ (state >> 32)
