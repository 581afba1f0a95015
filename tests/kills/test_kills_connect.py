"""Kills of a job on Spark Connect: of a worker and an executor, of the server, and of the program."""

import json
import re
import time
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest
from kills_connect import KEYS, ROWS

from connect_kit import WAIT_S, await_file, end_of, kill, started
from waiting import until

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parent / "kills_connect.py"
ENDED_S_MAX = 30.0
"""Heartbeats of processes are 4 s apart; the machine may be slow."""
CAUSES = r"TaskManager 0 ended: .*(its Python worker was killed, or it crashed, or its exec|cannot be reached)"
"""Spark tells the first cause; later than the connection breaks off, which is the other one, if the machine is busy."""


def test_a_killed_worker_and_a_killed_executor_cost_no_row_and_double_none(connect, tmp_path):
    end_of(started(SCRIPT, connect[0], tmp_path, "losses"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["counts"] == {str(k): ROWS // KEYS for k in range(KEYS)}
    assert re.search(CAUSES, found["restarts"][0])


def test_each_row_of_a_streaming_dataframe_counts_once_although_its_processes_and_the_program_are_killed(
    connect, tmp_path
):
    program = started(SCRIPT, connect[0], tmp_path, "stream")
    await_file(program, tmp_path / "runs")
    kill(program)
    end_of(started(SCRIPT, connect[0], tmp_path, "stream-again"))
    rows = ds.dataset(tmp_path / "out").to_table().to_pylist()
    assert len(rows) > 3_000
    assert sorted((row["value"], row["n"]) for row in rows) == [(value, 1) for value in range(len(rows))]


def test_processes_of_a_program_that_was_killed_end_themselves_soon(connect, tmp_path):
    program = started(SCRIPT, connect[0], tmp_path, "client")
    await_file(program, tmp_path / "ports.json")
    ports = set(json.loads((tmp_path / "ports.json").read_text()))
    kill(program)
    killed_s = time.monotonic()

    def serving():
        return {each.laddr.port for each in psutil.net_connections("tcp") if each.status == "LISTEN"} & ports

    until(lambda: not serving(), timeout_s=WAIT_S)
    assert time.monotonic() - killed_s < ENDED_S_MAX


def test_the_end_of_the_server_ends_the_query_by_name_and_the_program_can_end(connect, tmp_path):
    """The last test of this file, since its server is gone afterwards."""
    url, server = connect
    program = started(SCRIPT, url, tmp_path, "server")
    await_file(program, tmp_path / "runs")
    server.kill()
    await_file(program, tmp_path / "said")
    said_s = time.monotonic()
    end_of(program)
    assert time.monotonic() - said_s < ENDED_S_MAX  # PySpark alone tries for ten minutes to reach the server
    assert "SessionStopped: the Spark session of 'counts'" in (tmp_path / "said").read_text()
