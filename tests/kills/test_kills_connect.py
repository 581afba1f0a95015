"""Kills of a job on Spark Connect: of a worker and an executor, of the server, and of the program."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest
from kills_connect import KEYS, ROWS

from connect_kit import connect_server
from waiting import until

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "kills_connect.py"
WAIT_S = 240.0
ENDED_S_MAX = 30.0
"""Heartbeats of processes are 4 s apart; the machine may be slow."""


def program(url, folder, mode):
    helpers = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, SCRIPT, url, folder, mode],
        env=os.environ | {"PYTHONPATH": helpers},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(started):
    _, errors = started.communicate(timeout=WAIT_S + 120)
    assert started.returncode == 0, errors[-4000:]


@pytest.fixture
def server(tmp_path):
    with connect_server("local-cluster[2,2,1024]", tmp_path) as found:
        yield found


def test_a_killed_worker_and_a_killed_executor_cost_no_row_and_double_none(server, tmp_path):
    end_of(program(server[0], tmp_path, "losses"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["counts"] == {str(k): ROWS // KEYS for k in range(KEYS)}
    assert "its Python worker was killed, or it crashed, or its executor was lost" in found["restarts"][0]


def test_the_end_of_the_server_ends_the_query_by_name(server, tmp_path):
    url, process = server
    started = program(url, tmp_path, "server")
    until(lambda: (tmp_path / "runs").exists() or started.poll() is not None, timeout_s=WAIT_S)
    process.kill()
    end_of(started)
    assert "SessionStopped: the Spark session of 'counts'" in (tmp_path / "said").read_text()


def test_each_row_of_a_streaming_dataframe_counts_once_although_its_processes_and_the_program_are_killed(
    server, tmp_path
):
    started = program(server[0], tmp_path, "stream")
    until(lambda: (tmp_path / "runs").exists() or started.poll() is not None, timeout_s=WAIT_S)
    started.kill()
    _, errors = started.communicate()
    assert (tmp_path / "runs").exists(), errors[-4000:]
    end_of(program(server[0], tmp_path, "stream-again"))
    rows = ds.dataset(tmp_path / "out").to_table().to_pylist()
    assert len(rows) > 3_000
    assert sorted((row["value"], row["n"]) for row in rows) == [(value, 1) for value in range(len(rows))]


def test_processes_of_a_program_that_was_killed_end_themselves_soon(server, tmp_path):
    started = program(server[0], tmp_path, "client")
    until(lambda: (tmp_path / "ports.json").exists() or started.poll() is not None, timeout_s=WAIT_S)
    ports = set(json.loads((tmp_path / "ports.json").read_text()))
    started.kill()
    started.communicate()
    killed_s = time.monotonic()

    def serving():
        return {each.laddr.port for each in psutil.net_connections("tcp") if each.status == "LISTEN"} & ports

    until(lambda: not serving(), timeout_s=WAIT_S)
    assert time.monotonic() - killed_s < ENDED_S_MAX
