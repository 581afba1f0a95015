"""The table of JSON values and types against Spark's JSON reader with a schema: where both differ is written down."""

import re

import pyarrow as pa
import pytest
from json_rows_kit import comparable
from json_rows_table_kit import FITS, WRONG, cases

from holdfast.json_rows.reader import JsonReader
from holdfast.schema import to_arrow_schema

pytestmark = [pytest.mark.spark, pytest.mark.long]

VALUES = sorted({text for type_ in FITS for text in cases(type_)} | {'"2026-1-2"', '"2026"', '"2026-01-02T03:04Z"'})
AS_NUMBER = {
    "DATE": "unix_date(v)",
    "TIMESTAMP": "unix_micros(v)",
    "TIMESTAMP_NTZ": "unix_micros(CAST(v AS TIMESTAMP))",
}
DEVIATIONS = {
    "TINYINT": r"128",  # Spark wraps around.
    "FLOAT|DOUBLE": r"-?[0-9]+|-?1e[0-9]+",  # Beyond the range; Spark makes them infinite.
    "DECIMAL.*": r"[0-9.]+|[0-9]+[eE]-[0-9]+",  # More digits than the scale; Spark rounds.
    "STRING": r"1{1001,}",  # Spark has a bound on the digits of a number.
    "BINARY": r'"AP8=\\n"',
    "DATE": r'-?[0-9]+|"[-+0-9TZ: .]+"',
    "TIMESTAMP": r'-?[0-9]+|"[-+0-9TZ: .]+"',
    "TIMESTAMP_NTZ": r'"[-+0-9TZ: .]+"',
}


def of_spark(spark, folder, type_: str) -> list[object]:
    """The values of records that Spark reads, or `WRONG`."""
    path = folder / "records.json"
    path.write_text("".join(f'{{"v": {text}, "n": {number}}}\n' for number, text in enumerate(VALUES)))
    rows = spark.read.schema(f"v {type_}, n INT, bad STRING").option("columnNameOfCorruptRecord", "bad")
    rows = rows.option("timeZone", "UTC").json(str(path)).cache()
    found: dict[int, object] = {}
    for value, number, bad in rows.selectExpr(AS_NUMBER.get(type_, "v"), "n", "bad").collect():
        place = number if bad is None else int(re.findall(r'"n": (\d+)', bad)[-1])
        if bad is not None:
            found[place] = WRONG
        elif isinstance(value, bytearray):
            found[place] = bytes(value)
        else:
            found[place] = repr(value) if isinstance(value, float) else value
    return [found[place] for place in range(len(VALUES))]


def of_holdfast(type_: str) -> list[object]:
    rows, bad = JsonReader(to_arrow_schema(f"v {type_}")).read(
        pa.array([f'{{"v": {text}}}'.encode() for text in VALUES])
    )
    good, wrong = iter(comparable(rows.column(0))), {place for place, _ in bad}
    return [WRONG if place in wrong else next(good) for place in range(len(VALUES))]


@pytest.mark.parametrize("type_", FITS)
def test_spark_reads_the_same_values_but_for_those_that_are_named(spark, tmp_path, type_):
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    both = zip(VALUES, of_holdfast(type_), of_spark(spark, tmp_path, type_), strict=True)
    different = [(text, ours, theirs) for text, ours, theirs in both if ours != theirs]
    named = next((pattern for types, pattern in DEVIATIONS.items() if re.fullmatch(types, type_)), "")
    assert [found for found in different if not re.fullmatch(named, found[0])] == []
    valued = [found for found in different if WRONG not in found[1:]]
    assert [found for found in valued if found[0] not in {"-0"}] == []
