"""Checks of offsets from users' code: they must be flat, with values that both msgpack and JSON preserve."""

from collections.abc import Mapping
from typing import Any

from holdfast.errors import JobRefused
from holdfast.sources.base import Offsets


def flat_offsets(whose: str, offsets: Any) -> Offsets:
    """Return the offsets as a new dict.

    Raises
    ------
    JobRefused
        The offsets are not a flat dict from names to scalars; the error names the entry.
    """
    if not isinstance(offsets, Mapping):
        raise JobRefused(f"{whose}: gave {offsets!r}, expected a flat dict from split to position")
    for split, position in offsets.items():
        if not isinstance(split, str):
            raise JobRefused(f"{whose}: split {split!r} is {type(split).__name__}, expected str")
        if position is not None and not isinstance(position, int | float | str | bool):
            raise JobRefused(
                f"{whose}: the position of split {split!r} is {position!r} ({type(position).__name__}), expected int, "
                "float, str, bool or None: flatten nested offsets into an entry for each position"
            )
        if isinstance(position, int) and not -(2**63) <= position < 2**63:
            raise JobRefused(f"{whose}: the position of split {split!r} is {position}, expected a 64-bit integer")
    return dict(offsets)
