"""Checks of the text of a JSON record before it is parsed: its levels, and floats that are no numbers in JSON. Parsers
recurse and Python's stack is bounded, so the number of levels has its own bound.
"""

import re

DEPTH_MAX = 256
"""Levels of arrays and objects in a record. A higher value comes closer to Python's limit of 1,000 calls."""
TOO_DEEP = f"has more than {DEPTH_MAX} levels of arrays and objects"

STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""A text in JSON, or the rest of a record in which a text does not end. Linear in the length of the record."""
BARE_NOT_FINITE = re.compile(rb"-?(?:NaN|Inf(?:inity)?)(?=[ \t\r\n]*[],}])")
TEXT_OR_NOT_FINITE = re.compile(STRING.pattern + rb"|(" + BARE_NOT_FINITE.pattern + rb")", re.DOTALL)
BETWEEN = re.compile(rb"[^][{}]+")


def is_too_deep(record: bytes) -> bool:
    """Return whether a record, which need not be valid JSON, has more than `DEPTH_MAX` levels."""
    if len(record) <= DEPTH_MAX or record.count(b"[") + record.count(b"{") <= DEPTH_MAX:
        return False
    level = 0
    for bracket in BETWEEN.sub(b"", STRING.sub(b"", record)):
        level += 1 if bracket in b"[{" else -1
        if level > DEPTH_MAX:
            return True
    return False


INFINITY = rb'"\u0049nfinity"'
"""Text that replaces a bare Infinity. Its bytes differ from those of the text "Infinity", which is also valid
base64."""


def quote_not_finite(record: bytes) -> bytes:
    """Make texts of NaN and Infinity, which Python and Java write into JSON: as texts they fit the same types."""

    def quoted(found: re.Match[bytes]) -> bytes:
        if not found[1]:
            return found[0]
        return INFINITY if found[1] == b"Infinity" else b'"%b"' % found[1]

    return TEXT_OR_NOT_FINITE.sub(quoted, record)
