"""A Spark Connect server from PySpark's own jars, as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark

from holdfast.ports import parted
from waiting import until

SPARK_HOME = Path(pyspark.__file__).parent
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_S_MAX = 120.0
WAIT_S = 480.0
"""Bound in seconds on each wait of a program, and for one: the machine may be busy with other work."""


@contextmanager
def connect_server(master: str, folder: Path, **more: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run a server with an application on that master; gives its URL, and its process.

    `more`: settings of Spark, with `__` in place of a dot.
    """
    port = _free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": folder / "warehouse",
        **{f"spark.{name.replace('__', '.')}": value for name, value in more.items()},
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    modules = [str(Path(__file__).parent / "spark"), str(Path(__file__).parent)]
    paths = os.pathsep.join([*modules, os.environ.get("PYTHONPATH", "")])
    with open(folder / "server.log", "wb") as log:  # noqa: PTH123
        started = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-submit", "--class", SERVER, "--master", master, *conf, "spark-internal"],
            env=os.environ
            | {
                "SPARK_HOME": str(SPARK_HOME),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": paths,
            },
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    server = psutil.Process(started.pid)
    try:
        until(lambda: started.poll() is not None or _answers(port), timeout_s=START_S_MAX)
        assert started.poll() is None, (folder / "server.log").read_text()[-4000:]
        yield f"sc://127.0.0.1:{port}", server
    finally:
        for each in [*server.children(recursive=True), server] if server.is_running() else []:
            each.kill()
        started.wait()


def started(script: Path, url: str, folder: Path, mode: str) -> "subprocess.Popen[str]":
    """Start a program of a script in a process of its own, which writes what it finds to that folder."""
    helpers = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, script, url, folder, mode],
        env=os.environ | {"PYTHONPATH": helpers, "PYTHONFAULTHANDLER": "1"},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_file(program: "subprocess.Popen[str]", path: Path) -> None:
    """Wait until a program has written a file, or has failed."""
    until(lambda: path.exists() or program.poll() is not None, path.name, timeout_s=WAIT_S)
    assert path.exists(), program.communicate()[1][-4000:]


def kill(program: "subprocess.Popen[str]") -> None:
    program.kill()
    program.communicate()


def end_of(program: "subprocess.Popen[str]") -> None:
    """Wait for the end of a program, which must be a good one."""
    try:
        _, errors = program.communicate(timeout=2 * WAIT_S)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGABRT)  # its threads are shown: see `started`
        _, errors = program.communicate()
    assert program.returncode == 0, errors[-8000:]


def process_at(address: str) -> psutil.Process:
    """Return the process that listens at an address of this machine."""
    _, port = parted(address)
    (found,) = {
        each.pid for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port
    }
    return psutil.Process(found)


def executor_at(address: str) -> psutil.Process:
    """Return the executor of the TaskManager or sender that listens at an address."""
    executor = process_at(address).parent().parent()
    assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
    return executor


def executors_of(server: psutil.Process) -> list[psutil.Process]:
    """Return the executors that run below a server."""
    below = server.children(recursive=True)
    return [each for each in below if "CoarseGrainedExecutorBackend" in " ".join(command_of(each))]


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
