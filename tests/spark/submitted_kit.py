"""A program that `spark-submit` gave to a cluster manager: its log, and the processes of its executors."""

import contextlib
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from waiting import until

STEADY = Path(__file__).parent / "steady_script.py"


@dataclass
class Submitted:
    """A program that was submitted. `folder` is its first argument; it logs to `folder/log`."""

    process: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def out(self) -> str:
        return (self.folder / "submitted").read_text()

    def rows(self) -> int:
        """Number of rows that the job has processed."""
        found = re.findall(r"steady INFO rows (\d+)", self.log)
        return int(found[-1]) if found else 0

    def restarts(self) -> list[str]:
        """The reasons of the restarts from a checkpoint."""
        return re.findall(r"restarting from the last checkpoint: (.*)", self.log)

    def until_rows(self, rows: int) -> None:
        self.until(lambda: self.rows() >= rows, f"{rows} rows")

    def until(self, condition, awaited: str, seconds: float = 600.0) -> None:
        """Wait for a condition, or fail as soon as the program has ended."""
        until(lambda: condition() or self.process.poll() is not None, awaited, seconds)
        assert condition(), f"ended before {awaited}:\n{self.log[-3000:]}\n{self.out[-3000:]}"

    def result(self, seconds: float = 800.0) -> str:
        """Wait for the end; return the result that the program has logged last."""
        self.process.wait(seconds)
        found = re.findall(r"steady INFO RESULT (.*)", self.log)
        assert found, f"no result:\n{self.log[-3000:]}\n{self.out[-3000:]}"
        return found[-1]

    # --- its processes ------------------------------------------------------------------------------------------------

    def executors(self) -> dict[str, psutil.Process]:
        """The executors' JVMs by id."""
        raise NotImplementedError

    def others(self) -> list[psutil.Process]:
        """Return its other JVMs on the cluster."""
        return []

    def executor_of(self, process: str) -> str:
        """Id of the executor in which a TaskManager or a sender ("TaskManager 0") serves, by its last registration."""
        address = re.findall(rf"{process}, incarnation \d+, serves at grpc\+tls://[^:]+:(\d+)", self.log)[-1]
        [listening] = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr.port == int(address)
        }
        above = {each.pid for each in psutil.Process(listening).parents()}
        return next(number for number, java in self.executors().items() if java.pid in above)

    def end(self) -> None:
        """End the program and its containers."""
        below = [*self.executors().values(), *self.others()]
        with contextlib.suppress(psutil.Error):
            below += psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for each in below:
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGKILL)
