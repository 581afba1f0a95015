"""The wheel, installed alone into a clean environment, runs the README's example there; so do the lowest versions that
`pyproject.toml` allows, and the other versions of Python that it names."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from installed_kit import PROJECT, ROOT, Environment, build_wheel, lowest_versions

import holdfast

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = [
    match[1]
    for each in PROJECT["classifiers"]
    if (match := re.fullmatch(r".* :: Python :: (3\.\d+)", each)) is not None
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def readme_example() -> tuple[str, str]:
    """The program that the README shows, and its output there."""
    match = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert match
    return match[1], match[2]


def check_first_day(environment: Environment, folder: Path) -> None:
    """Do the first steps of a new user: install, run the example, add a file, run it again, look at its storage."""
    program, prints = readme_example()
    assert ".transform(" in program
    folder.mkdir()
    (folder / "delays.py").write_text(program)
    assert environment.run(["holdfast", "--version"], folder) == f"holdfast {holdfast.__version__}\n"
    assert environment.run(["python", "delays.py"], folder) == prints
    february = pa.table({"carrier": ["UA"], "arr_delay": [1]})
    pq.write_table(february, folder / "delays-example" / "flights" / "february.parquet")
    after = prints.replace("'flights': 2, 'delay': 21.0", f"'flights': 3, 'delay': {43 / 3}")
    assert after != prints
    assert environment.run(["python", "delays.py"], folder, activated=False) == after
    assert "all is well" in environment.run(["holdfast", "verify", "delays-example/state"], folder)


IMPORTS = """
import importlib, pkgutil, holdfast
names = [each.name for each in pkgutil.walk_packages(holdfast.__path__, "holdfast.") if "__main__" not in each.name]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.mark.kill
def test_every_module_and_file_is_there_where_nothing_but_the_wheel_was_installed(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv", wheel)
    assert environment.run(["holdfast", "--version"], tmp_path) == f"holdfast {holdfast.__version__}\n"
    assert int(environment.run(["python", "-c", IMPORTS], tmp_path)) > 200
    (installed,) = tmp_path.glob("venv/lib/python*/site-packages/holdfast")
    assert files(installed) == files(ROOT / "src" / "holdfast")


def files(folder: Path) -> set[Path]:
    """The files of a package, without those that Python and Numba compile."""
    made = {"__pycache__", "compiled"}
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and made.isdisjoint(path.parts)}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_readme_example_runs_where_pip_installed_the_wheel(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv", wheel, constraints=ROOT / "constraints.txt")
    check_first_day(environment, tmp_path / "work")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_readme_example_runs_with_the_lowest_version_of_each_dependency(wheel: Path, tmp_path: Path) -> None:
    lowest = tmp_path / "lowest.txt"
    lowest.write_text("".join(f"{name}=={version}\n" for name, version in lowest_versions().items()))
    environment = Environment(tmp_path / "venv", wheel, constraints=lowest)
    check_first_day(environment, tmp_path / "work")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", [version for version in PYTHONS if version != OWN])
def test_the_readme_example_runs_on_every_python_that_is_named(wheel: Path, tmp_path: Path, version: str) -> None:
    python = f"python{version}"
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no {python} on the PATH that runs")
    anything = tmp_path / "constraints.txt"
    anything.touch()
    environment = Environment(tmp_path / "venv", wheel, python=python, constraints=anything)
    check_first_day(environment, tmp_path / "work")
