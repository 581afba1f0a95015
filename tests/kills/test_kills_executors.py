"""The loss of an executor: noticed at once, and reported with its cause."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from odd_s3_kit import odd_s3

pytestmark = [pytest.mark.kill, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "kills_executor.py"
NOTICED_S_MAX = 3.0


def run(folder, *words):
    command = [sys.executable, str(SCRIPT), str(folder), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "found.json").read_text())


@pytest.mark.long
def test_a_standby_with_state_on_another_executor_takes_the_place_and_every_row_is_counted_once(tmp_path):
    found = run(tmp_path, "followed")
    assert len(found["restarts"]) >= 1
    assert found["counts"] == {str(k): 500 for k in range(8)}


@pytest.mark.long
def test_a_standby_that_stands_still_holds_up_nobody_on_s3_with_faults_and_every_row_is_counted_once(tmp_path):
    with odd_s3() as store:
        store.faults, store.fault_share = random.Random(2), 0.05
        settings = {"storage": "s3://bucket/job", "storage_options": store.options}
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        found = run(tmp_path, "suspended")
    assert len(found["restarts"]) >= 1
    assert found["counts"] == {str(k): 500 for k in range(8)}


@pytest.mark.long
def test_executors_are_killed_in_the_middle_of_rescales_and_every_row_is_counted_once(tmp_path):
    found = run(tmp_path, "rescaled")
    assert found["rescales"] == [[1, 3, 4], [1, 2, 7]], "killed, TaskManagers with places, subtasks"
    assert len(found["restarts"]) >= 2
    assert found["counts"] == {str(k): 500 for k in range(8)}


def test_the_loss_of_an_executor_is_noticed_though_spark_has_no_slot_to_try_its_task_again(tmp_path):
    found = run(tmp_path)
    assert found["noticed_s"] < NOTICED_S_MAX
    assert len(found["restarts"]) == 1
    assert "TaskManager 0 ended: executor" in found["restarts"][0]
    assert "killed by SIGKILL" in found["restarts"][0]
    assert found["counts"] == {str(k): 500 for k in range(8)}
