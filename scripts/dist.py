"""Makes what is published: wheel, sdist and a bill of materials, in dist/; the same bytes for the same commit.

git archive of HEAD ──build──► wheel, sdist ──twine check──► dist/  ◄── bill of materials (CycloneDX)
"""

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")


def make(out: Path) -> None:
    """Build into a folder, which is emptied before, and check the result."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # Times inside of archives are that of the commit, and what is not committed stays out of them.
    epoch = _output("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", "HEAD", *SOURCES], cwd=ROOT, check=True, capture_output=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as opened:
            opened.extractall(folder, filter="data")
        _run("-m", "build", "--no-isolation", "--outdir", str(out), folder, SOURCE_DATE_EPOCH=epoch)
    (sdist,) = out.glob("*.tar.gz")
    with_times_of(sdist, int(epoch))
    _run("-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir())))
    bill_of_materials(out / "holdfast.cdx.json")


def with_times_of(archive: Path, epoch: int) -> None:
    """Write an archive anew, because setuptools stamps the files that it makes with the time of the build."""
    with tarfile.open(archive) as opened:
        entries = sorted(((each, opened.extractfile(each)) for each in opened), key=lambda entry: entry[0].name)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
            for info, data in entries:
                info.mtime, info.uid, info.gid, info.uname, info.gname, info.pax_headers = epoch, 0, 0, "", "", {}
                made.addfile(info, data)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def bill_of_materials(path: Path) -> None:
    """Write the packages that `pip install holdfast` brings, with the versions that are installed here."""
    listed = "\n".join(f"{name}=={version(name)}" for name in sorted(needed("holdfast") - {"holdfast"}))
    program = Path(sys.executable).with_name("cyclonedx-py")
    arguments = ["requirements", "-", "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    # It warns that dependencies between the packages are not in the list, which is so: the list has the packages.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([program, *arguments, "-o", str(path)], input=listed, text=True, check=True, **quiet)


def needed(package: str, found: set[str] | None = None) -> set[str]:
    """Return a package and all that it asks for, without extras."""
    found = set() if found is None else found
    found.add(canonicalize_name(package))
    try:
        asked = [Requirement(each) for each in requires(package) or ()]
    except PackageNotFoundError:
        sys.exit(f"{package} is not installed: run make setup")
    for each in asked:
        wanted = each.marker is None or each.marker.evaluate({"extra": ""})
        if wanted and canonicalize_name(each.name) not in found:
            needed(each.name, found)
    return found


def _run(*arguments: str, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode or re.search(r"\bWARNING\b", done.stdout):
        sys.exit(f"{' '.join(arguments[:3])} failed:\n{done.stdout}{done.stderr}")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
