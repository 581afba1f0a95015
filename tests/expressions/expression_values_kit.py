"""Rows of values with which expressions are compared with Spark: nulls, limits, NaN, far dates, DST, Unicode."""

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa

SEED = 20_261_126
INSTANT = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")


def _time(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


_TIMES = [
    _time(each)
    for each in (
        "1970-01-01 00:00:00",
        "2024-02-29 23:59:59.999999",
        "2026-03-29 01:30:00",
        "2026-03-29 02:30:00",
        "2026-10-25 00:30:00",
        "2026-10-25 01:30:00",
        "2026-10-25 02:30:00.5",
        "1969-12-31 23:59:59.999999",
        "0001-01-03 00:00:00",
        "9999-12-30 23:59:59",
        "1900-01-01 12:34:56.789",
        "2000-01-01 00:00:00.000001",
        "1583-01-01 00:00:00",
        "2026-12-31 12:00:00",
    )
]
COLUMNS = {
    "b": (pa.int8(), [0, 1, -1, 127, -128, 7]),
    "h": (pa.int16(), [0, 1, -1, 32_767, -32_768, 300]),
    "i": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31), 42, 65, 1000]),
    "j": (pa.int32(), [0, 1, 2, 3, -1, -2, 5]),
    "l": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), 10**12, 1_700_000_000, 97]),
    "k": (pa.int64(), [0, 1, 2, 3, -1, -7, 1000]),
    "f": (pa.float32(), [0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), 3.4e38, 1e-3, 0.1]),
    "d": (
        pa.float64(),
        [
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.5,
            -3.5,
            float("nan"),
            float("inf"),
            float("-inf"),
            1e18,
            1e300,
            1e-5,
            0.1,
            123456.789,
        ],
    ),
    "e": (pa.float64(), [0.5, -0.5, 0.25, 1.0, 2.0, 0.75, -1.0, 0.0, 10.0, 3.0]),
    "p": (
        pa.decimal128(10, 2),
        [Decimal(x) for x in ("0.00", "1.50", "-1.55", "99999999.99", "-99999999.99", "12.34", "2.50", "0.05")],
    ),
    "q": (
        pa.decimal128(38, 18),
        [Decimal(x) for x in ("0", "1.5", "-1.000000000000000001", "99999999999999999999.999999999999999999", "3.25")],
    ),
    "s": (
        pa.string(),
        [
            "",
            "a",
            "abc",
            "  padded ",
            "Straße",
            "ÉCOLE",
            "naïve café",
            "日本語",
            "😀x",
            "a,b,,c",
            "Hello World",
            "abcabc",
            "A_b%c",
            "x\ny",
            "it's",
        ],
    ),
    "t": (pa.string(), ["", "a", "b", "bc", "ab", "ß", "本", "World", ",", "c", "😀"]),
    "js": (
        pa.string(),
        [
            '{"a": 1, "b": "x", "c": [1, 2.50, null], "d": {"e": true}}',
            '{"a": 1.0e10, "b": null, "c": []}',
            '{"a": "7", "b": 5, "c": "no", "a": 8}',
            '{"a": 99999999999, "b": "ß\\u0001\\n", "d": {"e": {"f": [1]}}}',
            '[1, {"a": 2}]',
            '{"a": ',
            "",
            "3",
            '{"a": -0.5, "b": [1], "c": [{"e": 1}]} x',
            "not json",
            "null",
            " {} ",
        ],
    ),
    "n": (
        pa.string(),
        [
            "1",
            " 42 ",
            "-7",
            "+5",
            "1.5",
            "abc",
            "",
            "1e3",
            "2147483648",
            "9223372036854775808",
            "NaN",
            "-Infinity",
            "0x1F",
            "true",
            "no",
            "00012",
            "-0",
            ".5",
            "5.",
            "1d",
        ],
    ),
    "w": (
        pa.string(),
        [
            "2024-02-29",
            "2024-2-3",
            "2024",
            "2024-13-01",
            "2023-02-29",
            "2026-03-29 02:30:00",
            "2026-10-25T02:30:00",
            "2024-01-01 10:20:30.123456",
            "2024-01-01T10:20:30Z",
            "2024-01-01 10:20:30+02:00",
            "2024-01-01 25:00:00",
            "x",
            "",
            " 2024-05-06 ",
            "0001-01-01",
            "2024-01-01 1:2",
            "2024-01-01 10:20:30.1",
        ],
    ),
    "c": (pa.date32(), [each.date() for each in _TIMES]),
    "z": (INSTANT, [each.replace(tzinfo=dt.UTC) for each in _TIMES]),
    "y": (LOCAL, _TIMES),
    "o": (pa.bool_(), [True, False]),
    "v": (pa.bool_(), [True, False]),
    "g": (
        pa.binary(),
        [b"", b"a", b"\x00\xff", "é".encode(), b"longer than thirty-two bytes, which is a whole stripe"],
    ),
    "arr": (pa.list_(pa.int32()), [[], [1], [3, 1, 2], [None], [1, None, 1], [5, 5, -7, 0], [2**31 - 1]]),
    "ard": (pa.list_(pa.float64()), [[], [1.5, float("nan"), -0.0], [0.0, None], [float("nan"), float("nan"), 1.0]]),
    "ars": (pa.list_(pa.string()), [[], ["a"], ["b", None, "a"], ["", "ß", "b"], ["a", "a"]]),
    "aa": (pa.list_(pa.list_(pa.int32())), [[], [[1], [2, 3]], [[], None], [[None, 4]]]),
    "m": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1)], [("b", None), ("a", 2)], [("", 3), ("ß", 4)]]),
    "r": (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, {"x": 3, "y": None}],
    ),
}
"""The columns: the type, and the values that come in it beside null."""


def generated(count: int) -> pa.Table:
    """Make rows: each value comes at least once, then in random company; a row in nine is null in a column."""
    drawn = random.Random(SEED)
    made: dict[str, pa.Array] = {"id": pa.array(range(count), pa.int32())}
    for name, (kind, values) in COLUMNS.items():
        some = [
            values[place] if place < len(values) else drawn.choice([*values, None]) if drawn.random() > 0.05 else None
            for place in range(count)
        ]
        drawn.shuffle(some)
        made[name] = pa.array(some, kind)
    return pa.table(made)
