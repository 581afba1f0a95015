"""A Spark session that is stopped under a query ends the query, whatever the query was doing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from sampling import some

SCRIPT = Path(__file__).parent / "session_end_script.py"
QUICK = ["counts", "busy"]
WAYS = some([*QUICK, "without state", "idle", "another thread"], 0, 1)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return of_script(tmp_path_factory, *QUICK, "goes on", "starting")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return of_script(tmp_path_factory, "without state", "idle", "another thread")


def of_script(tmp_path_factory, *ways):
    """Results of the script for each way of stopping, and under "log" all that was printed meanwhile."""
    folder = tmp_path_factory.mktemp("session-end")
    command = [sys.executable, str(SCRIPT), str(folder), *ways]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return {**json.loads((folder / "found.json").read_text()), "log": done.stderr}


@pytest.mark.parametrize("way", WAYS)
def test_the_query_ends_with_an_error_that_says_so_and_nothing_is_restarted(request, way):
    query = request.getfixturevalue("found" if way in QUICK else "others")[way]
    assert query["ended"] and not query["active"]
    assert query["error"] == "SessionStopped"
    assert "was stopped while its query ran" in query["message"]
    assert query["restarts"] == []
    assert query["seconds"] < 20


@pytest.mark.parametrize("way", WAYS)
def test_a_start_on_the_stopped_session_is_refused(request, way):
    query = request.getfixturevalue("found" if way in QUICK else "others")[way]
    assert query["start"].startswith("JobRefused: ")
    assert "its Spark session was stopped before the start" in query["start"]


def test_a_start_during_which_the_session_is_stopped_is_refused(found):
    assert found["starting"]["start"].startswith("JobRefused: ")
    assert "its Spark session was stopped while it started" in found["starting"]["start"]


def test_the_same_job_goes_on_from_its_last_checkpoint_in_a_new_session(found):
    assert any(found["goes on"]["from"].values())


def test_no_thread_is_left_and_no_stack_trace_of_ours_was_printed(found):
    assert found["threads"] == []
    ours = str(Path(holdfast.__file__).parent)
    for words in (ours, "Py4J", "java."):
        assert words not in found["log"]


def test_a_program_with_a_handle_ends_soon_although_the_server_is_gone():
    program = """
import socket
from pyspark.sql.connect.session import SparkSession
from holdfast.spark.cluster_link import DriverChannel
with socket.create_server(("127.0.0.1", 0)) as closed:
    port = closed.getsockname()[1]
channel = DriverChannel(SparkSession(connection=f"sc://127.0.0.1:{port}"))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=35)  # it took 52 s
