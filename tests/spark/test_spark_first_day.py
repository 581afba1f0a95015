"""Obstacles of a first program: another `python3` in the PATH, and Spark's progress bar."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "first_day_script.py"


@pytest.fixture
def first_day(tmp_path):
    """Runs the script where the first `python3` of the PATH cannot run anything; (output, log)."""
    wrong = tmp_path / "bin" / "python3"
    wrong.parent.mkdir()
    wrong.write_text("#!/bin/sh\nexit 3\n")
    wrong.chmod(0o755)

    def run(master):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
        environment["PATH"] = os.pathsep.join([str(wrong.parent), environment["PATH"]])
        command = [sys.executable, str(SCRIPT), master, str(tmp_path / "storage")]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout, done.stderr

    return run


def test_a_local_session_runs_on_the_drivers_python_without_a_bar_and_ends_without_a_warning(first_day):
    printed, logged = first_day("local[2]")
    assert printed.strip() == "rows 10"
    assert "[Stage" not in logged
    ended = logged.rpartition("NativeCodeLoader")[2]
    assert "WARN" not in ended and "ERROR" not in ended


@pytest.mark.long
def test_executors_with_another_python_are_refused_with_the_setting_that_helps(first_day):
    printed, _ = first_day("local-cluster[1,2,1024]")
    assert printed.startswith("RAISED ")
    assert f"PYSPARK_PYTHON={sys.executable}" in printed
