"""A real YARN for tests: a ResourceManager and NodeManagers in a JVM, and programs that `spark-submit` gives it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
import pyspark

from examples.kafka.broker import ROOT, java
from waiting import until

FOLDER = Path(__file__).parent / "yarn"
SPARK = Path(pyspark.__file__).parent
STEADY = Path(__file__).parent / "steady_script.py"
MANAGER = ("org.apache.spark.deploy.yarn.ApplicationMaster", "org.apache.spark.deploy.yarn.ExecutorLauncher")
EXECUTOR = "YarnCoarseGrainedExecutorBackend"


@dataclass
class Yarn:
    """`folder` holds what all its programs share."""

    folder: Path
    _told: IO[str]
    _says: IO[str]

    def decommission(self, host: str, seconds: int) -> None:
        """Take a node out of the cluster: it gets no new containers, and its containers end after so many seconds."""
        self._told.write(f"decommission {host} {seconds}\n")
        self._told.flush()
        assert self._says.readline() == "DONE\n"

    @contextlib.contextmanager
    def submit(self, mode: str, program: Path, *arguments: object, **settings: object) -> Iterator["Submitted"]:
        """Run a program; `settings` are Spark's, with `__` for a dot and without the `spark.` before their names."""
        work = Path(tempfile.mkdtemp(dir=self.folder))
        own = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}
        conf = [f"--conf={name}={value}" for name, value in {**_settings(work), **own}.items()]
        command = [str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", mode, *conf]
        with (work / "submitted").open("w") as out:
            environment = os.environ | {
                "SPARK_HOME": str(SPARK),
                "HADOOP_CONF_DIR": str(self.folder / "conf"),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            }
            words = [*command, str(program), str(work), *map(str, arguments)]
            process = subprocess.Popen(words, stdout=out, stderr=out, env=environment)
        submitted = Submitted(process, work)
        try:
            yield submitted
        finally:
            submitted.end()


def _settings(work: Path) -> dict[str, object]:
    return {
        "spark.yarn.jars": f"local:{SPARK}/jars/*",
        "spark.yarn.stagingDir": (work / "staging").as_uri(),
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.yarn.am.memory": "512m",
        "spark.driver.memory": "768m",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1g",
        "spark.executor.failuresValidityInterval": "1h",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
    }


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

    def until_rows(self, rows: int) -> None:
        self.until(lambda: self.rows() >= rows, f"{rows} rows")

    def until(self, condition, awaited: str, seconds: float = 240.0) -> None:
        """Wait for a condition, or fail as soon as the program has ended."""
        until(lambda: condition() or self.process.poll() is not None, awaited, seconds)
        assert condition(), f"ended before {awaited}:\n{self.log[-3000:]}\n{self.out[-3000:]}"

    def result(self, seconds: float = 400.0) -> str:
        """Wait for the end; return the result that the program has logged last."""
        self.process.wait(seconds)
        found = re.findall(r"steady INFO RESULT (.*)", self.log)
        assert found, f"no result:\n{self.log[-3000:]}\n{self.out[-3000:]}"
        return found[-1]

    # --- its processes ------------------------------------------------------------------------------------------------

    @property
    def application(self) -> str:
        found = re.findall(r"application_\d+_\d+", self.out)
        return found[-1] if found else "none yet"

    def executors(self) -> dict[str, psutil.Process]:
        """The executors' JVMs by id."""
        found = self._javas([EXECUTOR])
        return {re.search(r"--executor-id (\d+)", command)[1]: process for process, command in found}

    def managers(self) -> list[psutil.Process]:
        """The JVM of the ApplicationMaster; in cluster mode the driver runs below it."""
        return [process for process, _ in self._javas(MANAGER)]

    def _javas(self, mains: Sequence[str]) -> list[tuple[psutil.Process, str]]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                command = " ".join(words)
                of_it = self.application in command or str(self.folder) in command or self._is_ours(process)
                if words and words[0].endswith("/java") and of_it and any(main in command for main in mains):
                    found.append((process, command))
        return found

    def _is_ours(self, process: psutil.Process) -> bool:
        return self.application in process.environ().get("CONTAINER_ID", "").replace("container", "application")

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

    def host_of(self, executor: str) -> str:
        return re.search(r"--hostname (\S+)", " ".join(self.executors()[executor].cmdline()))[1]

    def end(self) -> None:
        """End the program and its containers."""
        below = [*self.executors().values(), *self.managers()]
        with contextlib.suppress(psutil.Error):
            below += psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for each in below:
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def yarn(nodes: int = 2, megabytes: int = 6144, cores: int = 4) -> Iterator[Yarn]:
    """Run YARN with so many nodes, each with so much memory and so many cores; node N has the address 127.0.0.N+1."""
    jars = subprocess.run(
        [ROOT / "scripts" / "jars.sh", str((FOLDER / "pom.xml").relative_to(ROOT))],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = ["-Xmx768m", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-cp", f"{jars}/*"]
        command = [java(), *options, str(FOLDER / "MiniYarn.java"), name, str(nodes), str(megabytes), str(cores)]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
            )
        assert process.stdin is not None and process.stdout is not None
        try:
            ready = any(line.startswith("READY ") for line in process.stdout)
            assert ready, f"YARN did not start: {(folder / 'log').read_text()[-2000:]}"
            yield Yarn(folder, process.stdin, process.stdout)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
