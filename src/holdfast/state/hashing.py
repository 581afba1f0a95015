"""The hashes of keys. Key groups, and with them everything stored, rest on them: they never change.

integers   first output of SplitMix64 seeded with the key (a bijection: no two int64 keys share a hash)
bytes      XXH64 with seed 0
null       `NULL_HASH` (of a key of a single column; inside composite keys a null is part of the bytes)
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.state.compiled import kernel, load_u8, load_u32, load_u64

Hashes = npt.NDArray[np.uint64]

NULL_HASH = np.uint64(0x6E75_6C6C_6E75_6C6C)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_ZERO = np.uint64(0)


@kernel
def mix(value: Any) -> Any:
    """SplitMix64's first output for the seed `value` (an int64 or uint64)."""
    z = np.uint64(value) + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@kernel
def _rotate(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@kernel
def _round(accumulator: Any, lane: Any) -> Any:
    return _rotate(accumulator + lane * _P2, 31) * _P1


@kernel
def _stripes(address: Any, length: Any) -> Any:
    """The 32-byte stripes of a long input, folded."""
    a, b, c, d = _P1 + _P2, _P2, _ZERO, _ZERO - _P1
    stop = address + (length - length % 32)
    while address < stop:
        a = _round(a, load_u64(address))
        b = _round(b, load_u64(address + 8))
        c = _round(c, load_u64(address + 16))
        d = _round(d, load_u64(address + 24))
        address += 32
    folded = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    for lane in (a, b, c, d):
        folded = (folded ^ _round(_ZERO, lane)) * _P1 + _P4
    return folded


@kernel
def xxh64(address: Any, length: Any) -> Any:
    """XXH64, seed 0, of the `length` bytes at an address."""
    stop = address + length
    h = _P5
    if length >= 32:
        h = _stripes(address, length)
        address += length - length % 32
    h += np.uint64(length)
    while address + 8 <= stop:
        h = _rotate(h ^ _round(_ZERO, load_u64(address)), 27) * _P1 + _P4
        address += 8
    if address + 4 <= stop:
        h = _rotate(h ^ (load_u32(address) * _P1), 23) * _P2 + _P3
        address += 4
    while address < stop:
        h = _rotate(h ^ (load_u8(address) * _P5), 11) * _P1
        address += 1
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@kernel
def hash_integers(values: npt.NDArray[np.int64]) -> Hashes:
    """The hash of each int64 key."""
    hashes = np.empty(len(values), np.uint64)
    for i in range(len(values)):
        hashes[i] = mix(values[i])
    return hashes


@kernel
def hash_bytes(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> Hashes:
    """The hash of each of `len(offsets) - 1` byte strings."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    base = data.ctypes.data
    for i in range(len(hashes)):
        hashes[i] = xxh64(base + offsets[i], offsets[i + 1] - offsets[i])
    return hashes


@kernel
def groups_of(hashes: Hashes, max_parallelism: int) -> npt.NDArray[np.int32]:
    """`hash mod max_parallelism`."""
    groups = np.empty(len(hashes), np.int32)
    divisor = np.uint64(max_parallelism)
    mask = divisor - np.uint64(1)
    if divisor & mask == _ZERO:
        for i in range(len(hashes)):
            groups[i] = hashes[i] & mask
    else:
        for i in range(len(hashes)):
            groups[i] = hashes[i] % divisor
    return groups


@kernel
def groups_of_integers(values: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int32]:
    """The key groups of int64 keys: hash and modulo in a single pass."""
    groups = np.empty(len(values), np.int32)
    divisor = np.uint64(max_parallelism)
    mask = divisor - np.uint64(1)
    if divisor & mask == _ZERO:
        for i in range(len(values)):
            groups[i] = mix(values[i]) & mask
    else:
        for i in range(len(values)):
            groups[i] = mix(values[i]) % divisor
    return groups
