"""A Kubernetes for tests: an API server and a kubelet in a JVM, and programs that `spark-submit` gives it.

Spark's own scheduler backend for Kubernetes talks to it. The kubelet runs pods as processes of this machine, so images,
namespaces of networks and limits of memory are not tested.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
from submitted_kit import Submitted

from examples.kafka.broker import jars, java

FOLDER = Path(__file__).parent / "kubernetes"
SPARK = Path(pyspark.__file__).parent
EXECUTOR = "KubernetesExecutorBackend"
OWN_HOSTS = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')
"""Runs a command with a file of its own in the place of /etc/hosts."""


def has_own_hosts() -> bool:
    """True if this machine lets a process have a file of its own in the place of /etc/hosts."""
    command = [*OWN_HOSTS, "/etc/hosts", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


class KubernetesProgram(Submitted):
    """A program on Kubernetes. `pods` is the folder of all pods."""

    pods: Path

    def running(self) -> dict[str, psutil.Process]:
        """The processes of pods by their names."""
        found = {}
        for pid in self.pods.glob("*/pid"):
            with contextlib.suppress(psutil.Error, ValueError):
                process = psutil.Process(int(pid.read_text()))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found[pid.parent.name] = process
        return found

    def executors(self) -> dict[str, psutil.Process]:
        """The executors' JVMs by the names of their pods."""
        return {name: process for name, process in self.running().items() if EXECUTOR in " ".join(process.cmdline())}

    def others(self) -> list[psutil.Process]:
        """The drivers' JVMs and what runs below them, in cluster mode."""
        drivers = [process for name, process in self.running().items() if name.endswith("-driver")]
        return [each for driver in drivers for each in [driver, *driver.children(recursive=True)]]


@dataclass
class Kubernetes:
    """`url`: of the API server; `folder` holds what all its programs share."""

    url: str
    folder: Path

    def evict(self, pod: str) -> None:
        """Delete a pod, as an eviction does: its process gets its time to end."""
        place = f"{self.url}api/v1/namespaces/default/pods/{pod}"
        with urllib.request.urlopen(urllib.request.Request(place, method="DELETE")) as answer:
            assert answer.status == 200

    @contextlib.contextmanager
    def submit(self, mode: str, program: Path, *arguments: object, **settings: object) -> Iterator[KubernetesProgram]:
        """Run a program; `settings` are Spark's, with `__` for a dot and without the `spark.` before their names.

        `work`: the folder of an earlier run, to go on there.
        """
        work = Path(str(settings.pop("work", None) or tempfile.mkdtemp(dir=self.folder)))
        own = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}
        conf = [f"--conf={name}={value}" for name, value in {**self._settings(mode), **own}.items()]
        master = ["--master", f"k8s://{self.url}", "--deploy-mode", mode, *conf]
        named = program.as_uri().replace("file://", "local://") if mode == "cluster" else str(program)
        with (work / "submitted").open("a") as out:
            environment = os.environ | {
                "SPARK_HOME": str(SPARK),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            }
            words = [str(SPARK / "bin" / "spark-submit"), *master, named, str(work), *map(str, arguments)]
            process = subprocess.Popen(words, stdout=out, stderr=out, env=environment)
        submitted = KubernetesProgram(process, work)
        submitted.pods = self.folder / "pods"
        try:
            yield submitted
        finally:
            submitted.end()

    def _settings(self, mode: str) -> dict[str, object]:
        place = {"spark.driver.host": "127.0.0.1"} if mode == "client" else {}
        return place | {
            "spark.kubernetes.container.image": "none",
            "spark.kubernetes.driver.master": self.url,
            "spark.kubernetes.executor.deleteOnTermination": "true",
            "spark.driver.memory": "768m",
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "1g",
            "spark.executor.failuresValidityInterval": "1h",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
        }


@contextlib.contextmanager
def kubernetes(own_hosts: bool = False) -> Iterator[Kubernetes]:
    """Run the API server and the kubelet. `own_hosts`: its pods find services by their names, by a file of hosts."""
    classpath = f"{jars(FOLDER / 'pom.xml')}/*"
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shutil.copy("/etc/hosts", folder / "hosts")
        options = ["-Xmx256m", "-cp", f"{classpath}:{SPARK}/jars/*"]
        command = [java(), *options, str(FOLDER / "MiniKubernetes.java"), name, str(SPARK)]
        whole = [*OWN_HOSTS, str(folder / "hosts"), *command] if own_hosts else command
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                whole, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment
            )
        assert process.stdout is not None
        try:
            said = next((line for line in process.stdout if line.startswith("READY ")), "")
            assert said, f"Kubernetes did not start: {(folder / 'log').read_text()[-2000:]}"
            yield Kubernetes(said.split()[1].replace("localhost", "127.0.0.1"), folder)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
