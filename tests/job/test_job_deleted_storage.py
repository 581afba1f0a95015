"""A storage that is deleted while its query runs ends the query with an error that says so."""

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import ObjectNotFound
from holdfast.jobmaster.checkpoints import recorder
from holdfast.storage import names
from holdfast.storage.store import open_store
from holdfast.testing import start
from waiting import until


@pytest.mark.parametrize("folder", ["", names.JOURNAL, names.job()])
def test_a_query_whose_storage_was_emptied_ends_and_names_the_ways_out(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LOOK_AT_RECORD_S", 0.0)
    trigger = hf.CheckpointConfig(trigger=hf.manual())
    job = hf.Job(None, name="emptied", storage=f"file://{tmp_path}/state", parallelism=1, checkpoint=trigger)
    rows = job.read(hf.SequenceSource(rows_per_second=1_000, name="clicks"))
    rows.key_by("value").aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="out"))
    query = start(job, hf.processing_time("10ms"))
    until(lambda: query.totals.batches > 0)
    assert query.trigger_checkpoint(30) is not None
    store = open_store(job.storage)
    store.delete([each.name for each in store.list("") if each.name.startswith(folder)])
    before = query.totals.batches
    until(lambda: query.totals.batches > before)
    with pytest.raises(hf.HoldfastError):
        query.trigger_checkpoint(30)
    until(lambda: not query.isActive)
    error = query.exception()
    assert error is not None and isinstance(error.__cause__, ObjectNotFound)
    assert "was deleted or emptied while the query ran" in str(error) and "start_from" in str(error)
