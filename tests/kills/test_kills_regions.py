"""Splits that end, or hang, the real process that reads them: they stay behind alone, and the others go on."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from kills_senders import SenderProcesses

import holdfast as hf
from faulty_kit import ROWS, failing, faulty, heal, values, without
from holdfast.clock import SystemClock
from holdfast.jobmaster.starting.start import Start
from holdfast.ports import Endpoint
from holdfast.storage.store import open_store
from holdfast.testing.run import start_on
from waiting import until

pytestmark = pytest.mark.kill


def test_splits_that_end_or_hang_their_process_stay_behind_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kit = import_module("holdfast.testing.run")
    monkeypatch.setattr(
        kit, "Start", lambda *told, **named: replace(Start(*told, **named), endpoint=Endpoint("127.0.0.1"))
    )
    source = faulty(tmp_path / "faults", s7="exit", s11="raise", s20="hang")
    storage, clusters = f"file://{tmp_path}/storage", []

    def cluster(program: Any, plain: Any, place: Any, gateway: Any) -> SenderProcesses:
        clusters.append(SenderProcesses(program, storage, place, tmp_path))
        return clusters[-1]

    job = hf.Job(
        None,
        name="regions",
        storage=storage,
        regions=hf.RegionConfig(max_consecutive_failures=1_000, unit_timeout="2s"),
        failover=hf.FailoverConfig(backoff_first="200ms", backoff_max="5s", losses_max=2),
    )
    job.read(source).write(hf.ParquetSink(f"file://{tmp_path}/out", name="out"))
    query = start_on(job, hf.processing_time("50ms"), open_store(storage), SystemClock(), cluster)
    try:
        until(lambda: failing(query).keys() == {"7", "11", "20"})
        query.trigger_checkpoint()
        until(lambda: values(tmp_path / "out") == without(7, 11, 20))
        assert "unit_timeout" in failing(query)["20"] and "is offline" in failing(query)["11"]
        assert clusters[0].started > 4, "more senders ended than their budget of losses allows"
        heal(tmp_path / "faults")
        until(lambda: failing(query) == {})
        query.processAllAvailable()
        assert values(tmp_path / "out") == list(range(ROWS))
    finally:
        query.stop()
