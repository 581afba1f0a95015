"""A real HDFS for tests: a NameNode, or two, and a DataNode in a JVM. It starts in some seconds."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from examples.kafka.broker import jars, java

FOLDER = Path(__file__).parent / "storage" / "hdfs"
LOG = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"


@dataclass
class Hdfs:
    """`address`: host and port of the first NameNode; `options`: what a client of the name service needs."""

    address: str
    options: dict[str, str]
    _told: IO[str]
    _says: IO[str]

    def switch(self) -> None:
        """Make the other NameNode the active one."""
        self._told.write("s")
        self._told.flush()
        assert self._says.readline() == "SWITCHED\n"


@contextlib.contextmanager
def hdfs(name_nodes: int = 1) -> Iterator[Hdfs]:
    """Run HDFS; with two NameNodes its name service is `hdfs://tests`."""
    classpath = f"{jars(FOLDER / 'pom.xml')}/*"
    with tempfile.TemporaryDirectory() as data, Path(data, "log").open("w") as log:
        command = [java(), "-Xmx512m", LOG, "-cp", classpath, str(FOLDER / "MiniHdfs.java"), data, str(name_nodes)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=data
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            said = next((line for line in process.stdout if line.startswith("READY ")), "")
            assert said, f"HDFS did not start: {Path(data, 'log').read_text()[-2000:]}"
            addresses = [f"127.0.0.1:{port}" for port in said.split()[1].split(",")]
            names = {f"dfs.namenode.rpc-address.tests.nn{n}": address for n, address in enumerate(addresses)}
            options = {"dfs.ha.namenodes.tests": ",".join(f"nn{n}" for n in range(len(addresses))), **names}
            yield Hdfs(addresses[0], options, process.stdin, process.stdout)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
