"""The loops of weights and of sums that can be taken back, compiled; conventions as in `aggregates.kernels`.

Integers and decimals are added in words of 64 bits, the lowest first, in two's complement: nothing overflows on the
way, in whatever order rows come and go.

Floating-point values are added in `PARTS` doubles whose exact sum is the total (Shewchuk's expansions, "Adaptive
Precision Floating-Point Arithmetic", 1997): a value that is taken back leaves nothing behind. The parts hold any total
of at most 53 × `PARTS` significant bits; longer totals lose their lowest bits.
"""

from typing import Any

import numpy as np

from holdfast.functions.rows.columns import AnyArray, BoolArray, IntArray
from holdfast.state.compiled import kernel
from holdfast.state.physical import Bytes, Integers, Slots

PARTS = 6
"""Number of doubles in a total. A higher value keeps all digits of values that differ more in magnitude."""


@kernel
def set_weights(offsets: Integers, data: Bytes, weights: IntArray) -> None:
    """Set the weights of rows that go to -1, by their change types, which are known ones: `delete` is the only one that
    begins with a d, and `update_preimage` the only one of 15 letters."""
    for i in range(len(weights)):
        length = offsets[i + 1] - offsets[i]
        if length == 15 or (length > 0 and data[offsets[i]] == 100):
            weights[i] = -1


@kernel
def count_weights(slots: Slots, valid: BoolArray, weights: IntArray, counts: IntArray) -> None:
    """Add the weights of the rows that are valid."""
    dense = valid.shape[0] == 0
    for i in range(slots.shape[0]):
        if dense or valid[i]:
            counts[slots[i]] += weights[i]


@kernel
def add_integers_wide(
    slots: Slots, values: AnyArray, valid: BoolArray, weights: IntArray, low: AnyArray, high: IntArray
) -> None:
    """Add or subtract integers, in totals of two words."""
    dense = valid.shape[0] == 0
    for i in range(slots.shape[0]):
        if dense or valid[i]:
            s = slots[i]
            value = np.int64(values[i])
            word, sign = np.uint64(value), np.int64(value >> 63)
            if weights[i] < 0:
                word = np.uint64(~word) + np.uint64(1)
                sign = ~sign + np.int64(word == np.uint64(0))
            total = np.uint64(low[s] + word)
            high[s] += sign + np.int64(total < word)
            low[s] = total


@kernel
def add_decimals_wide(
    slots: Slots,
    words: AnyArray,
    valid: BoolArray,
    weights: IntArray,
    low: AnyArray,
    middle: AnyArray,
    high: IntArray,
) -> None:
    """Add or subtract decimals of two words each, in totals of three."""
    dense = valid.shape[0] == 0
    one, zero = np.uint64(1), np.uint64(0)
    for i in range(slots.shape[0]):
        if dense or valid[i]:
            s = slots[i]
            first, second = np.uint64(words[i, 0]), np.uint64(words[i, 1])
            sign = np.int64(np.int64(second) >> 63)
            if weights[i] < 0:
                first = np.uint64(~first) + one
                carry = one if first == zero else zero
                second = np.uint64(~second) + carry
                sign = ~sign + np.int64(carry == one and second == zero)
            total = np.uint64(low[s] + first)
            carry = one if total < first else zero
            low[s] = total
            partial = np.uint64(middle[s] + second)
            over = np.int64(partial < second)
            total = np.uint64(partial + carry)
            over += np.int64(total < carry)
            middle[s] = total
            high[s] += sign + over


