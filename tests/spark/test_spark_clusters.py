"""The same job where executors are processes of their own: `local-cluster`, and a standalone master with two workers.

Everything starts from the installed PySpark; nothing else is needed. In `make test` executors are processes in
`kills/test_kills_executors`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest
from cluster_script import KEYS, ROWS
from dynamic_script import SETTINGS

from connect_kit import connect_server
from forwarding_kit import forwarded, free_ports
from holdfast.ports import parted
from waiting import until

SPARK_HOME = Path(pyspark.__file__).parent
SCRIPT = Path(__file__).parent / "cluster_script.py"
EXPECTED = {str(k): sum(v for v in range(ROWS) if v % KEYS == k) for k in range(0, KEYS, 2)}


def environment() -> dict[str, str]:
    return os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }


def run_script(script: Path, *words: object, cwd: Path, **more: str) -> dict:
    """Run a script, which writes its findings to `cwd`."""
    done = subprocess.run(
        [sys.executable, str(script), *map(str, words)],
        env=environment() | more,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((cwd / "found.json").read_text())


def run_on(master: str, folder: Path, *ports: int, **settings: object) -> dict:
    """Run the script; `settings` of the driver, with an underscore for each dot."""
    given = {"driver_host": "127.0.0.1"} | settings
    conf = [f"--conf spark.{name.replace('_', '.')}={value}" for name, value in given.items()]
    return run_script(
        SCRIPT, master, folder, *ports, cwd=folder, PYSPARK_SUBMIT_ARGS=" ".join([*conf, "pyspark-shell"])
    )


def right(found: dict, host: str = "127.0.0.1") -> None:
    assert found["totals"] == EXPECTED
    assert found["rows"] == ROWS // 2
    assert found["executors"] == 2
    assert all(address.startswith(f"grpc+tls://{host}:") for address in found["hosts"])
    assert found["restarts"] == []


@pytest.mark.long
def test_executors_that_are_processes_give_the_same_answer(tmp_path):
    right(run_on("local-cluster[2,2,1024]", tmp_path))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def standalone(tmp_path):
    """The URL of a standalone master with two workers of two cores."""
    port = free_port()
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str, *arguments: str) -> None:
        with (tmp_path / f"{kind}-{len(started)}.log").open("wb") as output:
            command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
            started.append(
                subprocess.Popen(
                    command, env=environment(), cwd=tmp_path, stdout=output, stderr=output, start_new_session=True
                )
            )

    start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    until(lambda: answers(port))
    for number in range(2):
        folder = str(tmp_path / f"worker-{number}")
        resources = ["--cores", "2", "--memory", "1g", "--work-dir", folder, "--webui-port", "0"]
        start("worker.Worker", "--host", "127.0.0.1", *resources, f"spark://127.0.0.1:{port}")
    yield f"spark://127.0.0.1:{port}"
    for process in reversed(started):
        os.killpg(process.pid, signal.SIGTERM)
    for process in started:
        process.wait(60)


@pytest.mark.long
def test_a_standalone_master_with_two_workers_gives_the_same_answer(standalone, tmp_path):
    right(run_on(standalone, tmp_path))


@pytest.mark.long
def test_a_driver_behind_a_translation_of_addresses_and_a_range_of_ports_give_the_same_answer(tmp_path):
    first = free_ports(12)
    with ExitStack() as translated:
        # Spark's own two ports, then those of the link for drivers in waiting and of the JobMaster.
        ports = range(first, first + 4)
        counts = [translated.enter_context(forwarded(port, "127.0.0.2", "127.0.0.1")) for port in ports]
        own = {"driver_host": "127.0.0.2", "driver_bindAddress": "127.0.0.1", "driver_port": first}
        ports = (first + 2, first + 11)
        found = run_on("local-cluster[2,2,1024]", tmp_path, *ports, **own, driver_blockManager_port=first + 1)
        assert counts[0]() and counts[3]()
    right(found)
    assert all(first + 2 <= parted(address)[1] <= first + 11 for address in found["hosts"])


@pytest.mark.long
def test_a_driver_on_ipv6_gives_the_same_answer(tmp_path):
    right(run_on("local-cluster[2,2,1024]", tmp_path, driver_host="[::1]"), "[::1]")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_under_dynamic_allocation_executors_that_come_late_get_a_sender_and_idle_ones_go(tmp_path, kind):
    with ExitStack() as closing:
        words: list[object] = []
        if kind == "connect":
            settings = {name.removeprefix("spark.").replace(".", "__"): value for name, value in SETTINGS.items()}
            server = connect_server("local-cluster[4,1,1024]", tmp_path, **settings)
            url, process = closing.enter_context(server)
            words = [url, process.pid]
        script = SCRIPT.with_name("dynamic_script.py")
        found = run_script(script, tmp_path, *words, cwd=tmp_path, PYTHONPATH=str(SCRIPT.parents[1]))
    assert found["executors of two TaskManagers"] >= 3
    assert (found["exact"], found["restarts"]) == (True, [])
