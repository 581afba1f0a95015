"""Holdfast as its users have it: a wheel, installed into an environment of its own, run outside the checkout."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_OF_THE_CHECKOUT = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "NUMBA_CACHE_DIR"}
"""Variables that a user's shell would not have: they would let the program find the checkout, or slow its imports."""


def build_wheel(folder: Path) -> Path:
    """Build from a copy of the sources, because a build leaves files beside them that the next wheel would take up."""
    copy = folder / "sources"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "compiled", "*.egg-info"))
    _run([*_PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(copy)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def lowest_versions() -> dict[str, str]:
    """The lower bound of each dependency, by name."""
    bounds = {}
    for dependency in PROJECT["dependencies"]:
        match = re.match(r"([\w-]+)>=([\d.]+)", dependency)
        assert match, f"{dependency!r} has no lower bound"
        bounds[match[1]] = match[2]
    return bounds


class Environment:
    """A virtual environment with nothing in it but the wheel and its dependencies.

    With `constraints` pip installs the dependencies, as the file limits them. Without, links lead to those that are
    installed here, which takes a second instead of minutes.
    """

    def __init__(
        self, folder: Path, wheel: Path, *, python: str = sys.executable, constraints: Path | None = None
    ) -> None:
        self._bin = folder / "bin"
        _run([python, "-m", "venv", "--without-pip", str(folder)])
        pip = [*_PIP, "--python", str(self._bin / "python")]
        if constraints is None:
            _run([*pip, "install", "--quiet", "--no-compile", "--no-deps", str(wheel)])
            (site,) = folder.glob("lib/python*/site-packages")
            _link_dependencies(site)
        else:
            # Without compiling, because a program imports a small part of all that is installed.
            _run([*pip, "install", "--quiet", "--no-compile", "--constraint", str(constraints), str(wheel)])
        _run([*pip, "check"])

    def run(self, command: list[str], folder: Path, *, activated: bool = True) -> str:
        """Run a command of the environment in a folder; its standard output."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _OF_THE_CHECKOUT and not name.startswith(("PYSPARK_", "SPARK_", "PYTEST_", "COVERAGE_"))
        }
        if activated:
            kept["PATH"] = os.pathsep.join([str(self._bin), kept.get("PATH", "")])
        return _run(
            [str(self._bin / command[0]), *command[1:]], cwd=folder, env={**kept, "SPARK_LOCAL_IP": "127.0.0.1"}
        )


def _link_dependencies(site: Path) -> None:
    """Link all that Holdfast's dependencies, and theirs in turn, have installed here into another `site-packages`."""
    missing, found = set(map(_name, PROJECT["dependencies"])), set()
    while missing - found:
        name = (missing - found).pop()
        found.add(name)
        distribution = importlib.metadata.distribution(name)
        missing |= {_name(each) for each in distribution.requires or () if _is_needed(each)}
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = site / top
            if not link.exists():
                link.symlink_to(distribution.locate_file(top))


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _is_needed(requirement: str) -> bool:
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})


_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def _run(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
