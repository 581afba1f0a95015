"""Debezium's embedded engine as a second reader of a slot: its jars by Maven, its events as values to compare with."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "debezium"
ROOT = Path(__file__).resolve().parents[2]
UNAVAILABLE = "__debezium_unavailable_value"
"""Stands in an event for a large value that an update left as it was."""
EPOCH = datetime(1970, 1, 1)


def engine_classes() -> str:
    """Return a class path with the engine, which Maven gets at the first call, and the program."""
    folder = ROOT / "build" / "debezium"
    jars, program = folder / "jars", folder / "program"
    if not jars.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fetched:
            goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
            told = [f"-DoutputDirectory={fetched}/jars", "-DincludeScope=runtime"]
            subprocess.run(["mvn", "-q", "-B", "-f", HERE / "pom.xml", goal, *told], check=True, timeout=600)
            Path(fetched, "jars").rename(jars)
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", program, HERE / "SecondOpinion.java"], check=True, timeout=120)
    return f"{program}:{jars}/*"


@contextmanager
def engine(database: Any, slot: str, log: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """Run the engine on a slot; gives its events, without an end."""
    facts = dict(part.split("=") for part in database.server.dsn.split())
    told = {
        "database.hostname": facts["host"],
        "database.port": facts["port"],
        "database.user": facts["user"],
        "database.dbname": facts["dbname"],
        "database.password": "",
        "slot.name": slot,
        "publication.name": database.publication,
        "table.include.list": ",".join(database.tables),
    }
    command = ["java", "-cp", engine_classes(), "SecondOpinion", *(f"{name}={value}" for name, value in told.items())]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        yield (json.loads(line) for line in process.stdout if line.startswith("{"))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def changes_of(event: dict[str, Any]) -> list[tuple[str, int, datetime, dict[str, Any]]]:
    """Return the rows that an event stands for: kind, transaction, time of the commit to the millisecond, values."""
    kinds = {"c": ["insert"], "d": ["delete"], "u": ["update_preimage", "update_postimage"], "t": ["truncate"]}
    source = event["source"]
    at = EPOCH.replace(tzinfo=UTC) + timedelta(milliseconds=source["ts_ms"])
    rows = {
        "insert": event["after"],
        "update_postimage": event["after"],
        "update_preimage": event["before"],
        "delete": event["before"],
        "truncate": {},
    }
    return [(kind, source["txId"], at, values_of(rows[kind])) for kind in kinds[event["op"]]]


def values_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row as Python's own."""
    read = {
        "amount": Decimal,
        "at": datetime.fromisoformat,
        "on_day": lambda days: date(1970, 1, 1) + timedelta(days),
        "raw": bytes.fromhex,
        "moment": lambda us: EPOCH + timedelta(microseconds=us),
        "clock": lambda us: (EPOCH + timedelta(microseconds=us)).time(),
        "tags": lambda tags: "{" + ",".join(map(str, tags)) + "}",
        "span": lambda span: SPANS[span],
    }
    return {name: None if value is None else read.get(name, lambda each: each)(value) for name, value in row.items()}


SPANS = {"P0Y0M1DT2H3M4S": "1 day 02:03:04", "P0Y-1M0DT0H0M0S": "-1 mons"}


def ours(row: dict[str, Any]) -> tuple[str, int, datetime, dict[str, Any]]:
    """Return a row of the source in the form of `changes_of`."""
    at = row["_commit_time"].replace(microsecond=row["_commit_time"].microsecond // 1000 * 1000)
    values = {name: value for name, value in row.items() if not name.startswith("_")}
    if values["clock"] is not None:
        values["clock"] = time.fromisoformat(values["clock"])
    return row["_change_type"], row["_xid"], at, values
