"""Loops of HyperLogLog, compiled: registers of many sketches in the rows of a matrix of bytes, and their stored form.

    hash   ├── precision bits: which register ──┤── the others: their leading zeros, plus 1 = the rank ────────────┤
    register = the greatest rank of all hashes that chose it; 0: none did

    stored   SPARSE, then for each register that is not 0 its number (2 bytes, little-endian) and its rank
             DENSE, then all registers                                   whichever is shorter

The estimate is Ertl's improved raw estimate (arXiv:1702.01284, algorithm 6), which needs neither tables of bias nor a
case for small numbers. Stored sketches must remain readable forever, so hashes and this form never change.
"""

from typing import Any

import numpy as np

from holdfast.state.compiled import kernel

SPARSE, DENSE = 0, 1


@kernel
def add_hashes(groups: Any, hashes: Any, precision: Any, registers: Any) -> None:
    """Add values by their hashes, each to the sketch of its group."""
    rank_max = 64 - precision + 1
    for i in range(groups.shape[0]):
        register = np.int64(hashes[i] >> np.uint64(64 - precision))
        rest = hashes[i] << np.uint64(precision)
        rank = 1
        while rank < rank_max and rest & np.uint64(1 << 63) == 0:
            rest = rest << np.uint64(1)
            rank += 1
        if rank > registers[groups[i], register]:
            registers[groups[i], register] = rank


@kernel
def add_stored(groups: Any, offsets: Any, data: Any, registers: Any) -> None:
    """Add stored sketches, each to the sketch of its group: each register keeps its greater rank."""
    for i in range(groups.shape[0]):
        begin, end = offsets[i], offsets[i + 1]
        if begin == end:
            continue
        into = registers[groups[i]]
        if data[begin] == DENSE:
            for register in range(into.shape[0]):
                into[register] = max(into[register], data[begin + 1 + register])
        else:
            for place in range(begin + 1, end, 3):
                sparse = np.int64(data[place]) + 256 * np.int64(data[place + 1])
                into[sparse] = max(into[sparse], data[place + 2])


@kernel
def stored_sizes(registers: Any, sizes: Any) -> None:
    """The bytes that each sketch takes when it is stored."""
    for i in range(registers.shape[0]):
        in_use = np.count_nonzero(registers[i])
        sizes[i] = 1 + min(3 * in_use, registers.shape[1])


@kernel
def store(registers: Any, offsets: Any, data: Any) -> None:
    """Write sketches in their stored form, to where `stored_sizes` has room for them."""
    for i in range(registers.shape[0]):
        place, end = offsets[i], offsets[i + 1]
        dense = end - place == 1 + registers.shape[1]
        data[place] = DENSE if dense else SPARSE
        place += 1
        for register in range(registers.shape[1]):
            rank = registers[i, register]
            if dense:
                data[place] = rank
                place += 1
            elif rank > 0:
                data[place] = register & 255
                data[place + 1] = register >> 8
                data[place + 2] = rank
                place += 3


@kernel
def _sigma(share: Any) -> Any:
    if share == 1.0:
        return np.inf
    factor, total, before = 1.0, share, -1.0
    while total != before:
        share *= share
        before = total
        total += share * factor
        factor += factor
    return total


@kernel
def _tau(share: Any) -> Any:
    if share in (0.0, 1.0):
        return 0.0
    factor, total, before = 1.0, 1.0 - share, -1.0
    while total != before:
        share = np.sqrt(share)
        before = total
        factor *= 0.5
        total -= (1.0 - share) ** 2 * factor
    return total / 3.0


@kernel
def estimate(registers: Any, precision: Any, estimates: Any) -> None:
    """The number of distinct values of each sketch."""
    size = float(registers.shape[1])
    rank_max = 64 - precision + 1
    for i in range(registers.shape[0]):
        counts = np.zeros(rank_max + 1, np.int64)
        for rank in registers[i]:
            counts[rank] += 1
        total = size * _tau(1.0 - counts[rank_max] / size)
        for rank in range(rank_max - 1, 0, -1):
            total = 0.5 * (total + counts[rank])
        total += size * _sigma(counts[0] / size)
        estimates[i] = np.int64(np.round(size * size / (2.0 * np.log(2.0) * total)))
