"""Senders as plain processes: a cluster without Spark.

python kills_senders.py <file>      the process of a sender; the file has its settings, program and store
"""

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec

from holdfast.exchange.main import run_sender
from holdfast.exchange.resident_server import ResidentClient
from holdfast.exchange.task import UnitResult
from holdfast.graph.program import Program
from holdfast.ids import ProcessId
from holdfast.jobmaster.processes.cluster import LevelRun, ProcessStarter
from holdfast.jobmaster.starting.start import ClusterContext, task_manager_settings
from holdfast.settings import TaskManagerConfig
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import open_store

HERE = Path(__file__).parent


@dataclass
class SenderProcesses:
    """Implements `jobmaster.processes.cluster.Cluster` for jobs without operators: its senders are processes."""

    program: Program
    storage: str
    place: ClusterContext
    folder: Path
    residents: int = 2
    heartbeats: bool = True
    started: int = 0
    running: dict[ProcessId, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def senders(self) -> int:
        return self.residents

    def residents_that_fit(self) -> int:
        return self.residents

    def check(self) -> None:
        """There is no session that could end."""

    def start(self, start: ProcessStarter) -> None:
        self.started += 1
        common = task_manager_settings(self.place, TaskManagerConfig(), self.storage)
        settings = msgspec.structs.replace(common, process=start.process, bind_host="127.0.0.1")
        file = self.folder / f"sender-{self.started}"
        file.write_bytes(pickle.dumps((msgspec.msgpack.encode(settings), cloudpickle.dumps(self.program))))
        paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, str(HERE / "kills_senders.py"), str(file)], env={**os.environ, "PYTHONPATH": paths}
        )
        self.running[start.process] = process
        threading.Thread(target=self._watch, args=(start, process), daemon=True).start()

    def _watch(self, start: ProcessStarter, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        self.running.pop(start.process, None)
        start.ended(start.process, f"it exited with code {code}")

    def end(self, process: ProcessId) -> None:
        found = self.running.get(process)
        if found is not None:
            found.kill()

    def gateway(self, route: Any) -> Any:
        raise AssertionError("a job without operators has no TaskManagers")

    def sender(self, process: ProcessId, address: str) -> ResidentClient:
        return ResidentClient(process, address, self.place.secret)

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        raise AssertionError("senders are expected")

    def cancel(self, run: int) -> None:
        """No task is anywhere but in a sender."""

    def stop(self) -> None:
        for process in list(self.running.values()):
            process.kill()


def main(file: str) -> None:
    settings, program = pickle.loads(Path(file).read_bytes())
    from holdfast.taskmanager.settings import TaskManagerSettings

    made = msgspec.msgpack.decode(settings, type=TaskManagerSettings)
    run_sender(made, pickle.loads(program), RetryingStore(open_store(made.storage_url)))


if __name__ == "__main__":
    main(sys.argv[1])
