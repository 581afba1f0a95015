"""Nexmark's queries on Flink SQL, in a Java process of its own: needs a JDK, Maven, and PyPI for Flink itself."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.nexmark.flink_sql import QUERIES, script
from benchmarks.nexmark.measure import run_peer
from benchmarks.peers.flink import home, install

SOURCE = Path(__file__).with_name("NexmarkSql.java")
JARS = (
    "org.apache.flink:flink-sql-parquet:2.3.0",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
)
VARIANTS = {"": ("rocksdb", True), "_hashmap": ("hashmap", False)}
"""State backend and changelog; the first is the one to compare with."""


def class_path() -> str:
    """Install Flink, fetch the libraries of its SQL for Parquet, compile; returns the class path."""
    base, jars = install(), home() / "nexmark-jars"
    if shutil.which("mvn") is None:
        raise SystemExit("Flink's SQL needs Maven for its Parquet format (on Debian: apt-get install maven)")
    for artifact in JARS:
        _, name, version = artifact.split(":")
        if not (jars / f"{name}-{version}.jar").exists():
            command = ["mvn", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={jars}"]
            subprocess.run(command, check=True, stdout=sys.stderr)
    found = ":".join([base, *map(str, sorted(jars.glob("*.jar")))])
    classes = home() / "classes"
    compiled = classes / "NexmarkSql.class"
    if not compiled.exists() or compiled.stat().st_mtime < SOURCE.stat().st_mtime:
        subprocess.run(["javac", "-nowarn", "-cp", found, "-d", str(classes), str(SOURCE)], check=True)
    return found


def settings(backend: str, changelog: bool, parallelism: int, folder: Path) -> dict[str, str]:
    """Flink's settings of a run."""
    return {
        "parallelism.default": str(parallelism),
        "state.backend.type": backend,
        "state.changelog.enabled": str(changelog).lower(),
        "state.changelog.storage": "filesystem",
        "state.changelog.dstl.dfs.base-path": (folder / "dstl").as_uri(),
        "state.changelog.periodic-materialize.interval": "3min",
        "execution.checkpointing.interval": "1s",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "pipeline.object-reuse": "true",
        "taskmanager.memory.managed.size": "1g",
        "table.exec.source.idle-timeout": "1s",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.distinct-agg.split.enabled": "true",
    }


def run(query: str, folder: Path, parallelism: int) -> Iterator[tuple[str, float]]:
    """Yield each variant's name with the seconds of a query; nothing for a query that Flink's SQL can't say.

    Raises:
        PeerFailed: Flink ended with an error; the variants yielded before the error stay valid.
    """
    if query in QUERIES:
        for name, variant in VARIANTS.items():
            yield name, _run(query, folder, parallelism, *variant)


def _run(query: str, folder: Path, parallelism: int, backend: str, changelog: bool) -> float:
    with tempfile.TemporaryDirectory(prefix="holdfast-flink-") as temporary:
        statements = Path(temporary) / "query.sql"
        statements.write_text(script(query, folder))
        options = settings(backend, changelog, parallelism, Path(temporary))
        opens = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("util", "lang", "nio")]
        command = ["java", "-Xmx6g", *opens, "-cp", class_path(), "NexmarkSql", str(statements)]
        command += [f"{name}={value}" for name, value in options.items()]
        return float(run_peer(f"Flink's {query}", command))
