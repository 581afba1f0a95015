"""The Spark session that a test run shares: `local[4]`, made when the first test asks for it, stopped at the end.

Thousands of collected tests are half a million objects, which Python's garbage collector would go through again and
again while the tests run. `gc.freeze` takes the objects out of its sight.
"""

import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from quick_jvm import use_quick_jvms
from sampling import leave_to_test_long

MEMORY = Path("/dev/shm")
"""The file system in memory that Linux has."""

ROOM_BYTES = 2 * 1024**3
"""Room that tests find enough in memory: a whole run of them writes some hundred megabytes."""


def write_to_memory() -> None:
    """Have tests write their files to memory, where a sync costs nothing, unless somebody has chosen a place."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    runs_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if runs_programs and shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


write_to_memory()
use_quick_jvms()
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_to_test_long(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def spark():
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Executors import the test modules, as a user's own modules are imported there.
    modules = [str(Path(__file__).parent / "spark"), str(Path(__file__).parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*modules, os.environ.get("PYTHONPATH", "")])
    session = (
        SparkSession.builder.master("local[4]")
        .appName("holdfast-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
