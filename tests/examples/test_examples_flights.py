"""The demonstration of `make demo`, on fewer flights."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = 48_000
ROWS_PER_BATCH = 1_200
"""Rows of a batch: a third of all rows is many batches, in which the processes are found and killed."""


@pytest.mark.kill
@pytest.mark.timeout(400)
def test_the_flights_are_counted_exactly_though_a_task_manager_and_the_driver_are_killed(tmp_path: Path):
    folder = tmp_path / "flights"
    options = ["--rows", str(ROWS), "--rows-per-batch", str(ROWS_PER_BATCH), "--folder", str(folder)]
    command = [sys.executable, "-m", "examples.flights", *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    logs = "".join(log.read_text() for log in folder.glob("driver-*.log"))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{logs}"
    assert ran.stdout.count("kill -9") == 2
    assert "Equal to a direct computation" in ran.stdout
