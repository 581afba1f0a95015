"""Shared by the examples: a Spark session made for a quick start, a driver as a process, and waiting for conditions."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

WAIT_S_MAX = 180.0


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # For a minute of work the JVM's second compiler costs more than it gains.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )


def said(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class ExampleDriver:
    """A driver, `python -m <module> <arguments> <folder>`, and everything that it starts; its log is in the folder."""

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        with (folder / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", module, *arguments, str(folder)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Kill driver, JVM and workers at once, as a machine that loses power does."""
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self._process.pid:
                    process.kill()
        self._process.wait()


def wait(folder: Path, condition: str, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises `SystemExit` with the end of the driver's log after `WAIT_S_MAX`."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited in vain for {condition}:\n{(folder / 'driver.log').read_text()[-3000:]}")
        time.sleep(0.2)
