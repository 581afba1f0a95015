"""Nexmark's queries on Spark, whose TaskManagers are killed on the way, give DuckDB's results."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nexmark.queries import QUERIES

ROOT = Path(__file__).resolve().parents[2]


def checked(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.nexmark.check", "--kill", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.kill
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", [(), ("--sql",)], ids=["programs", "sql"])
def test_results_are_those_of_a_database_though_task_managers_are_killed(form: tuple[str, ...]) -> None:
    ran = checked("--events", "2000000", *form)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-3000:]}"
    assert ran.stdout.count("equal") == len(QUERIES)
