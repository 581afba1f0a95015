"""A job runs where little is allowed: as a user without rights and without a home, with nothing but a folder to write.

A mount namespace of the test's own holds Python, the installed packages and the wheel below a path with spaces; it ends
with the process. Root makes it, and then gives up its rights.
"""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from installed_kit import build_wheel

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HERE = "/srv/a place"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PREPARE = """
set -e
mount -t tmpfs -o mode=755 tmpfs /srv
mkdir -p "/srv/a place/python" "/srv/a place/site" "/srv/a place/own" "/srv/a place/java"
mount --bind "$PYTHON" "/srv/a place/python"
mount --bind "$SITE" "/srv/a place/site"
mount --bind "$OWN" "/srv/a place/own"
mount --bind "$JAVA" "/srv/a place/java"
for each in python site own java; do mount -o remount,bind,ro "/srv/a place/$each"; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
if [ "$READ_ONLY" = yes ]; then
    mount -o remount,ro /srv
    mount -o remount,bind,ro /dev/shm
    mount -o remount,bind,ro /
fi
cd "$FROM"
exec "$@"
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's packages alone, in a folder that everybody may read."""
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace needs root, and a kernel or container that allows it")
    folder = tmp_path_factory.mktemp("own")
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)]
    subprocess.run(command, check=True)
    folder.chmod(0o755)
    return folder


def run(own: Path, arguments: list[str], *, read_only: bool) -> str:
    """Run Python in the place as a user without rights and without a home; its output."""
    told = {
        "PYTHON": sys.base_prefix,
        "SITE": str(Path(pyarrow.__file__).parents[1]),
        "OWN": str(own),
        "JAVA": str(Path(os.environ["JAVA_HOME"]).resolve()),
        "READ_ONLY": "yes" if read_only else "no",
        "FROM": "/" if read_only else "/tmp",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    inside_told = {
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": f"{HERE}/java",
        "LD_LIBRARY_PATH": f"{HERE}/python/lib",  # a Python that was moved does not find its own library
        "PYTHONPATH": f"{HERE}/own:{HERE}/site",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    variables = [f"{name}={value}" for name, value in inside_told.items()]
    python = f"{HERE}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    inside = [*NOBODY, "env", "-i", *variables, python, *arguments]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", PREPARE, "sh", *inside], env=told, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("read_only", [False, True])
def test_a_job_runs_and_goes_on_where_only_the_folder_for_temporary_files_can_be_written(
    own: Path, read_only: bool
) -> None:
    script = (Path(__file__).parent / "places_script.py").read_text()
    (own / "places_script.py").write_text(script)
    (own / "places_script.py").chmod(0o644)
    printed = run(own, ["-m", "places_script", "/tmp/a folder"], read_only=read_only).splitlines()
    assert printed[:2] == ["rows 1000 keys 8"] * 2
    assert printed[2].startswith("kernels /tmp/")


def test_the_command_says_where_kernels_can_be_kept_by_a_user_without_a_home(own: Path) -> None:
    program = "from holdfast.kernels import places; print([str(each) for each in places.folders()])"
    printed = run(own, ["-c", program], read_only=True)
    assert "/tmp/" in printed and "~" not in printed
