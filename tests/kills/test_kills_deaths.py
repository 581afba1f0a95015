"""A machine dies at every failpoint, JobMaster and TaskManagers together, and the job is started again: in process."""

import random
import re
from pathlib import Path

import pytest
from kills_in_process import Driver, die_at
from kills_pipelines import Shape, check

from holdfast import failpoints
from holdfast.checkpoint import records
from sampling import quick

NOT_HERE = {
    **dict.fromkeys(
        ["taskmanager.register.before", "sender.register.before", "sender.unit.before", "sender.unit.after"],
        "where processes register and senders stay: see test_kills_processes",
    ),
    **dict.fromkeys(["stream.epoch.parts", "stream.epoch.stored"], "where Spark reads: see test_kills_stream"),
    **dict.fromkeys(["process.copy", "jobmaster.savepoint.before"], "where savepoints are made: see test_job_copying"),
    **dict.fromkeys(
        ["taskmanager.move.before", "jobmaster.follow", "jobmaster.hand.over", "jobmaster.moved"],
        "where subtasks move to other TaskManagers: see test_job_rescale",
    ),
}
PROVOKED = {
    "jobmaster.failover": ("taskmanager.process.after", "raise:TaskManagerLost@4"),
    "taskmanager.rewind.between": ("taskmanager.process.after", "raise:TaskManagerLost@4"),
    "taskmanager.abort": ("jobmaster.process.after", "raise:StorageError@4"),
}
"""Settings without which no job comes by a failpoint."""

EVERY = Shape(rows=960, rows_per_batch=80, interval_s=0.005, log_handles_max=2)
DELTA = Shape(**{**vars(EVERY), "rows": 560, "sink": "delta"})
"""A commit of Delta takes most of a batch's time, so fewer batches have to do."""
ALONE = Shape(**{**vars(EVERY), "gathered_size_max": 0})
LASTING = Shape(**{**vars(EVERY), "rows": 12_000, "rows_per_batch": 40, "log_handles_max": 1})
SHAPES = {
    "sink.callback": [Shape(**{**vars(EVERY), "sink": "callback"})],
    "sink.kafka": [Shape(**{**vars(EVERY), "rows": 400, "sink": "kafka"})],
    "sink.parquet": [EVERY],
    "sink.delta": [
        DELTA,
        Shape(**{**vars(DELTA), "emit": "chain"}),
    ],
    "sink.staged": [Shape(**{**vars(EVERY), "rows": 24_000, "rows_per_batch": 4000, "keys": 5000})],
    # Committables are gathered where several batches wait for a checkpoint.
    "jobmaster.gather": [Shape(**{**vars(EVERY), "interval_s": 1.0})],
    # Small logs travel, so that their TaskManagers store no object.
    "changelog.upload": [ALONE],
    "taskmanager.cut.manifest": [ALONE],
    # A table is materialized once its log is long, beside batches, and an object of logs that travelled is deleted
    # once these logs are truncated: a short job may end before.
    "materialize": [LASTING],
    "jobmaster.delete": [LASTING, ALONE],
    "": [EVERY, Shape(**{**vars(DELTA), "emit": "chain"})],
}


@pytest.fixture(autouse=True)
def _disarmed(monkeypatch):
    """Records expire at once: these jobs last for some seconds, and meet the steps of expiry all the time."""
    monkeypatch.setattr(records, "EXPIRY_GRACE_S", 0.0)
    yield
    failpoints.disarm()


def shapes(point: str) -> list[Shape]:
    return next(found for prefix, found in SHAPES.items() if point.startswith(prefix))


POINTS = {point: point for point in sorted(failpoints.KNOWN.keys() - NOT_HERE.keys())}
QUICK = [point for point in POINTS if point.startswith("sink.") and not point.endswith(".after")]
"""The steps of sinks, which are real here. A death after a step is, but for a few lines, the death before the next one.
Simulated jobs die at each of the other steps (test_simulation_jobs)."""
OTHERS = ["changelog.upload.before", "jobmaster.record.before", "journal.takeover.put", "taskmanager.commit.between"]
"""A step of each kind beside them: threads and files are real here."""


@pytest.mark.parametrize("point", quick(*QUICK, *OTHERS, of=POINTS))
def test_a_death_loses_nothing_and_repeats_nothing(point, tmp_path):
    """Processes die at a later hit, or at the first if there are no more; the long test below has all
    hits.
    """
    rng = random.Random(point)
    shape, later = rng.choice(shapes(point)), rng.randint(2, 9)
    died = _dies(shape, tmp_path / "later", point, later) or _dies(shape, tmp_path / "first", point, 1)
    assert died, f"{point} was never met: the test proves nothing"


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_any_of_the_first_hits_loses_nothing_and_repeats_nothing(point, tmp_path):
    for number, shape in enumerate(shapes(point)):
        for hit in range(1, 10):
            _dies(shape, tmp_path / f"{number}-{hit}", point, hit)


def _dies(shape: Shape, folder: Path, point: str, hit: int) -> bool:
    if point in PROVOKED:
        failpoints.arm(*PROVOKED[point])
    died = die_at(shape, folder, point, hit)
    print(f"{point}: {shape.emit} to {shape.sink}, hit {hit}: {'died' if died else 'not met'}")
    if not died:
        check(shape, folder)
    more = shape.with_rows(shape.rows + 3 * shape.rows_per_batch)
    Driver(more.in_few_batches(), folder).start().finish()
    check(more, folder)
    return died


def test_the_list_of_failpoints_is_what_the_code_has():
    source = Path(failpoints.__file__).parent
    texts = [path.read_text() for path in source.rglob("*.py") if path != Path(failpoints.__file__)]
    assert set(failpoints.KNOWN) == {name for text in texts for name in re.findall(r'\bhit\("([^"]+)"\)', text)}
