"""Advice for a user who hands a streaming DataFrame to `job.read`: the source to write instead.

Holdfast plans, reads and checkpoints by itself, so it takes a source, not a DataFrame that Spark drives.
"""

import re
from collections.abc import Callable

FILE = re.compile(r"FileSource\[(?P<path>[^\]]*)\]")
FORMAT = re.compile(r"format:?[ =]+(?P<format>\w+)")
LEAF = re.compile(r"^[\s:|+-]*(?P<name>[\w-]+)", re.MULTILINE)
FILE_FORMATS = ("parquet", "csv", "json")
FROM_SPARK = (
    "hf.DataFrameSource(read, latest_offset, schema)  # read(spark, start, end) uses spark.read.format({name!r})"
)


def explain_streaming_dataframe(plan: str) -> str:
    """Return the message of the error, from the text of the DataFrame's plan.

    Parameters
    ----------
    plan
        `queryExecution().logical().toString()`, better with `analyzed().toString()` below it, which holds the path of
        files.
    """
    return (
        "job.read() takes a source, not a streaming DataFrame: Holdfast plans and checkpoints what it reads. "
        f"Instead of this DataFrame write\n\n    stream = job.read({_equivalent(plan)})\n\n"
        "and move the steps that were applied to the DataFrame into stream.transform(lambda df: ...)."
    )


def _equivalent(plan: str) -> str:
    path, given = FILE.search(plan), FORMAT.search(plan)
    named = given["format"].lower() if given else ""
    if named in FILE_FORMATS or (path and not named):
        return f'hf.FileSource("{path["path"] if path else "..."}", format="{named or "parquet"}", schema=...)'
    for name in [named, *(leaf.lower() for leaf in reversed(LEAF.findall(plan)))]:
        if name in KNOWN:
            return KNOWN[name](name)
    return _from_spark(named) if named else "hf.DataFrameSource(read, latest_offset, schema)"


def _sequence(name: str) -> str:
    return f"hf.SequenceSource(rows_per_second=...)  # instead of {name}"


def _from_spark(name: str) -> str:
    return FROM_SPARK.format(name=name)


KNOWN: dict[str, Callable[[str], str]] = {
    "rate": _sequence,
    "rate-micro-batch": _sequence,
    "kafka": _from_spark,
    "delta": _from_spark,
    "deltasource": _from_spark,
    "iceberg": _from_spark,
}
