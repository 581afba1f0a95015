"""The loss of an executor: noticed at once, and reported with its cause."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kill, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "kills_executor.py"
NOTICED_S_MAX = 3.0


def test_the_loss_of_an_executor_is_noticed_though_spark_has_no_slot_to_try_its_task_again(tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["noticed_s"] < NOTICED_S_MAX
    assert len(found["restarts"]) == 1
    assert "TaskManager 0 ended: executor" in found["restarts"][0]
    assert "killed by SIGKILL" in found["restarts"][0]
    assert found["counts"] == {str(k): 500 for k in range(8)}
