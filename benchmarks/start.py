"""The cost of `start()`: first in a session, of a second job, of a job again after its stop, on an empty machine.

    python -m benchmarks.start --json
    python -m benchmarks.start --json --against ../an-older-checkout

    first, second_job, again   cpu_s: processor time of driver, JVM and workers added up; wall_s; until a first batch
    fresh_machine              the first start of a copy of the package at a new path, that brings its kernels along
    import_cpu_s               the names that the program uses, above NumPy, PyArrow and PySpark
    against                    the same figures of another checkout, measured in turn with these, and the ratios

Each session is run once before, so that kernels are compiled, but for `fresh_machine`. Of `--runs` sessions the middle
value is taken.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SESSION = Path(__file__).with_name("start_session.py")
STEPS = ("first", "second_job", "again", "fresh_machine")
SESSION_S_MAX = 900


def session(source: Path, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a session with the Holdfast in a folder."""
    given = os.environ | {"PYTHONPATH": str(source)} | (environment or {})
    command = [sys.executable, str(SESSION)]
    run = subprocess.run(command, env=given, capture_output=True, text=True, timeout=SESSION_S_MAX, cwd="/")
    if run.returncode:
        sys.exit(run.stderr)
    figures: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return figures


def fresh_machine(source: Path) -> dict[str, float]:
    """The first start of a copy of the package at a new path, on a machine without caches."""
    with tempfile.TemporaryDirectory(prefix="holdfast fresh ") as name:
        copied = Path(name) / "package"
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__", "compiled", "*.egg-info"))
        empty = {"HOME": f"{name}/home", "XDG_CACHE_HOME": f"{name}/cache", "TMPDIR": name}
        if (source / "holdfast" / "kernels").is_dir():
            command = [sys.executable, "-m", "holdfast.cli", "kernels", "compile", "--target", "x86-64-v3"]
            given = os.environ | empty | {"PYTHONPATH": str(copied)}
            subprocess.run(command, env=given, check=True, capture_output=True, cwd="/")
        first: dict[str, float] = session(copied, empty)["first"]
        return first


def figures_of(source: Path, runs: list[dict[str, Any]], with_fresh: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"import_cpu_s": statistics.median(each["import_cpu_s"] for each in runs)}
    found["spark_s"] = statistics.median(each["spark_s"] for each in runs)
    for step in STEPS[:3]:
        found[step] = {key: statistics.median(each[step][key] for each in runs) for key in ("cpu_s", "wall_s")}
    if with_fresh:
        found["fresh_machine"] = fresh_machine(source)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    own = ROOT / "src"
    sources = [own] + ([Path(options.against).resolve() / "src"] if options.against else [])
    for source in sources:
        session(source)
    runs: dict[Path, list[dict[str, Any]]] = {source: [] for source in sources}
    for _ in range(options.runs):
        for source in sources:
            runs[source].append(session(source))
    figures = figures_of(own, runs[own], options.fresh)
    if options.against:
        other = figures["against"] = figures_of(sources[1], runs[sources[1]], options.fresh)
        figures["ratios"] = {
            step: {key: round(figures[step][key] / other[step][key], 2) for key in figures[step]}
            for step in STEPS
            if step in figures
        }
    return figures


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--against", default="", help="another checkout of Holdfast")
    parser.add_argument("--no-fresh", dest="fresh", action="store_false", help="leave fresh_machine out")
    parser.add_argument("--json", action="store_true", help="one line")
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options), indent=None if options.json else 2))


if __name__ == "__main__":
    main(sys.argv[1:])
