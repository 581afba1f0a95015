"""Four executors, eight TaskManagers, eight senders, 200 splits; each is killed in turn: exactly once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kills_scale import KEYS, KILLS, ROWS_PER_SPLIT, SPLITS

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(1530)]

SCRIPT = Path(__file__).parent / "kills_scale.py"


def test_rows_count_exactly_once_whoever_of_many_processes_is_killed(tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["killed"] == list(KILLS)
    assert found["restarts"], "the death of a TaskManager or an executor is a restart"
    assert found["wrong"] == [], "keys with a count that is missing or doubled"
    assert found["rows"] == SPLITS * ROWS_PER_SPLIT // KEYS * KEYS + SPLITS * ROWS_PER_SPLIT % KEYS
    assert found["checkpoints"] > 0
