"""Little output is gathered too where processes are killed: small jobs come by everything that large ones do."""

from collections.abc import Iterator

import psutil
import pytest

from connect_kit import connect_server


@pytest.fixture(autouse=True)
def _gathers_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in this process: real drivers keep the bound that they have."""
    monkeypatch.setattr("holdfast.checkpoint.ledger.GATHER_BYTES_MAX", 1000)


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, psutil.Process]]:
    """The URL and the process of a Spark Connect server with two executors of two slots, for all tests of a file."""
    with connect_server("local-cluster[2,2,1024]", tmp_path_factory.mktemp("connect")) as found:
        yield found
