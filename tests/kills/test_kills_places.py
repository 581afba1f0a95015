"""A job runs wherever its package lies: at a path with spaces, without a home, and where only /tmp can be written.

Kernels that were compiled at one path are found at another.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast

pytestmark = pytest.mark.kill

JOB = """
import json, os, tempfile
import holdfast as hf
from holdfast.kernels.cache import compiled
from holdfast.testing import TestSource, run

folder = tempfile.mkdtemp(prefix="a storage ")
sink = hf.MemorySink()
job = hf.Job(None, name="sums", storage=f"file://{folder}")
rows = job.read(TestSource([[{"k": "a", "x": 1}, {"k": "a", "x": 2}]], "k STRING, x BIGINT"))
rows.key_by("k").aggregate(name="sums", n=hf.count(), x=hf.sum("x")).write(sink)
run(job)
print(json.dumps({"rows": sink.rows(), "compiled": compiled().kernels, "user": os.geteuid()}))
"""
READ_ONLY = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /tmp
mount -o remount,ro,bind /
exec "$@"
"""
SECONDS_MAX = 280


def ran(command: list[str], package: Path, **variables: str) -> dict[str, Any]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, cwd="/")
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def unfinished(folder: str, names: list[str]) -> list[str]:
    """Files that other tests may be writing: compiled modules, locks, and kernels before they have their names."""
    return [name for name in names if name == "__pycache__" or ("numba" in Path(folder).name and "." in name)]


def has_own_mounts() -> bool:
    """True if this user may make a file system read-only for a single process."""
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", "true"], capture_output=True)
    return tried.returncode == 0


def test_kernels_compiled_at_one_path_serve_at_another_without_a_home_and_where_nothing_but_tmp_can_be_written() -> (
    None
):
    base = Path(sys.prefix) / ".test places"
    shutil.rmtree(base, ignore_errors=True)
    try:
        first, second = base / "at first", base / "and later"
        shutil.copytree(
            Path(holdfast.__file__).parent, first / "holdfast", ignore=shutil.ignore_patterns("__pycache__")
        )
        begun = ran([sys.executable, "-c", JOB], first)
        assert begun["rows"] == [{"k": "a", "n": 2, "x": 3}]
        first.rename(second)
        if has_own_mounts():
            command = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", sys.executable, "-c", JOB]
        else:
            subprocess.run(["chmod", "-R", "a-w", str(second)], check=True)
            command = [sys.executable, "-c", JOB]
        again = ran(command, second, HOME="/nonexistent")
        assert (again["rows"], again["compiled"]) == (begun["rows"], 0)
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(base)], check=False)
        shutil.rmtree(base, ignore_errors=True)
