"""The benchmark of windows runs, and says its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(["--kind", "sliding", "--rows", "600000"], marks=pytest.mark.long), ["--open", "1,10"]],
    ids=["kind", "open"],
)
def test_the_benchmark_of_windows_runs(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "benchmarks.windows", "--json", *arguments]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines():
        found = json.loads(line)
        assert min(value for value in found.values() if isinstance(value, int | float)) >= 0
    assert len(printed.splitlines()) == (2 if "--open" in arguments else 1)
