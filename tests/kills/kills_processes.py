"""Real drivers with real Spark, started, stopped and killed from outside."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from kills_pipelines import BROKER, Shape, topic_of

import kafka_kit
from holdfast import failpoints
from waiting import until

HERE = Path(__file__).parent
WAIT_S = 240.0
DAEMON = "pyspark.worker"
"""The last argument of the processes that Spark forks its Python workers from, whichever module they run, and of the
workers."""


class DriverProcess:
    """A driver in a session of its own; Spark's processes for it belong to that session too."""

    def __init__(
        self,
        folder: Path,
        jobs: Mapping[Path, Shape],
        *,
        armed: Mapping[str, str] | None = None,
        master: str = "local[4]",
        name: str = "driver",
        settings: Mapping[str, Any] | None = None,
        **told: bool,
    ) -> None:
        """`told`: `standby` and `stays`, as `kills_driver` takes them."""
        folder.mkdir(parents=True, exist_ok=True)
        shapes = [{"shape": asdict(shape), "folder": str(at)} for at, shape in jobs.items()]
        program = {"master": master, "jobs": shapes, "settings": dict(settings or {}), **told}
        file = folder / f"{name}.json"
        file.write_text(json.dumps(program))
        self.log = folder / f"{name}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        environment[failpoints.ENVIRONMENT_VARIABLE] = ",".join(f"{at}={act}" for at, act in (armed or {}).items())
        environment["SPARK_LOCAL_DIRS"] = str(folder)
        for at in [at for at, shape in jobs.items() if "kafka" in shape.sink]:
            environment[BROKER] = kafka_kit.address()
            topic_of(at)
        with self.log.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "kills_driver.py"), str(file)],
                env=environment,
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )

    def __enter__(self) -> "DriverProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def text(self) -> str:
        return self.log.read_text()

    def says(self, words: str) -> bool:
        return words in self.text()

    def last_line(self) -> str:
        return (self.text().strip().splitlines() or [""])[-1][:200]

    def kill(self) -> None:
        """SIGKILL to the driver alone; Spark's processes for it notice by themselves."""
        self._process.kill()
        self._process.wait(WAIT_S)

    def suspend(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """How it ended: 0, or minus the signal that killed it."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the driver did not end within {timeout_s:.0f} s:\n{self.text()[-4000:]}") from error

    def finish(self, timeout_s: float = WAIT_S) -> None:
        """Wait until the driver has run to its end."""
        code = self.wait(timeout_s)
        assert code == 0, f"the driver ended with {code}:\n{self.text()[-4000:]}"

    def task_managers(self) -> list[int]:
        """Process ids of those that listen now: Spark's Python workers with a port of their own."""
        return [pid for pid in self._session() if pid != self.pid and serves(pid)]

    def kill_task_manager(self, rng: random.Random) -> int | None:
        """Send SIGKILL to any of them; None if none serves."""
        found = sorted(self.task_managers())
        if not found:
            return None
        pid = rng.choice(found)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return pid

    def clear(self) -> None:
        """End whatever of this driver still runs."""
        for pid in {self.pid, *self._session()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(WAIT_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        until(lambda: not self._session(), lambda: f"processes {self._session()} do not end")

    def _session(self) -> list[int]:
        return in_session(self.pid)


def in_session(session: int) -> list[int]:
    """The processes of a session that still run."""
    return [pid for pid in psutil.pids() if _is_in(session, pid)]


def _is_in(session: int, pid: int) -> bool:
    try:
        return os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def serves(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        if DAEMON not in process.cmdline():
            return False
        # The daemon itself listens too, for the JVM: it is the parent of the workers.
        worker = DAEMON in psutil.Process(process.ppid()).cmdline()
        return worker and any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp"))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
