"""Compiled loops over protocol bytes: they find messages and values, and copy values into Arrow's layout.

All integers of PostgreSQL's protocols are big-endian. A *tuple* of `pgoutput` is a count of columns (2 bytes), then for
each column a kind (`n` null, `u` unchanged TOAST value, `t` text) and, for text, a length (4 bytes) and the bytes. A
row of binary COPY is a count of columns (2 bytes), then for each a length (4 bytes, -1 for null) and the bytes.
"""

from typing import Any

from holdfast.state.compiled import kernel

NULL, UNCHANGED, ABSENT = -1, -2, -3
"""Lengths of values that have no bytes: null, not sent because an update left it as it was, and no tuple at all."""


@kernel
def read_int(data: Any, place: Any, size: Any) -> Any:
    """Return the unsigned integer of `size` bytes at `place`."""
    value = 0
    for i in range(size):
        value = (value << 8) | data[place + i]
    return value


@kernel
def tuple_end(data: Any, place: Any) -> Any:
    """Return the place after the pgoutput tuple that begins at `place`."""
    columns = read_int(data, place, 2)
    place += 2
    for _ in range(columns):
        kind = data[place]
        place += 1
        if kind == 116:  # t
            place += 4 + read_int(data, place, 4)
    return place


@kernel
def scan_messages(
    data: Any, places: Any, kinds: Any, relations: Any, old: Any, old_kinds: Any, new: Any, lsns: Any, times: Any
) -> None:
    """Find for each message its kind and the places of its tuples (-1: none).

    For Begin, `relations` gets the transaction's id, `lsns` its commit's LSN and `times` its commit's time; for Commit,
    `lsns` gets the LSN after it.
    """
    for i in range(len(places) - 1):
        place = places[i]
        kind = data[place]
        kinds[i] = kind
        old[i] = -1
        new[i] = -1
        old_kinds[i] = 0
        if kind == 66:  # B
            lsns[i] = read_int(data, place + 1, 8)
            times[i] = read_int(data, place + 9, 8)
            relations[i] = read_int(data, place + 17, 4)
        elif kind == 67:  # C
            lsns[i] = read_int(data, place + 10, 8)
        elif kind == 73 or kind == 85 or kind == 68:  # I, U, D
            relations[i] = read_int(data, place + 1, 4)
            place += 5
            if data[place] != 78:  # not N: an old tuple, K or O
                old_kinds[i] = data[place]
                old[i] = place + 1
                if kind == 85:
                    place = tuple_end(data, place + 1)
            if kind != 68:
                new[i] = place + 1


@kernel
def tuple_values(data: Any, tuples: Any, starts: Any, lengths: Any) -> None:
    """Find the values of pgoutput tuples: `starts` and `lengths` are (columns, tuples)."""
    columns = starts.shape[0]
    for row in range(len(tuples)):
        place = tuples[row]
        if place < 0:
            for column in range(columns):
                lengths[column, row] = -3
            continue
        place += 2
        for column in range(columns):
            kind = data[place]
            place += 1
            if kind == 116:
                length = read_int(data, place, 4)
                starts[column, row] = place + 4
                lengths[column, row] = length
                place += 4 + length
            else:
                lengths[column, row] = -1 if kind == 110 else -2


@kernel
def copied_values(data: Any, rows: Any, starts: Any, lengths: Any) -> None:
    """Find the values of rows of binary COPY that begin at `rows`."""
    for row in range(len(rows)):
        place = rows[row] + 2
        for column in range(starts.shape[0]):
            length = read_int(data, place, 4)
            place += 4
            if length == 0xFFFFFFFF:
                lengths[column, row] = -1
            else:
                starts[column, row] = place
                lengths[column, row] = length
                place += length


@kernel
def same_values(data: Any, starts: Any, lengths: Any, left: Any, right: Any, same: Any) -> None:
    """Clear `same[i]` where the values of rows `left[i]` and `right[i]` differ in a column."""
    for i in range(len(left)):
        for column in range(starts.shape[0]):
            a, b = lengths[column, left[i]], lengths[column, right[i]]
            if b == -2:
                continue
            if a != b:
                same[i] = False
                continue
            for k in range(a):
                if data[starts[column, left[i]] + k] != data[starts[column, right[i]] + k]:
                    same[i] = False
                    break


@kernel
def gather(data: Any, starts: Any, lengths: Any, offsets: Any, out: Any, valid: Any) -> None:
    """Copy values into Arrow's layout; `offsets` are filled in already, `valid` is a bitmap of zeros."""
    for row in range(len(starts)):
        length = lengths[row]
        if length >= 0:
            valid[row >> 3] |= 1 << (row & 7)
            start, target = starts[row], offsets[row]
            for k in range(length):
                out[target + k] = data[start + k]
