"""The benchmark of the driver alone runs, and its figures are of real work: with two TaskManagers, in a second."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_scale_benchmark_measures_batches_checkpoints_and_failovers():
    sizes = ["--task-managers", "4", "--subtasks", "2", "--senders", "4", "--splits", "8"]
    rounds = ["--batches", "2", "--checkpoints", "2", "--failovers", "1"]
    command = [sys.executable, "-m", "benchmarks.scale", "--json", *sizes, *rounds]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)["sizes"]
    assert [size["task_managers"] for size in found] == [1, 4]
    for size in found:
        assert all(value > 0 for value in size.values()), size
    assert found[1]["record_bytes"] > found[0]["record_bytes"], "a record names each split"
