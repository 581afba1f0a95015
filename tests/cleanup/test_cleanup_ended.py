"""A job that ends in order leaves nothing that no checkpoint names: its TaskManagers let go, and clean-up does."""

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cleanup.observation import observe, plan
from holdfast.cleanup.plan import carry_out
from holdfast.cli import app
from holdfast.formats.history import has_ended
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import TestSource, start

BATCHES, ROWS = 6, 1000
CHANGELOG = hf.ChangelogConfig(preemptive_persist_threshold="1KB", log_handles_max=2)


def job(folder: Path) -> hf.Job:
    rng = random.Random(1)
    batches = [[{"u": rng.randrange(500), "t": rng.randbytes(20).hex()} for _ in range(ROWS)] for _ in range(BATCHES)]
    made = hf.Job(
        None,
        name="j",
        storage=(folder / "storage").as_uri(),
        checkpoint=hf.CheckpointConfig(trigger=hf.manual(), changelog=CHANGELOG),
    )
    keyed = made.read(TestSource(batches, "u BIGINT, t STRING", name="rows")).key_by("u")
    keyed.aggregate(n=hf.count(), last=hf.max("t"), name="a").write(hf.MemorySink(name="o"))
    return made


def stop_between_checkpoints(folder: Path) -> ObjectStore:
    """A checkpoint, and further batches whose changes are stored ahead of the next."""
    query = start(job(folder), hf.processing_time())
    while sum(query.totals.batch_rows) < ROWS:
        query.awaitTermination(0.005)
    query.trigger_checkpoint(60)
    while sum(query.totals.batch_rows) < ROWS * BATCHES:
        query.awaitTermination(0.005)
    query.stop()
    return open_store((folder / "storage").as_uri())


def unneeded(store: ObjectStore) -> list[str]:
    observed = observe(store)
    assert observed is not None
    return [info.name for info in plan(store, observed).deleted]


def test_a_taskmanager_that_is_told_to_end_lets_go_of_what_no_checkpoint_names(tmp_path: Path) -> None:
    left = unneeded(stop_between_checkpoints(tmp_path))
    assert not [name for name in left if name.startswith(("dstl/", "shared/"))]


def test_an_epoch_that_ended_in_order_is_over_for_clean_up(tmp_path: Path) -> None:
    store = stop_between_checkpoints(tmp_path)
    assert has_ended(store, 1)
    assert [name for name in unneeded(store) if name.startswith("staging/")]
    said = CliRunner().invoke(app, ["gc", (tmp_path / "storage").as_uri()]).stdout
    assert "epoch 1 has ended; deleted:" in said
    assert not unneeded(store)
    query = start(job(tmp_path), hf.available_now())
    query.awaitTermination(60)
    assert query.exception() is None


def test_an_epoch_that_did_not_say_that_it_ended_is_left_alone(tmp_path: Path) -> None:
    store = stop_between_checkpoints(tmp_path)
    store.delete(["history/000000000001"])
    observed = observe(store)
    assert observed is not None and not observed.ended
    assert not carry_out(store, plan(store, observed))


@pytest.mark.parametrize("content", [b"", b"HFCH something"])
def test_a_history_that_cannot_be_read_says_nothing_of_an_end(tmp_path: Path, content: bytes) -> None:
    store = open_store(tmp_path.as_uri())
    store.put("history/000000000001", content)
    assert not has_ended(store, 1)
