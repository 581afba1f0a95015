"""The frame around every small stored object: magic, format version, checksum, length, payload.

    offset  bytes  what
    0       4      magic: says what the object is
    4       2      format version, little-endian
    6       2      zero
    8       4      CRC-32 of bytes 0-8 and of the payload, little-endian
    12      4      length of the payload, little-endian
    16      n      payload

A reader refuses an unknown or altered object with a `CorruptObject` that names it. The caller knows the meaning of the
payload.
"""

import struct

from holdfast.errors import CorruptObject
from holdfast.storage import checksum

_HEADER = struct.Struct("<4sHHII")
HEADER_BYTES = _HEADER.size
PAYLOAD_BYTES_MAX = 2**32 - 1


def frame(magic: bytes, version: int, payload: bytes) -> bytes:
    """Build the bytes to store."""
    if len(magic) != 4 or len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(
            f"magic has 4 bytes and a payload at most {PAYLOAD_BYTES_MAX}, not {len(magic)}, {len(payload)}"
        )
    head = _HEADER.pack(magic, version, 0, 0, len(payload))
    return _HEADER.pack(magic, version, 0, _checksum(head, payload), len(payload)) + payload


def unframe(name: str, data: bytes, magic: bytes, version: int, version_min: int | None = None) -> bytes:
    """Return the payload of the object `name`, whose version is `version`, or an older one down to `version_min`.

    Raises
    ------
    CorruptObject
        The object is of another kind or format version, truncated, longer, or altered.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptObject(f"{name}: damaged: expected at least {HEADER_BYTES} bytes, found {len(data)}")
    found_magic, found_version, zero, checksum, length = _HEADER.unpack_from(data)
    if found_magic != magic:
        raise CorruptObject(f"{name}: expected an object that starts with {magic!r}, found {found_magic!r}")
    payload = data[HEADER_BYTES:]
    if length != len(payload) or zero or checksum != _checksum(data, payload):
        raise CorruptObject(
            f"{name}: damaged: length or checksum differ (expected {length} bytes of payload, found {len(payload)}); "
            "restore the object from a copy"
        )
    oldest = version if version_min is None else version_min
    if not oldest <= found_version <= version:
        expected = version if oldest == version else f"{oldest} to {version}"
        raise CorruptObject(
            f"{name}: format version {found_version}, expected {expected}: use the version of Holdfast that wrote it"
        )
    return payload


def checksum_in(data: bytes | memoryview) -> int:
    """Return the checksum in a frame's header."""
    return int(_HEADER.unpack_from(data)[3])


def _checksum(head: bytes, payload: bytes) -> int:
    return checksum.crc32(payload, checksum.crc32(head[:8]))
