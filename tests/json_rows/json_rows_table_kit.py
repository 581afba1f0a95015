"""The table of JSON values and types as data: which value each JSON text gives, and which texts are wrong."""

import datetime
import decimal
import json
import math

WRONG = object()
"""The value of a record that is bad."""
DAY, MOMENT = datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5)
UTC_MOMENT = MOMENT.replace(tzinfo=datetime.UTC)

OF_ALL_TYPES = {"null": None}
FITS: dict[str, dict[str, object]] = {
    "BOOLEAN": {"true": True, "false": False},
    "TINYINT": {"1": 1, "-128": -128, "127": 127, "-0": 0},
    "SMALLINT": {"300": 300, "-32768": -32768},
    "INT": {"2147483647": 2**31 - 1, "300": 300},
    "BIGINT": {"9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63), "9007199254740993": 2**53 + 1},
    "FLOAT": {"1": 1.0, "0.1": 0.10000000149011612, "1e3": 1000.0, "3.4028235e38": 3.4028234663852886e38},
    "DOUBLE": {"1": 1.0, "-0": -0.0, "1.5": 1.5, "1e-400": 0.0, "5e-324": 5e-324, "0.1": 0.1},
    "DECIMAL(10,2)": {"1": decimal.Decimal(1), "1.5": decimal.Decimal("1.5"), '"1.25"': decimal.Decimal("1.25")},
    "DECIMAL(38,20)": {"1E-20": decimal.Decimal("1E-20"), "1e2": decimal.Decimal(100), '"-0"': decimal.Decimal(0)},
    "STRING": {
        '"a"': "a",
        '"\\u00e9"': "é",
        "1.50": "1.50",
        "true": "true",
        '{"b": [1, 2]}': '{"b": [1, 2]}',
        "[]": "[]",
    },
    "BINARY": {'"AP8="': b"\x00\xff", '""': b""},
    "DATE": {'"2026-01-02"': DAY, '"0001-01-01"': datetime.date(1, 1, 1)},
    "TIMESTAMP": {
        '"2026-01-02T03:04:05Z"': UTC_MOMENT,
        '"2026-01-02 04:04:05+01:00"': UTC_MOMENT,
        '"2026-01-02T03:04:05.123456789Z"': UTC_MOMENT.replace(microsecond=123456),
        '"1969-12-31T23:59:59.9999999Z"': datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC),
    },
    "TIMESTAMP_NTZ": {'"2026-01-02T03:04:05"': MOMENT, '"2026-01-02"': datetime.datetime(2026, 1, 2)},
}
NOT_FINITE = {'"NaN"': math.nan, '"Infinity"': math.inf, '"-Infinity"': -math.inf}
BARE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
FITS["FLOAT"] |= NOT_FINITE | BARE
FITS["DOUBLE"] |= NOT_FINITE | BARE
OF_NO_NUMBER = ["[]", "{}", "true", '"x"']
WHOLE = ["1.5", "1.0", "1e2", "NaN", '"1"', *OF_NO_NUMBER]
BAD: dict[str, list[str]] = {
    "BOOLEAN": ["1", "0", '"true"', "[]", "{}", "1.5"],
    "TINYINT": ["128", "-129", "1" * 400, *WHOLE],
    "SMALLINT": ["32768", *WHOLE],
    "INT": ["2147483648", "-2147483649", *WHOLE],
    "BIGINT": ["9223372036854775808", "1" * 5000, *WHOLE],
    "FLOAT": ["1e39", "-1e39", "9" * 400, '"1"', '""', *OF_NO_NUMBER],
    "DOUBLE": ["1e309", "-1e309", "9" * 400, '"1"', '"nan"', *OF_NO_NUMBER],
    "DECIMAL(10,2)": ["1.555", "123456789.1", "1e500", "NaN", '"NaN"', '" 1"', '""', *OF_NO_NUMBER],
    "DECIMAL(38,20)": [
        "1E-21",
        "1" * 19,
        "1" * 20,
        "9" * 20,
        "1" * 30,
        "9" * 400,
        "3.4e38",
        "9e37",
        '"9e37"',
        "1" * 39,
        *OF_NO_NUMBER,
    ],
    "STRING": [],
    "BINARY": ['"AP8"', '"?"', '"AP8=\\n"', '"é"', "1", "true", "[]", "{}", "Infinity"],
    "DATE": ['"2026-02-30"', '"soon"', '"2026-01-02T00:00:00"', "1", "true", "[]", "{}", '"10000-01-01x"'],
    "TIMESTAMP": ['"2026-01-02T03:04:05"', '"2026-01-02"', '"2026-01-02T24:00:00Z"', "1767322800", "1.5", "true", "[]"],
    "TIMESTAMP_NTZ": ['"2026-01-02T03:04:05Z"', '"2026-13-02"', "1767322800", "true", "{}", '"+300000-01-01"'],
}


def key_of(text: str) -> str:
    """Write a JSON value as the key of an object."""
    return text if text.startswith('"') else json.dumps(text)


def cases(type_: str) -> dict[str, object]:
    return OF_ALL_TYPES | FITS[type_] | dict.fromkeys(BAD[type_], WRONG)
