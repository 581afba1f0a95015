"""Executors that are to go: who is told of it, and real executors that are decommissioned, or go for good, while rows
come."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from connect_kit import connect_server
from holdfast.ids import Incarnation, ProcessId, Role
from holdfast.spark.leaving import LeavingWatch, TellsWhoLeaves
from waiting import until

TESTS = Path(__file__).parent.parent


class Executors:
    """Stand-in for a Spark application: the executor of each group, and those that are to go."""

    def __init__(self) -> None:
        self.of = {"tm-0": "1", "tm-1": "2", "sd-0": "1"}
        self.to_go: dict[str, str] = {}

    def leaving(self) -> dict[str, str]:
        return self.to_go

    def executors_of(self, group: str) -> frozenset[str]:
        return frozenset({self.of[group]} if group in self.of else ())


def test_the_processes_of_an_executor_that_is_to_go_are_told_once_each():
    roles = {Role.TASK_MANAGER: "tm", Role.SENDER: "sd"}
    first, other = ProcessId(Role.TASK_MANAGER, 0, Incarnation(1)), ProcessId(Role.TASK_MANAGER, 1, Incarnation(2))
    sender, nowhere = ProcessId(Role.SENDER, 0, Incarnation(3)), ProcessId(Role.SENDER, 9, Incarnation(4))
    executors, told = Executors(), list[tuple[ProcessId, str]]()
    assert isinstance(executors, TellsWhoLeaves)
    watch = LeavingWatch(
        executors,
        lambda: [first, other, sender, nowhere],
        lambda process: f"{roles[process.role]}-{process.number}",
        lambda process, reason: told.append((process, reason)),
    )
    try:
        executors.to_go = {"1": "spot notice. "}
        until(lambda: len(told) == 2)
        watch.look()
        assert told == [(each, "executor 1 is to go: spot notice.") for each in (first, sender)]
    finally:
        watch.close()


@pytest.mark.spark
def test_nobody_leaves_where_spark_has_no_executors_of_its_own(spark):
    from holdfast.spark.session import executors_of, leaving_executors

    assert leaving_executors(spark) == {}
    assert executors_of(spark, "no such group") == frozenset()


def found_by(script: str, kind: str, tmp_path: Path) -> dict:
    """Run a script on three executors with two slots each; return what it found."""
    with ExitStack() as closing:
        url = []
        if kind == "connect":
            server = connect_server("local-cluster[3,2,1024]", tmp_path, decommission__enabled="true")
            url = [closing.enter_context(server)[0]]
        done = subprocess.run(
            [sys.executable, str(TESTS / "spark" / script), str(tmp_path), *url],
            env=os.environ
            | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(TESTS)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1500,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((tmp_path / "found.json").read_text())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_an_executor_that_is_decommissioned_loses_its_state_to_another_within_a_second_and_no_row_is_repeated(
    tmp_path, kind
):
    found = found_by("leaving_script.py", kind, tmp_path)
    assert found["restarts"] == []
    assert found["exact"]
    assert found["executor"] not in found["now"].values()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_a_job_continues_where_fewer_slots_than_senders_are_left_for_good(tmp_path, kind):
    found = found_by("fewer_slots_script.py", kind, tmp_path)
    assert found["restarts"] == []
    assert found["exact"]
