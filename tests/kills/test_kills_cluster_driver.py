"""A JobMaster in the cluster: its program is killed, and another takes the handle; it is killed; it is fenced."""

import json
from pathlib import Path

import pytest
from kills_cluster_driver import KEYS, ROWS, output

from connect_kit import await_file, end_of, kill, started

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parent / "kills_cluster_driver.py"


def found_by(program, folder):
    end_of(program)
    return json.loads((folder / "found.json").read_text())


def check_output(folder):
    """Every row once, and each count as it must be: an update that came twice would be there twice."""
    found = output(folder)
    assert found["rows"] == list(range(ROWS))
    assert found["counts"] == {k: (ROWS // KEYS, (k + 1) * ROWS // KEYS) for k in range(KEYS)}
    assert len(set(found["updates"])) == len(found["updates"])


def test_a_job_goes_on_when_its_program_is_killed_and_another_program_takes_its_handle(connect, tmp_path):
    program = started(SCRIPT, connect[0], tmp_path, "starts")
    await_file(program, tmp_path / "runs")
    kill(program)
    found = found_by(started(SCRIPT, connect[0], tmp_path, "attaches"), tmp_path)
    assert found["run"] == (tmp_path / "runs").read_text() and found["status"] == "Processing" and found["went on"]
    assert found["checkpoint"] > 0 and found["state"] == 1 and found["savepoint"] and found["task managers"] == 2
    assert not found["active"]
    assert "does not run: its last start has ended (stopped)" in found["ended"]
    check_output(tmp_path)


def test_a_jobmaster_that_is_killed_is_started_again_by_its_program_and_no_row_is_lost_or_doubled(connect, tmp_path):
    found = found_by(started(SCRIPT, connect[0], tmp_path, "loses"), tmp_path)
    assert found == {"runs": 3, "active": False}
    check_output(tmp_path)


def test_of_two_jobmasters_on_a_storage_the_first_is_fenced(connect, tmp_path):
    found = found_by(started(SCRIPT, connect[0], tmp_path, "fences"), tmp_path)
    assert found["said"].startswith("Fenced: ")
    rows = output(tmp_path)["rows"]
    assert rows and len(set(rows)) == len(rows)


def test_a_driver_in_waiting_in_the_cluster_takes_over_from_a_jobmaster_whose_program_is_gone(connect, tmp_path):
    assert found_by(started(SCRIPT, connect[0], tmp_path, "waits"), tmp_path) == {"active": False}
    rows = output(tmp_path)["rows"]
    assert rows and len(set(rows)) == len(rows)
