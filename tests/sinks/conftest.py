"""Sinks whose tests wait for a broker take part once: their tests over a second store are long ones."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import failpoints
from holdfast.sinks import parquet as parquet_module
from holdfast.sinks import staging as staging_module
from holdfast.sinks.delta import delta_sink as delta_module
from holdfast.sinks.kafka import kafka_sink as kafka_module
from holdfast.storage.store import ObjectStore, open_store


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        made = getattr(parameters.get("make"), "__name__", "")
        again = parameters.get("store") == "memory" or ("_in_portions" in made and "failpoint" not in parameters)
        if made.startswith("kafka") and again:
            item.add_marker(pytest.mark.long)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "job").as_uri() if request.param == "file" else f"memory://job-{uuid4().hex}")


@pytest.fixture(autouse=True)
def _sizes_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parquet_module, delta_module):
        monkeypatch.setattr(module, "SMALL_BYTES_MAX", module.SMALL_BYTES_MAX)
    monkeypatch.setattr(kafka_module, "TRANSACTION_BYTES_MAX", kafka_module.TRANSACTION_BYTES_MAX)
    monkeypatch.setattr(staging_module, "PORTION_BYTES_MAX", staging_module.PORTION_BYTES_MAX)


@pytest.fixture
def armed() -> Iterator[Callable[[str, str], None]]:
    yield failpoints.arm
    failpoints.disarm()