@kernel
def two_sum(a: Any, b: Any) -> Any:
    """The rounded sum of two doubles, and the exact rest."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@kernel
def two_product(a: Any, b: Any) -> Any:
    """The rounded product of two doubles below 2 ** 500, and the exact rest."""
    product = a * b
    scaled = 134217729.0 * a
    a_high = scaled - (scaled - a)
    a_low = a - a_high
    scaled = 134217729.0 * b
    b_high = scaled - (scaled - b)
    b_low = b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@kernel
def put_exactly(parts: Any, place: int, value: Any, work: AnyArray) -> None:
    """Add a value to the total at a place of the parts, greatest first: exact if they hold the new total."""
    rest, high = value, 0.0
    least_work = PARTS
    for part in range(PARTS - 1, -1, -1):
        rest, high = two_sum(parts[part][place], rest)
        work[part] = high
        if high != 0.0 and least_work == PARTS:
            least_work = part
    # `rest` and `work` have the new total, and do not overlap.
    if least_work == 0 or least_work == PARTS:
        parts[0][place] = rest
        parts[1][place] = work[0]
        for part in range(2, PARTS):
            parts[part][place] = 0.0
        return
    # From the least part up, each part takes over as much as it can hold of the parts below it. Then, from the greatest
    # part down, parts that are zero are left out.
    below = work[PARTS - 1]
    for part in range(PARTS - 2, -1, -1):
        below, work[part + 1] = two_sum(work[part], below)
    current, work[0] = two_sum(rest, below)
    made = 0
    for part in range(PARTS):
        total, below = two_sum(current, work[part])
        if below != 0.0 and made < PARTS - 1:
            parts[made][place] = total
            made += 1
            current = below
        else:
            current = total
    parts[made][place] = current
    for part in range(made + 1, PARTS):
        parts[part][place] = 0.0


@kernel
def rounded(parts: Any, place: int) -> Any:
    """The double nearest to a total."""
    total = 0.0
    for part in range(PARTS - 1, -1, -1):
        total += parts[part][place]
    return total


@kernel
def add_exactly(slots: Slots, values: AnyArray, valid: BoolArray, weights: IntArray, scale: float, parts: Any) -> None:
    """Add or subtract values times a power of two."""
    dense = valid.shape[0] == 0
    work = np.zeros(PARTS)
    for i in range(slots.shape[0]):
        if dense or valid[i]:
            value = np.float64(values[i]) * scale
            put_exactly(parts, slots[i], value if weights[i] > 0 else -value, work)


@kernel
def add_squares(slots: Slots, values: AnyArray, valid: BoolArray, weights: IntArray, parts: Any) -> None:
    """Add or subtract the exact squares of values below 2 ** 500."""
    dense = valid.shape[0] == 0
    work = np.zeros(PARTS)
    for i in range(slots.shape[0]):
        if dense or valid[i]:
            value = np.float64(values[i])
            high, low = two_product(value, value)
            put_exactly(parts, slots[i], high if weights[i] > 0 else -high, work)
            put_exactly(parts, slots[i], low if weights[i] > 0 else -low, work)


@kernel
def totals(slots: Slots, parts: Any, out: AnyArray) -> None:
    """The double nearest to each total."""
    for i in range(slots.shape[0]):
        out[i] = rounded(parts, slots[i])


@kernel
def deviations(slots: Slots, counts: IntArray, sums: Any, squares: Any, out: AnyArray) -> None:
    """The sum of the squared deviations from the mean, from exact sums and sums of squares.

    With m near the mean it is Σx² - 2mΣx + nm² - (Σx - nm)² / n. All terms but the last, which is small, are computed
    exactly, so no digits cancel.
    """
    work, pair = np.zeros(PARTS), np.zeros(2)
    made = (np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    off = (np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    for i in range(slots.shape[0]):
        s = slots[i]
        n = np.float64(counts[s])
        if n <= 0:
            out[i] = 0.0
            continue
        m = rounded(sums, s) / n
        for part in range(PARTS):
            made[part][0] = squares[part][s]
            off[part][0] = sums[part][s]
        for part in range(PARTS):
            high, low = two_product(m, -2.0 * sums[part][s])
            put_exactly(made, 0, high, work)
            put_exactly(made, 0, low, work)
        pair[0], pair[1] = two_product(m, m)
        for each in pair:
            high, low = two_product(each, n)
            put_exactly(made, 0, high, work)
            put_exactly(made, 0, low, work)
        high, low = two_product(m, -n)
        put_exactly(off, 0, high, work)
        put_exactly(off, 0, low, work)
        rest = rounded(off, 0)
        out[i] = max(rounded(made, 0) - rest * rest / n, 0.0)
