"""Nexmark's queries on Spark, whose TaskManagers are killed on the way, give DuckDB's results."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def checked(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.nexmark.check", "--kill", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.kill
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_results_are_those_of_a_database_though_task_managers_are_killed() -> None:
    ran = checked("--events", "2000000")
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-3000:]}"
    assert ran.stdout.count("equal") == 19
