"""The one Spark session of a test run: `local[4]`, made when the first test asks for it, stopped at the end."""

import os
import sys
from pathlib import Path

import pytest

from quick_jvm import use_quick_jvms
from sampling import leave_to_test_long

use_quick_jvms()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_to_test_long(items)


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
