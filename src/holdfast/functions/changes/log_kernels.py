"""The loops over blocks of entries of `row_log`, compiled.

    block    entries, end to end
    entry    weight, length of the row, the row in the form of `state.encoding`
    weight   1 is 1, -1 is 2, 2 is 3, -2 is 4, …           ┐ in bytes of 7 bits, the lowest first;
    length   the number of bytes                           ┘ the highest bit is set in all but the last byte

Rows are equal exactly if their bytes are equal.
"""

from typing import Any

import numpy as np

from holdfast.functions.rows.columns import IntArray
from holdfast.state.arena_kernels import Handles, copy_value, fetch, length_of
from holdfast.state.compiled import copy_bytes, kernel, load_u8, same_bytes, store_u8
from holdfast.state.hashing import xxh64
from holdfast.state.physical import Bools, Bytes, Integers, Slots

BLOCKS_AHEAD = 16
"""Number of blocks between the block being copied and the block being fetched from memory."""


@kernel
def numbered(weight: Any) -> Any:
    """The number that encodes a weight, which is not 0."""
    return np.uint64(2 * weight - 1 if weight > 0 else -2 * weight)


@kernel
def bytes_of_number(number: Any) -> int:
    count = 1
    while number >= np.uint64(128):
        number >>= np.uint64(7)
        count += 1
    return count


@kernel
def put_number(place: Any, number: Any) -> Any:
    """Write a number at an address; returns the address behind it."""
    while number >= np.uint64(128):
        store_u8(place, (number & np.uint64(127)) | np.uint64(128))
        number >>= np.uint64(7)
        place += 1
    store_u8(place, number)
    return place + 1


@kernel
def number_at(place: Any) -> Any:
    """Read the number at an address; returns it with the number of its bytes."""
    byte, number, count = load_u8(place), np.uint64(0), 0
    while byte >= np.uint64(128):
        number |= (byte & np.uint64(127)) << np.uint64(7 * count)
        count += 1
        byte = load_u8(place + count)
    return number | (byte << np.uint64(7 * count)), count + 1


@kernel
def counts_of(values: Integers, valid: Bools, slots: Slots) -> Any:
    """Return the counts in a column at these slots, 0 where there is none yet."""
    counts = np.zeros(len(slots), np.int64)
    for i in range(len(slots)):
        if valid[np.uint64(slots[i])]:
            counts[i] = values[np.uint64(slots[i])]
    return counts


@kernel
def set_counts(values: Integers, valid: Bools, slots: Slots, counts: Integers) -> None:
    """Write counts into a column."""
    for i in range(len(slots)):
        values[np.uint64(slots[i])] = counts[i]
        valid[np.uint64(slots[i])] = True


@kernel
def mark_counted(values: Integers, valid: Bools, slots: Slots, found: Bools) -> None:
    """Set `found` where the count in a column is not 0."""
    for i in range(len(slots)):
        if valid[np.uint64(slots[i])] and values[np.uint64(slots[i])] != 0:
            found[i] = True


@kernel
def measure_blocks(
    old: Handles, starts: IntArray, order: IntArray, rows: Integers, weights: IntArray, offsets: Integers
) -> None:
    """Set the offsets of new blocks: each has an old block, then entries of the rows `order[starts[b]:starts[b + 1]]`,
    which lie at the offsets `rows`."""
    offsets[0] = 0
    for block in range(len(starts) - 1):
        size = np.int64(length_of(old[block]))
        for place in range(starts[block], starts[block + 1]):
            row = order[place]
            length = rows[row + 1] - rows[row]
            size += bytes_of_number(numbered(weights[row])) + bytes_of_number(np.uint64(length)) + length
        offsets[block + 1] = offsets[block] + size


@kernel
def write_blocks(
    old: Handles,
    starts: IntArray,
    order: IntArray,
    rows: Integers,
    row_data: Bytes,
    weights: IntArray,
    offsets: Integers,
    out: Bytes,
) -> None:
    """Write the blocks that `measure_blocks` measured."""
    given, target = row_data.ctypes.data, out.ctypes.data
    for block in range(len(starts) - 1):
        if block + BLOCKS_AHEAD < len(old):
            fetch(old[block + BLOCKS_AHEAD])
        place = target + offsets[block]
        copy_value(old[block], np.uint64(place))
        place += np.int64(length_of(old[block]))
        for at in range(starts[block], starts[block + 1]):
            row = order[at]
            length = rows[row + 1] - rows[row]
            place = put_number(put_number(place, numbered(weights[row])), np.uint64(length))
            copy_bytes(given + rows[row], place, length)
            place += length


@kernel
def sum_entries(offsets: Integers, data: Bytes, order: IntArray, owners: IntArray, sizes: IntArray) -> Any:
    """Sum the weights of equal rows of each owner.

    `order` has the blocks in order of their owners, `owners` the owner of each block, `sizes` the number of entries of
    each owner. Returns, for the rows whose weights do not add up to 0, in order: owner, place in `data`, length, sum.
    """
    count, most = 0, 0
    for size in sizes:
        count += size
        most = max(most, size)
    room = 2
    while room < 2 * most:
        room *= 2
    found, table = np.empty((4, count), np.int64), np.empty(room, np.int64)
    source = data.ctypes.data
    kept, block = 0, 0
    for owner in range(len(sizes)):
        room, first = 2, kept
        while room < 2 * sizes[owner]:
            room *= 2
        table[:room] = -1
        while block < len(order) and owners[order[block]] == owner:
            at, end = offsets[order[block]], offsets[order[block] + 1]
            block += 1
            while at < end:
                number, read = number_at(source + at)
                weight = np.int64((number + np.uint64(1)) >> np.uint64(1))
                if number & np.uint64(1) == np.uint64(0):
                    weight = -np.int64(number >> np.uint64(1))
                at += read
                number, read = number_at(source + at)
                at += read
                length = np.int64(number)
                place = np.int64(xxh64(source + at, length) & np.uint64(room - 1))
                while table[place] >= 0:
                    row = table[place]
                    if found[2, row] == length and same_bytes(source + found[1, row], source + at, length):
                        break
                    place = (place + 1) & (room - 1)
                if table[place] < 0:
                    table[place] = kept
                    found[0, kept], found[1, kept], found[2, kept], found[3, kept] = owner, at, length, 0
                    kept += 1
                found[3, table[place]] += weight
                at += length
        left = first
        for row in range(first, kept):
            if found[3, row] != 0:
                for part in range(4):
                    found[part, left] = found[part, row]
                left += 1
        kept = left
    return found[:, :kept]
