"""A job of operators over changes, and savepoints of it, which later code must go on from.

A savepoint in `golden/` holds whole tables of the first two batches, and the log of two more. To write the savepoints
anew, where the stored form changed and has another name, run `scripts/run.sh python tests/job/stored_changes_kit.py`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stored_joins_kit import GOLDEN, STATES, pack

import holdfast as hf
from holdfast.testing import TestSource, run, start

SCHEMA = "k BIGINT, v BIGINT, d DOUBLE, m DECIMAL(12, 2), s STRING, at TIMESTAMP, _change_type STRING"
OPERATORS = ("aggregates", "last", "top", "first", "distinct", "joined", "open", "closed")
STORED_BATCHES = 4
"""Number of the first `BATCHES` that a savepoint has seen."""


def change(kind: str, k: int, v: int) -> dict[str, Any]:
    """A row whose other columns follow from its number; texts are long, so that logs have full blocks."""
    values = {"k": k, "v": v, "d": v / 4, "m": None if v % 5 == 0 else v, "s": f"{v:03}".ljust(90, "ä")}
    return {**values, "at": datetime.fromtimestamp(v, UTC), "_change_type": kind}


def update(k: int, before: int, after: int) -> list[dict[str, Any]]:
    return [change("update_preimage", k, before), change("update_postimage", k, after)]


BATCHES = [
    [*(change("insert", 1, v) for v in range(30)), *(change("insert", 2, v) for v in (3, 5, 5))],
    [*update(1, 29, 35), change("delete", 1, 28), change("delete", 2, 5), change("insert", 3, 12)],
    [*update(3, 12, 13), *(change("insert", 3, v) for v in (9, 13)), change("delete", 1, 0)],
    [change("delete", 4, 7), change("insert", 4, 8), change("delete", 1, 27)],
    [change("insert", 4, 7), change("delete", 1, 35), change("delete", 2, 3), *update(3, 13, 2)],
    [change("delete", 3, 9), change("insert", 5, 70), change("delete", 2, 5), *update(4, 8, 40)],
]


def new_source(length: int = len(BATCHES)) -> TestSource:
    source = TestSource(BATCHES, SCHEMA, name="table")
    source.length = length
    return source


def new_sinks() -> dict[str, hf.MemorySink]:
    return {name: hf.MemorySink(name=f"{name}_out") for name in OPERATORS}


def made(storage: str, source: TestSource, sinks: Mapping[str, hf.MemorySink], **settings: Any) -> hf.Job:
    settings.setdefault("checkpoint", hf.CheckpointConfig(trigger=hf.manual()))
    job = hf.Job(None, name="stored", storage=storage, **settings)
    table = job.read(source).with_watermark("at", "25s")
    keyed, rows = table.key_by("k"), table.select("k", "v", "s")
    of_window = {"n": hf.count(), "most": hf.max("v"), "values": hf.count_distinct("s")}
    streams = {
        "aggregates": keyed.aggregate(
            n=hf.count(),
            total=hf.sum("v"),
            doubles=hf.sum("d"),
            decimals=hf.mean("m"),
            spread=hf.variance("d"),
            least=hf.min("m"),
            greatest=hf.max("s"),
            best=hf.max_by("v", "s"),
            all=hf.collect_list("v"),
            values=hf.count_distinct("m"),
            name="aggregates",
        ),
        "last": rows.key_by("k").last(by="v", name="last"),
        "top": rows.key_by("k").top(2, by="v", changes=True, name="top"),
        "first": rows.drop_duplicates("k", name="first"),
        "distinct": rows.select("k", "v").drop_duplicates("k", "v", name="distinct"),
        "joined": rows.key_by("k").join(table.select("v AS k", "d").key_by("k"), how="left", name="joined"),
        "open": table.key_by("k", hf.window("at", "20s")).aggregate(**of_window, emit="changes", name="open"),
        "closed": table.key_by(hf.window("at", "20s", slide="10s")).aggregate(**of_window, name="closed"),
    }
    for name, stream in streams.items():
        stream.write(sinks[name])
    return job


def file_of(backend: str) -> Path:
    return GOLDEN / f"changes-1-{backend}.tar.xz"


def write(backend: str) -> None:
    """Run the first batches, and pack a savepoint of their end."""
    storage, saved = f"memory://changes-{backend}", f"memory://changes-savepoint-{backend}"
    sinks, whole = new_sinks(), hf.CheckpointConfig(trigger=hf.manual(), changelog=False)
    run(made(storage, new_source(STORED_BATCHES // 2), sinks, state=STATES[backend], checkpoint=whole))
    source = new_source(STORED_BATCHES)
    query = start(made(storage, source, sinks, state=STATES[backend]), hf.processing_time("0s"))
    query.processAllAvailable()
    query.stop(with_savepoint=saved)
    pack(saved, file_of(backend))


if __name__ == "__main__":
    for each_backend in STATES:
        write(each_backend)
