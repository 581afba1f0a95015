"""A TaskManager's memory bounds each operator: output spills, input is taken in pieces, state is refused by name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from memory_script import DECLARED

from benchmarks.growth.jobs import BOUND_MB

ROOT = Path(__file__).parents[2]
FACTOR_MAX = 4
"""Greatest peak as a multiple of the setting: source, sender and storage are in the process, too."""
WIDER = {"lists": 5}
"""A sender has the values of lists as objects and in Arrow, and the operator so again."""
QUICK = {"outer join in sliding windows"}
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in DECLARED]


@pytest.mark.parametrize("name", NAMES)
def test_far_more_rows_than_memory_are_processed_within_it_or_refused_by_name(name: str) -> None:
    script = [sys.executable, str(Path(__file__).with_name("memory_script.py")), name]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ended = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, env=os.environ | paths)
    assert not ended.returncode, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["peak_mb"] <= WIDER.get(name, FACTOR_MAX) * BOUND_MB, found
    if found["error"]:
        size = re.search(r"its state takes ([\d,]+) bytes of memory.*TaskManagerConfig\(memory=…\)", found["error"])
        assert size, found["error"]
        assert int(size[1].replace(",", "")) < 1.5 * BOUND_MB * (1 << 20), "noticed soon after the bound"
