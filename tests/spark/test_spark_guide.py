"""The queries of Spark's programming guide give the same rows in Structured Streaming and in Holdfast."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.schema import to_arrow_schema

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "from-structured-streaming.md"
WHOLE = ("counted", "averaged", "total", "words")
"""Queries whose groups have no end: their newest rows are compared."""
HIDDEN = {"", "0", "-1"}
"""Values of the last rows, which move the watermark on."""


def streamed(spark: Any, name: str, batches: list[list[dict[str, Any]]], schema: str, folder: Path) -> Any:
    """Read rows as a stream with a batch for each list. Spark's watermarks are of TIMESTAMP alone."""
    schema = schema.replace("TIMESTAMP_NTZ", "TIMESTAMP")
    (folder / name).mkdir()
    for place, rows in enumerate(batches):
        file = folder / name / f"{place}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, to_arrow_schema(schema)), file)
        os.utime(file, (1_000_000 + place, 1_000_000 + place))
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
    frame.createOrReplaceTempView(name)
    return frame


def given(spark: Any, name: str, frame: Any, folder: Path) -> list[dict[str, Any]]:
    """Run a query of Structured Streaming, and return its rows."""
    mode = "complete" if name in WHOLE else "append"
    writer = frame.writeStream.format("memory").queryName(f"guide_{name}").outputMode(mode)
    query = writer.option("checkpointLocation", str(folder / f"{name}-checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    return [flat(row.asDict(recursive=True)) for row in spark.table(f"guide_{name}").collect()]


def flat(row: dict[str, Any]) -> dict[str, Any]:
    found = dict(row)
    for window in ("window", "session_window"):
        bounds = found.pop(window, None)
        if bounds is not None:
            found |= {"window_start": bounds["start"], "window_end": bounds["end"]}
    return found


def shown(rows: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    made = [sorted((name, str(value)) for name, value in row.items()) for row in rows]
    return sorted(row for row in made if not HIDDEN & {value for _, value in row})


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_each_query_of_the_guide_gives_the_rows_of_structured_streaming(spark: Any, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "docs"))
    from docs_pages import run, snippets

    names = run([each for each in snippets(PAGE) if not each.spark], tmp_path, {})
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    own.conf.set("spark.sql.session.timeZone", "UTC")
    frames = {name: streamed(own, name, *each, tmp_path) for name, each in names["inputs"].items()}
    (code,) = re.findall(r"^```py\n(# Structured Streaming\nfrom pyspark.*?)^```$", PAGE.read_text(), re.M | re.S)
    exec(code, space := {"spark": own, **frames})
    assert list(space["in_spark"]) == list(names["by_methods"])
    for name, frame in space["in_spark"].items():
        found, wanted = shown(names["sinks"]["methods", name].rows()), shown(given(own, name, frame, tmp_path))
        assert found == wanted and wanted, name
