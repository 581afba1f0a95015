"""The same workload on Flink, in a virtual environment of its own: needs PyPI (apache-flink) and a JDK (javac).

    python -m benchmarks.peers.flink --keys 1000 --parallelism 2

Rows are chosen so that each run takes some tens of seconds; the first second is part of the figure on both sides.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FLINK = "apache-flink==2.3.0"
SOURCE = Path(__file__).with_name("RunningCount.java")
ROWS = {("hashmap", 1000): 60_000_000, ("hashmap", 1_000_000): 40_000_000, ("rocksdb", 1000): 15_000_000}
ROWS_OTHERWISE = 12_000_000
WITH_CHANGELOG = (("hashmap", True), ("rocksdb", True))


def home() -> Path:
    """The folder of Flink and of compiled classes, kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "holdfast-benchmarks"


def install() -> str:
    """Install Flink and compile the workload if need be; return the class path."""
    install_flink()
    return compiled(SOURCE)


def install_flink() -> None:
    """Install Flink if need be. Needs a JDK."""
    if shutil.which("javac") is None:
        raise SystemExit("the Flink peer needs a JDK (on Debian: apt-get install openjdk-17-jdk-headless)")
    python = home() / "flink" / "bin" / "python"
    if not python.exists():
        print(f"installing {FLINK} into {home() / 'flink'} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(home() / "flink")], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "setuptools<81", "wheel", FLINK], check=True, stdout=sys.stderr)


def compiled(source: Path, further: Sequence[str] = ()) -> str:
    """Compile a program if need be; return its class path: Flink's jars, the `further` entries and the classes."""
    jars = sorted(str(jar) for jar in (home() / "flink").glob("lib/python3*/site-packages/pyflink/lib/*.jar"))
    classes = home() / "classes"
    made = classes / f"{source.stem}.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        classes.mkdir(exist_ok=True)
        path = ":".join([*jars, *further])
        subprocess.run(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(source)], check=True)
    return ":".join([*jars, *further, str(classes)])


def run(backend: str, keys: int, parallelism: int, changelog: bool = True, interval: str = "1s") -> dict[str, Any]:
    """Run once; return the figures."""
    class_path = install()
    with tempfile.TemporaryDirectory(prefix="holdfast-flink-") as folder, socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
        probe.close()
        options = {
            "folder": folder,
            "port": port,
            "backend": backend,
            "changelog": str(changelog).lower(),
            "rows": ROWS.get((backend, keys), ROWS_OTHERWISE),
            "keys": keys,
            "parallelism": parallelism,
            "interval": interval,
        }
        opens = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("util", "lang")]
        command = ["java", "-Xmx6g", *opens, "-cp", class_path, "RunningCount"]
        command += [f"{name}={value}" for name, value in options.items()]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"Flink ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    figures: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return {"backend": backend, "changelog": changelog, "keys": keys, "parallelism": parallelism, **figures}


def compare(
    rows_per_s: float, keys: int, parallelism: int, against: Sequence[tuple[str, bool]] = WITH_CHANGELOG
) -> None:
    """Run Flink once for each backend and changelog on or off, and print how many times faster Holdfast was."""
    table = Table(title=f"running count, {keys:,} keys, checkpoints every second")
    for column in ("engine", "rows/s", "Holdfast is faster"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    table.add_row("Holdfast", f"{rows_per_s:,.0f}", "")
    for backend, changelog in against:
        figures = run(backend, keys, parallelism, changelog)
        ratio = f"{rows_per_s / figures['rows_per_s']:.1f} times"
        engine = f"Flink {backend}" + (" + changelog" if changelog else "")
        table.add_row(engine, f"{figures['rows_per_s']:,.0f}", ratio)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--changelog", choices=["on", "off"], default="on")
    options = parser.parse_args()
    print(json.dumps(run(options.backend, options.keys, options.parallelism, options.changelog == "on")))


if __name__ == "__main__":
    main()
