"""A real YARN for tests: a ResourceManager and NodeManagers in a JVM, and programs that `spark-submit` gives it."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
import pyspark
from submitted_kit import Submitted

from examples.kafka.broker import jars, java

FOLDER = Path(__file__).parent / "yarn"
SPARK = Path(pyspark.__file__).parent
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
    def submit(self, mode: str, program: Path, *arguments: object, **settings: object) -> Iterator["YarnProgram"]:
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
        submitted = YarnProgram(process, work)
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


class YarnProgram(Submitted):
    """A program on YARN."""

    @property
    def application(self) -> str:
        found = re.findall(r"application_\d+_\d+", self.out)
        return found[-1] if found else "none yet"

    def executors(self) -> dict[str, psutil.Process]:
        found = self._javas([EXECUTOR])
        return {re.search(r"--executor-id (\d+)", command)[1]: process for process, command in found}

    def others(self) -> list[psutil.Process]:
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

    def host_of_manager(self) -> str:
        """The node of the ApplicationMaster."""
        return self.others()[0].environ()["NM_HOST"]

    def host_of(self, executor: str) -> str:
        return re.search(r"--hostname (\S+)", " ".join(self.executors()[executor].cmdline()))[1]


@contextlib.contextmanager
def yarn(nodes: int = 2, megabytes: int = 6144, cores: int = 4) -> Iterator[Yarn]:
    """Run YARN with so many nodes, each with so much memory and so many cores; node N has the address 127.0.0.N+1."""
    classpath = f"{jars(FOLDER / 'pom.xml')}/*"
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = ["-Xmx768m", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-cp", classpath]
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
