"""Wheel and sdist: the same bytes each time, the files of the package alone; image and manifests are valid."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from installed_kit import PROJECT, ROOT, Environment, build_wheel

BIN = Path(sys.executable).parent
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))


def made(folder: Path) -> dict[str, bytes]:
    subprocess.run([sys.executable, "scripts/dist.py", folder], cwd=ROOT, check=True, timeout=240)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.long
def test_wheel_and_sdist_are_the_same_twice_and_hold_the_files_of_the_package_alone(tmp_path: Path) -> None:
    first = made(tmp_path / "first")
    assert first == made(tmp_path / "second")
    (wheel,) = (tmp_path / "first").glob("*.whl")
    (sdist,) = (tmp_path / "first").glob("*.tar.gz")
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    committed = {name.removeprefix("src/") for name in listed.split()}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == committed
    with tarfile.open(sdist) as archive:
        names = {
            name.partition("/src/")[2] for name in archive.getnames() if "/src/" in name and ".egg-info" not in name
        }
        assert committed <= names
    assert wheel.stat().st_size < 10_000_000
    bill = json.loads((tmp_path / "first" / "holdfast.cdx.json").read_text())
    named = {part["name"].lower() for part in bill["components"]}
    asked = {re.split(r"[\[<>=]", each)[0].lower() for each in PROJECT["dependencies"]}
    assert asked <= named and "pytest" not in named


def test_the_image_is_written_as_a_linter_of_images_asks_for() -> None:
    subprocess.run([BIN / "hadolint", ROOT / "deploy" / "Dockerfile"], check=True, timeout=60)


def test_the_manifests_are_what_kubernetes_takes() -> None:
    from kubernetes_validate import validate

    resources = [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]
    kinds = [each["kind"] for each in resources]
    assert "Job" in kinds and "SparkApplication" in kinds
    for each in resources:
        if each["kind"] != "SparkApplication":  # of the operator, whose schema Kubernetes does not have
            validate(each, "1.30", strict=True)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_steps_of_the_image_run_in_a_folder(tmp_path: Path) -> None:
    """Each RUN of the Dockerfile, with its folders below one of the test's own."""
    environment = Environment(tmp_path / "venv", build_wheel(tmp_path))
    steps = re.findall(r"^RUN (.*)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    compiles = [step.replace("/opt/", f"{tmp_path}/opt/").split() for step in steps if step.startswith("holdfast ")]
    assert len(steps) == 2 and len(compiles) == 1
    environment.run(compiles[0], tmp_path)
    assert any(path.is_file() for path in (tmp_path / "opt" / "holdfast" / "kernels").rglob("*"))
