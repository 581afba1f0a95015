"""Integers beyond 64 bits in Avro values, which both libraries silently cut to 64 bits. The specification forbids them.

An integer takes as many bytes as its value needs, all but the last with the high bit set: ten at most, and of the tenth
only the lowest bit counts. A longer one is rare, and so is its pattern of bytes, except in text of many alphabets.
Values with the pattern are encoded again, and those that come out differently are checked byte by byte.
"""

import re
from collections.abc import Callable
from typing import Any

INTEGER_BYTES_MAX = 10
TOO_LONG = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]")
"""Bytes of an integer beyond 64 bits, or of something else."""


def suspects(values: list[bytes]) -> list[bytes]:
    """Return the values that may have an integer beyond 64 bits."""
    if not TOO_LONG.search(b"\0".join(values)):
        return []
    return [value for value in values if TOO_LONG.search(value)]


def check_integers(
    values: list[bytes], expanded: Any, encoded_again: Callable[[list[bytes]], list[bytes]] | None = None
) -> None:
    """Raise `ValueError` if a value has an integer beyond 64 bits.

    `expanded`: the schema of the values, with the definitions of named types filled in. `encoded_again`: decodes values
    and encodes them again; a value that does not change need not be checked.
    """
    found = suspects(values)
    if found and encoded_again is not None:
        found = [value for value, again in zip(found, encoded_again(found), strict=True) if value != again]
    for value in found:
        _past(expanded, value, 0)


def _past(declared: Any, data: bytes, at: int) -> int:
    """Return the place after a value of a type, which begins at `at`."""
    if isinstance(declared, list):
        branch, at = _integer(data, at)
        if not 0 <= branch < len(declared):
            raise ValueError(f"branch {branch} of a union of {len(declared)}")
        return _past(declared[branch], data, at)
    kind = declared["type"] if isinstance(declared, dict) else declared
    match kind:
        case dict() | list():
            return _past(kind, data, at)
        case "null":
            return at
        case "boolean":
            return at + 1
        case "int" | "long" | "enum":
            return _integer(data, at)[1]
        case "float":
            return at + 4
        case "double":
            return at + 8
        case "fixed":
            return at + int(declared["size"])
        case "string" | "bytes":
            return _past_bytes(data, at)
        case "array":
            return _past_blocks(data, at, lambda at: _past(declared["items"], data, at))
        case "map":
            return _past_blocks(data, at, lambda at: _past(declared["values"], data, _past_bytes(data, at)))
    for field in declared["fields"]:
        at = _past(field["type"], data, at)
    return at


def _past_bytes(data: bytes, at: int) -> int:
    length, at = _integer(data, at)
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"claims {length} bytes of the {len(data) - at} that follow")
    return at + length


def _past_blocks(data: bytes, at: int, past_item: Callable[[int], int]) -> int:
    """Return the place after the blocks of an array or a map; a negative number of items is followed by their size in
    bytes."""
    while True:
        count, at = _integer(data, at)
        if not count:
            return at
        if count < 0:
            _, at = _integer(data, at)
        if abs(count) > len(data):
            raise ValueError(f"claims {abs(count)} items in {len(data)} bytes")
        for _ in range(abs(count)):
            at = past_item(at)


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Read an integer; return it and the place after it."""
    found = 0
    for place, byte in enumerate(data[at : at + INTEGER_BYTES_MAX]):
        found |= (byte & 0x7F) << (7 * place)
        if byte < 0x80 and found < 1 << 64:
            return (found >> 1) ^ -(found & 1), at + place + 1
    reason = "has an integer beyond 64 bits" if len(data) - at >= INTEGER_BYTES_MAX else "ends within an integer"
    raise ValueError(f"{reason}, at byte {at}")
