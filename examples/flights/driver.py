"""The driver process: leads the job to the end of its input, or waits for the end of another driver that leads.

It keeps a small file up to date that says how far it is.

python -m examples.flights.driver <folder> <status file> <rows per batch>
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import holdfast as hf
from examples.flights.job import delays
from examples.running import session

REPORT_INTERVAL_S = 0.1


@dataclass
class Status:
    """Report of the driver process. `position`: bytes of the input that committed batches have read; `ready`: the
    driver waits, and all its processes do."""

    ready: bool = False
    position: int = 0
    batches: int = 0
    restarts: int = 0
    checkpoints_ms: list[float] = field(default_factory=list)
    task_managers: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Replaces the file as a whole, so that no reader sees half of it."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.rename(path)

    @staticmethod
    def read(path: Path) -> "Status":
        return Status(**json.loads(path.read_text())) if path.exists() else Status()


def status_of(query: hf.Query, size: int) -> Status:
    progress = query.lastProgress
    # A single input file, so its position is the entry "0"; there is no such entry once it is read to the end.
    position = progress["sources"][0]["endOffset"].get("0", size) if progress else 0
    return Status(
        position=position,
        batches=len(query.totals.batch_ms),
        restarts=len(query.restarts),
        checkpoints_ms=[checkpoint.duration_s * 1000 for checkpoint in query.totals.checkpoints],
        task_managers=[task_manager["address"] for task_manager in query.taskManagers],
    )


def main(folder: Path, status: Path, rows_per_batch: int) -> None:
    spark = session()
    query = delays(spark, folder, rows_per_batch).start(trigger=hf.available_now(), standby=True)
    assert isinstance(query, hf.StandbyQuery)
    while not query.await_lead(REPORT_INTERVAL_S) and query.isActive:
        watched = query.status.get("standby", {})
        Status(ready=0 < watched.get("processes", 0) == watched["processesReady"]).write(status)
    size = (folder / "flights.csv").stat().st_size
    while not query.awaitTermination(timeout=REPORT_INTERVAL_S):
        status_of(query, size).write(status)
    status_of(query, size).write(status)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
