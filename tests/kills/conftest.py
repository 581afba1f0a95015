"""Little output is gathered too where processes are killed: small jobs come by everything that large ones do."""

import pytest


@pytest.fixture(autouse=True)
def _gathers_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in this process: real drivers keep the bound that they have."""
    monkeypatch.setattr("holdfast.checkpoint.ledger.GATHER_BYTES_MAX", 1000)
