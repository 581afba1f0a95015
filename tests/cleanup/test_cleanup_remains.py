"""A later sweep of a running job finds the objects that dead processes left or that came late; others stay."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cleanup.schedule import AGAIN_AFTER_S
from holdfast.maintenance.verify import verify
from holdfast.query import Query
from holdfast.storage import names
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import ManualClock, start
from holdfast.testing.local import LocalCluster
from maintenance_kit import BATCH_ROWS, job_of_every_kind, write_files
from waiting import until


class Running:
    """A job on a clock of its own; batches and checkpoints come singly."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.cluster: LocalCluster | None = None
        self.query: Query = start(
            job_of_every_kind(folder), hf.processing_time(), clock=self.clock, on_cluster=self._note
        )
        self.store: ObjectStore = open_store((folder / "storage").as_uri())

    def _note(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def batch(self) -> None:
        """Run a further batch, and commit it."""
        batches = len(self.query.totals.batch_rows)
        write_files(self.folder / "in", 1, seed=batches)
        self.clock.advance(1.0)
        until(lambda: len(self.query.totals.batch_rows) > batches)

    def step(self) -> None:
        """A batch, and a checkpoint of it."""
        self.batch()
        self.query.trigger_checkpoint(60)

    def sweep(self) -> None:
        """Let as much time go by as there is between two sweeps."""
        self.clock.advance(max(AGAIN_AFTER_S))

    def there(self) -> set[str]:
        return {info.name for info in self.store.list("")}

    def put(self, name: str) -> str:
        self.store.put(name, b"late")
        return name

    def staged(self, run: int, batch: int) -> str:
        """Staged by a task that died before it said so."""
        folder = names.staging_folder(self.query.id, 1, run)
        return self.put(f"{folder}/later/{batch:0{names.DIGITS}d}-000000-dead-0000.arrow")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.query.stop()


def test_what_lands_late_in_the_living_epoch_goes_with_a_later_sweep(running: Running) -> None:
    for _ in range(2):
        running.step()
    late = {
        running.put(names.manifest(1, 1, 7)),
        running.put(names.committables(1, 1, "nobody")),
        running.put(names.source_chunk(1)),
        running.staged(run=1, batch=0),
    }
    running.sweep()
    until(lambda: not late & running.there())
    running.step()
    assert verify(running.store).ok


def test_what_is_still_to_be_published_or_recorded_stays(running: Running) -> None:
    running.step()
    waiting = {name for name in running.there() if name.startswith("staging/")}
    assert waiting, "nothing was staged that its sink could not take"
    running.batch()
    unrecorded = {name for name in running.there() if name.startswith("staging/")} - waiting
    assert unrecorded, "the batch that no checkpoint holds staged nothing"
    future = running.staged(run=1, batch=10**6)
    gone = running.staged(run=1, batch=0)
    running.sweep()
    until(lambda: gone not in running.there())
    assert waiting | unrecorded | {future} <= running.there()
    running.query.trigger_checkpoint(60)
    assert verify(running.store).ok


def test_what_a_dead_task_manager_puts_after_the_failover_goes_with_a_later_sweep(running: Running) -> None:
    running.step()
    assert running.cluster is not None
    running.cluster.kill(0)
    until(lambda: running.query.restarts)
    running.step()
    late = {
        running.put(names.changelog_object(1, 1)),
        running.put(names.shared_object(1, 1)),
        running.staged(run=1, batch=10**6),
    }
    living = running.put(names.changelog_object(1, 2))
    running.sweep()
    until(lambda: not late & running.there())
    assert living in running.there(), "what a living incarnation is uploading is its own"
    running.step()
    assert verify(running.store).ok


def test_what_older_epochs_put_after_the_takeover_goes_with_a_later_sweep(tmp_path: Path) -> None:
    first = Running(tmp_path)
    first.step()
    first.query.stop()
    second = Running(tmp_path)
    try:
        second.step()
        late = {
            second.put(names.changelog_object(1, 1)),
            second.put(names.manifest(1, 999, 0)),
            second.staged(1, 10**6),
        }
        second.sweep()
        until(lambda: not late & second.there())
        second.step()
        assert verify(second.store).ok
        assert sum(second.query.totals.batch_rows) == 2 * BATCH_ROWS
    finally:
        second.query.stop()
