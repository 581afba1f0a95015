"""The example of rules that change while the job runs, on fewer payments and with a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.kill
@pytest.mark.long
@pytest.mark.timeout(400)
def test_alerts_are_those_of_a_direct_computation_though_a_task_manager_is_killed() -> None:
    command = [sys.executable, "-m", "examples.payment_rules", "--rounds", "4", "--rows", "2000", "--kill"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert ran.stdout.count("kill -9") == 1
    assert "Equal to a direct computation" in ran.stdout
