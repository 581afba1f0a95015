"""The Spark session that a test run shares: `local[4]`, made when the first test asks for it, stopped at the end; and
the tests and files that cost the most, which each run names at its end.

Thousands of collected tests are half a million objects, which Python's garbage collector would go through again and
again while the tests run. `gc.freeze` takes the objects out of its sight, and it looks seldom for those of the tests.
"""

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from quick_jvm import use_quick_jvms
from sampling import leave_to_test_long

SHOWN = 10
"""The number of tests that a run names at its end, those with the most processor time first."""
FILES_SHOWN = 40
"""The number of files that a run names. Many small tests of a file together cost more than the costliest test."""
SHOWN_S_MIN = 1.0
"""Seconds of processor time below which a test is not named. A lower value also names tests that cost little."""
COST = "processor seconds"
BEGAN = pytest.StashKey[float]()
COLLECT_AFTER = (50_000, 20, 20)
"""Numbers of objects and of collections after which garbage is looked for. Lower values look more often, and took six
per cent of a run."""

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
    gc.set_threshold(*COLLECT_AFTER)


def processor_s() -> float:
    """Seconds of processor time of this process, and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[BEGAN] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown" and BEGAN in item.stash:
        report.user_properties.append((COST, processor_s() - item.stash[BEGAN]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the costliest tests and files: their time by the clock depends on what else the machine does."""
    tests: dict[str, float] = {}
    for report in terminalreporter.getreports(""):
        if report.when == "teardown":
            tests[report.nodeid] = sum(seconds for name, seconds in report.user_properties if name == COST)
    files: Counter[str] = Counter()
    for name, seconds in tests.items():
        files[name.partition("::")[0]] += seconds
    for kind, costs, shown in (("tests", tests, SHOWN), ("files", files, FILES_SHOWN)):
        costly = sorted(((seconds, name) for name, seconds in costs.items() if seconds >= SHOWN_S_MIN), reverse=True)
        if costly:
            terminalreporter.section(f"costliest {kind}, in {COST}, of {sum(costs.values()):.0f} in all")
        for seconds, name in costly[:shown]:
            terminalreporter.write_line(f"{seconds:6.1f} {name}")


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """Fail a test after which the log passes over warnings: a later test in the same process would look for one."""
    yield
    assert logging.root.manager.disable == logging.NOTSET
    assert (logging.root.level, logging.getLogger("holdfast").level) == (logging.WARNING, logging.NOTSET)
    assert logging.getLogger("holdfast").propagate


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
