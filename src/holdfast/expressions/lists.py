"""Arrow arrays of lists in a plain layout: their items, their offsets, and lists with other items."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def offsets_of(array: pa.Array) -> np.ndarray:
    """Return offsets into `array.flatten()`, which has no items for null lists."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def parents_of(array: pa.Array) -> np.ndarray:
    """Return the row of each item of `array.flatten()`."""
    offsets = offsets_of(array)
    return np.repeat(np.arange(len(array)), np.diff(offsets))


def list_of(offsets: np.ndarray, items: pa.Array, missing: pa.Array) -> pa.Array:
    """Make lists from offsets and items; null where `missing` is true."""
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), items, type=pa.list_(items.type), mask=missing if len(missing) else None
    )


def with_items(array: pa.Array, items: pa.Array) -> pa.Array:
    """Return lists of the same lengths with other items."""
    return list_of(offsets_of(array), items, array.is_null())


def kept(array: pa.Array, keep: np.ndarray) -> pa.Array:
    """Return lists with the items of `array.flatten()` for which `keep` is true."""
    counts = np.concatenate(([0], np.cumsum(keep)))
    offsets = counts[offsets_of(array)]
    return list_of(offsets, array.flatten().filter(pa.array(keep)), array.is_null())
