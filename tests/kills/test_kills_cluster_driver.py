"""A JobMaster in the cluster: its program is killed, and another takes the handle; it is killed; it is fenced."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kills_cluster_driver import KEYS, ROWS, output

from connect_kit import connect_server
from waiting import until

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parent / "kills_cluster_driver.py"
WAIT_S = 480.0


def program(url, folder, mode):
    helpers = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, SCRIPT, url, folder, mode],
        env=os.environ | {"PYTHONPATH": helpers},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(started, folder):
    _, errors = started.communicate(timeout=2 * WAIT_S)
    assert started.returncode == 0, errors[-4000:]
    return json.loads((folder / "found.json").read_text())


def check_output(folder):
    """Every row once, and each count as it must be: an update that came twice would be there twice."""
    found = output(folder)
    assert found["rows"] == list(range(ROWS))
    assert found["counts"] == {k: (ROWS // KEYS, (k + 1) * ROWS // KEYS) for k in range(KEYS)}
    assert len(set(found["updates"])) == len(found["updates"])


@pytest.fixture
def server(tmp_path):
    with connect_server("local-cluster[2,2,1024]", tmp_path) as (url, _):
        yield url


def test_a_job_goes_on_when_its_program_is_killed_and_another_program_takes_its_handle(server, tmp_path):
    started = program(server, tmp_path, "starts")
    until(lambda: (tmp_path / "runs").exists() or started.poll() is not None, timeout_s=WAIT_S)
    started.kill()
    started.communicate()
    found = end_of(program(server, tmp_path, "attaches"), tmp_path)
    assert found["run"] == (tmp_path / "runs").read_text() and found["status"] == "Processing" and found["went on"]
    assert found["checkpoint"] > 0 and found["state"] == 1 and found["savepoint"] and found["task managers"] == 2
    assert not found["active"]
    assert "does not run: its last start has ended (stopped)" in found["ended"]
    check_output(tmp_path)


def test_a_jobmaster_that_is_killed_is_started_again_by_its_program_and_no_row_is_lost_or_doubled(server, tmp_path):
    found = end_of(program(server, tmp_path, "loses"), tmp_path)
    assert found == {"runs": 3, "active": False}
    check_output(tmp_path)


def test_of_two_jobmasters_on_a_storage_the_first_is_fenced(server, tmp_path):
    found = end_of(program(server, tmp_path, "fences"), tmp_path)
    assert found["said"].startswith("Fenced: ")
    rows = output(tmp_path)["rows"]
    assert rows and len(set(rows)) == len(rows)


def test_a_driver_in_waiting_in_the_cluster_takes_over_from_a_jobmaster_whose_program_is_gone(server, tmp_path):
    assert end_of(program(server, tmp_path, "waits"), tmp_path) == {"active": False}
    rows = output(tmp_path)["rows"]
    assert rows and len(set(rows)) == len(rows)
