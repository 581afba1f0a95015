"""The cost of changes: processor time of each operator over changes, beside the same rows as inserts.

    python -m benchmarks.changes --json                    # all operators, in a minute
    python -m benchmarks.changes --operator last --repeats 3

400,000 rows of 20,000 keys come from Parquet files, ten batches, and go through a job that runs in this process, with
state in memory and a checkpoint each second. In the stream of changes half of the rows insert, a quarter are the halves
of updates, and a quarter delete rows that were inserted. `ratios`: processor time of the job over the changes ÷ that
over as many inserts, which are rows that only come. `operator_ratios`: the same of the operator alone, without reading,
steps, the way to the state, and checkpoints.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from holdfast.functions.duplicates.declaring import DuplicatesSettings
from holdfast.functions.joins.declaring import JoinSettings
from holdfast.functions.operator import BatchContext, OperatorInput, OperatorSpec
from holdfast.functions.ranking.declaring import LastSettings, TopSettings
from holdfast.functions.rows.policies import RowHandling
from holdfast.functions.windows.declaring import AggregateSettings, WindowSettings
from holdfast.ids import BatchNumber
from holdfast.schema import CHANGE_TYPE
from holdfast.testing import run

KEYS, BATCHES, ROWS_OF_A_BATCH = 20_000, 10, 40_000
ROWS = RowHandling("fail", False)
WINDOWS = WindowSettings(ROWS)

Specify = Callable[[str, tuple[OperatorInput, ...]], OperatorSpec]
Apply = Callable[[hf.Stream, Callable[[], hf.Stream]], hf.Stream]
"""Applies an operator to rows; a join also reads its right side."""

OPERATORS: dict[str, tuple[Specify, Apply]] = {
    "sum": (
        AggregateSettings({"n": hf.count(), "total": hf.sum("v")}, WINDOWS).spec,
        lambda rows, _: rows.key_by("k").aggregate(n=hf.count(), total=hf.sum("v"), name="o"),
    ),
    "max": (
        AggregateSettings({"most": hf.max("v")}, WINDOWS).spec,
        lambda rows, _: rows.key_by("k").aggregate(most=hf.max("v"), name="o"),
    ),
    "count_distinct": (
        AggregateSettings({"values": hf.count_distinct("v")}, WINDOWS).spec,
        lambda rows, _: rows.key_by("k").aggregate(values=hf.count_distinct("v"), name="o"),
    ),
    "last": (LastSettings("v").spec, lambda rows, _: rows.key_by("k").last(by="v", name="o")),
    "top": (TopSettings(3, "v", False, False, WINDOWS).spec, lambda rows, _: rows.key_by("k").top(3, by="v", name="o")),
    "drop_duplicates": (
        DuplicatesSettings(None, "drop", ROWS).spec,
        lambda rows, _: rows.drop_duplicates("k", name="o"),
    ),
    "join": (
        JoinSettings(suffix="_right").spec,
        lambda rows, right: rows.key_by("k").join(right().key_by("k"), suffix="_right", name="o"),
    ),
}


def batches(changes: bool) -> list[pa.RecordBatch]:
    """Make batches of inserts, or of changes that take back rows of the batch before."""
    drawn, made = np.random.default_rng(0), []
    gone = np.zeros((2, 0), np.int64)
    for number in range(BATCHES):
        rows = np.stack([drawn.integers(0, KEYS, ROWS_OF_A_BATCH), drawn.permutation(ROWS_OF_A_BATCH) + number])
        kinds = np.full(ROWS_OF_A_BATCH, "insert", dtype=object)
        if changes and gone.shape[1]:
            quarter, eighth = ROWS_OF_A_BATCH // 4, ROWS_OF_A_BATCH // 8
            rows[:, :quarter], kinds[:quarter] = gone[:, :quarter], "delete"
            updated = slice(quarter, quarter + 2 * eighth)
            before, after = gone[:, quarter : quarter + eighth], gone[:, quarter : quarter + eighth] + [[0], [1]]
            rows[:, updated] = np.stack([before, after], axis=2).reshape(2, -1)
            kinds[updated] = np.tile(["update_preimage", "update_postimage"], eighth)
        gone = rows[:, ROWS_OF_A_BATCH // 2 :]
        columns: dict[str, Any] = {"k": rows[0], "v": rows[1]}
        made.append(pa.record_batch(columns | ({CHANGE_TYPE: pa.array(kinds.tolist())} if changes else {})))
    return made


def in_operator(name: str, made: list[pa.RecordBatch], changes: bool) -> float:
    """Return the processor time that an operator takes for all batches; a join has a part of each on its right side."""
    given, both = OperatorInput(made[0].schema, ("k",), kind="changes" if changes else "append"), name == "join"
    operator = OPERATORS[name][0]("o", (given, given) if both else (given,)).create(0, 128)
    began = time.process_time()
    for number, rows in enumerate(made, 1):
        for table in operator.tables.values():
            table.begin(BatchNumber(number))
        inputs = [(0, rows), (1, rows.slice(0, rows.num_rows // 8))] if both else [(0, rows)]
        operator.process(inputs, BatchContext(BatchNumber(number), 0, "o", 0))
        for table in operator.tables.values():
            table.defer_changes()
            table.commit()
    for table in operator.tables.values():
        table.collect(BatchNumber(BATCHES))
    return time.process_time() - began


def in_job(name: str, made: list[pa.RecordBatch], changes: bool) -> float:
    """Return the processor time of a job from files, through the operator, to nowhere."""
    with tempfile.TemporaryDirectory(prefix="holdfast-changes-") as folder:
        for of_side, part in (("rows", 1), ("some", 8)):
            Path(folder, of_side).mkdir()
            for number, rows in enumerate(made):
                pq.write_table(pa.table(rows.slice(0, len(rows) // part)), f"{folder}/{of_side}/{number:02}.parquet")
        job = hf.Job(
            None,
            name="changes",
            storage=f"file://{folder}/storage",
            checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
            max_rows_per_batch=ROWS_OF_A_BATCH,
        )

        def side(name: str) -> hf.Stream:
            return job.read(hf.FileSource(f"{folder}/{name}/*.parquet", name=name))

        OPERATORS[name][1](side("rows"), lambda: side("some")).write(hf.NoopSink(name="out"))
        began = time.process_time()
        run(job)
        return time.process_time() - began


def measured(names: list[str], repeats: int) -> dict[str, Any]:
    """Measure operators: the least of several runs each, after one that compiles."""
    rows = {changes: batches(changes) for changes in (False, True)}
    found: dict[str, dict[str, float]] = {"ratios": {}, "operator_ratios": {}, "job_s": {}}
    for name in names:
        least = {}
        for how in (in_operator, in_job):
            runs = [[how(name, rows[changes], changes) for changes in (False, True)] for _ in range(repeats + 1)]
            least[how] = np.min(runs[1:], axis=0).tolist()
        found["ratios"][name] = round(least[in_job][1] / least[in_job][0], 2)
        found["operator_ratios"][name] = round(least[in_operator][1] / least[in_operator][0], 2)
        found["job_s"][name] = round(least[in_job][0], 3)
    rows_of_all = BATCHES * ROWS_OF_A_BATCH
    return {"ratio_to_inserts_max": max(found["ratios"].values()), **found, "rows": rows_of_all}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--operator", choices=OPERATORS, action="append", help="only these operators")
    parser.add_argument("--repeats", type=int, default=2, help="measured runs, of which the least counts")
    given = parser.parse_args()
    found = measured(given.operator or list(OPERATORS), given.repeats)
    if given.json:
        print(json.dumps(found))
        return
    for name, ratio in found["ratios"].items():
        print(f"{name}\t{ratio}\toperator alone {found['operator_ratios'][name]}")


if __name__ == "__main__":
    main()
