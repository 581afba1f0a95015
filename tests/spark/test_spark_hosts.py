"""Both hosts of a job's processes and tasks: a classic session, and Spark Connect with a real server."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cluster_script import KEYS, ROWS

from connect_kit import connect_server
from holdfast.errors import JobRefused
from holdfast.ids import Role
from holdfast.spark import connect_host
from holdfast.spark.classic_host import ClassicHost
from holdfast.spark.connect_host import ConnectHost
from holdfast.spark.host import SparkJob
from waiting import until

HERE = Path(__file__).parent
LARGE = 3 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The URL of a Connect server with four slots. Executors of its own are in the long tests."""
    with connect_server("local[4]", tmp_path_factory.mktemp("connect")) as (url, _):
        yield url


@pytest.fixture(params=["classic", "connect"])
def host(request):
    if request.param == "classic":
        yield ClassicHost(request.getfixturevalue("spark"))
        return
    from pyspark.sql.connect.session import SparkSession

    # `builder.remote` of pyspark.sql would have all of PySpark's functions be Connect's from now on.
    session = SparkSession.builder.remote(request.getfixturevalue("server")).create()
    made = ConnectHost(session)
    yield made
    made.close()
    session.stop()


def job(group, **kind):
    return SparkJob(group, "a test", **kind)


def stay(host, group, folder):
    """Start a task that stays until a file named as its group is there; its answer comes into the list."""

    def body(_):
        Path(folder, f"{group}-runs").touch()
        until(lambda: Path(folder, group).exists())
        return [b"asked to end"]

    ended = []

    def run():
        try:
            with host.described(job(group, stays=Role.SENDER)):
                ended.extend(host.run([b""], body))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def test_tasks_get_their_bytes_and_answer_in_order(host):
    assert host.run([b"a", b"", b"bc"], lambda task: [task, task.upper()]) == [b"a", b"A", b"", b"", b"bc", b"BC"]
    assert host.run([], lambda task: [task]) == []


def test_many_bytes_travel_with_tasks_and_beside_them(host):
    shipped = host.ship(b"s" * LARGE)
    body = lambda task: [task[:1] + shipped.value[:1], str(len(task) + len(shipped.value)).encode()]  # noqa: E731
    answers = host.run([b"1" * LARGE, b"2" * LARGE], body)
    assert answers == [b"1s", str(2 * LARGE).encode(), b"2s", str(2 * LARGE).encode()]
    (answer,) = host.run([b""], lambda _: [b"r" * LARGE])
    assert answer == b"r" * LARGE


def test_an_error_of_a_task_is_raised_with_its_words(host):
    def body(task):
        raise ValueError("the task's own words")

    with pytest.raises(Exception, match="ValueError: the task's own words"):
        host.run([b""], body)


def test_processes_stay_beside_each_other_and_a_cancelled_one_ends_alone(host, tmp_path, monkeypatch):
    monkeypatch.setattr(connect_host, "INTERRUPT_S", 0.1)
    (one, _), (other, ended) = stay(host, "stays-1", tmp_path), stay(host, "stays-2", tmp_path)
    until(lambda: all((tmp_path / f"stays-{n}-runs").exists() for n in (1, 2)), timeout_s=60)
    assert host.has_begun("stays-1") and host.has_begun("stays-2") and not host.has_begun("stays-3")
    assert host.run([b"x"], lambda task: [task]) == [b"x"]
    host.cancel("stays-1")
    until(lambda: not one.is_alive(), timeout_s=60)
    assert other.is_alive()
    (tmp_path / "stays-2").touch()
    until(lambda: not other.is_alive(), timeout_s=60)
    assert ended == [b"asked to end"]


def test_it_tells_its_application_settings_address_and_slots(host):
    assert host.application and host.master.startswith("local")
    assert host.setting("spark.app.id") == host.application
    assert host.setting("spark.no.such.setting") is None
    assert host.address() == "127.0.0.1"
    assert host.slots() == 4
    assert not host.has_ended()
    assert host.executors() is None or len(host.executors()) == 1
    assert host.failure("no-such-group") is None
    assert isinstance(host.bind_address(), str)


def test_a_thread_has_its_earlier_group_again_and_tasks_that_ask_for_slots_do_not_stay(host):
    with host.described(job("outer")):
        with host.described(job("inner")):
            assert host.run([b"x"], lambda task: [task]) == [b"x"]
        assert host.has_begun("inner") and not host.has_begun("outer")
        assert host.run([b"x"], lambda task: [task]) == [b"x"]
    assert host.has_begun("outer")
    with host.asking(2, 30.0):
        pass
    assert host.run([b"y"], lambda task: [task]) == [b"y"]


class AskedSession:
    """A user's session that counts what it is asked for."""

    is_stopped = False

    def __init__(self):
        self.conf, self.asked = self, 0

    def get(self, name, default):
        self.asked += 1


@pytest.mark.parametrize("host", ["connect"], indirect=True)
def test_the_users_session_is_asked_too_so_that_the_server_does_not_close_it(host, monkeypatch):
    monkeypatch.setattr(connect_host, "LOOK_S", 0.01)
    monkeypatch.setattr(connect_host, "KEEP_S", 0.0)
    monkeypatch.setattr(host, "_users", AskedSession())
    until(lambda: host._users.asked > 2)


class EndedSession(AskedSession):
    def get(self, name, default):
        super().get(name, default)
        raise RuntimeError("SESSION_CLOSED")


@pytest.mark.parametrize("host", ["connect"], indirect=True)
def test_a_users_session_that_has_ended_is_asked_and_reported_once(host, monkeypatch, caplog):
    monkeypatch.setattr(connect_host, "LOOK_S", 0.01)
    monkeypatch.setattr(connect_host, "KEEP_S", 0.0)
    users, own = EndedSession(), AskedSession()
    monkeypatch.setattr(host, "_users", users)
    monkeypatch.setattr(host, "_own", own)
    until(lambda: users.asked)
    until(lambda before=own.asked: own.asked > before + 5)
    assert users.asked == 1 and caplog.text.count("DataFrames are declared has ended") == 1


def test_a_transforms_stream_has_a_partition_for_each_unit_and_its_plan_is_judged(host):
    lanes = host.lanes(3)
    [last] = host.own(lanes.selectExpr("spark_partition_id() AS p").groupBy().max("p")).collect()
    assert last[0] == 2
    host.check_transform("keeps", lanes, lanes.where("id >= 0"))
    with pytest.raises(JobRefused, match=r"transform\(divides\) needs a shuffle"):
        host.check_transform("divides", lanes, lanes.repartition(2))


def run(script, *words):
    helpers = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, HERE / script, *map(str, words)],
        env=os.environ | {"PYTHONPATH": helpers},
        cwd=words[-1],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_whole_job_on_spark_connect_gives_the_same_answer_at_two_parallelisms(server, tmp_path):
    run("cluster_script.py", server, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["totals"] == {str(k): sum(v for v in range(ROWS) if v % KEYS == k) for k in range(0, KEYS, 2)}
    assert (found["rows"], found["restarts"]) == (ROWS // 2, [])
    assert found["stored"] == found["totals"]


def test_a_job_led_in_the_cluster_is_stopped_by_another_handle_and_its_output_is_exact(server, tmp_path):
    run("cluster_driver_script.py", server, tmp_path)
    found = json.loads((tmp_path / "cluster_driver.json").read_text())
    assert "a MemorySink keeps rows in the process of the JobMaster" in found["memory"]
    assert "a streaming DataFrame cannot be read with driver='cluster'" in found["streaming"]
    assert "there is no such folder" in found["not yet"]
    assert found["same"] == "Processing" and found["ended"] == 2_000
    assert "has no operator 'none'" in found["no operator"]
    assert "its last start has ended (stopped)" in found["afterwards"]
    assert found["sums"] == {str(k): 500 * (k + 1) for k in range(4)} and found["state"] == 1


def test_transforms_are_judged_on_spark_connect_by_their_plans_texts(server, tmp_path):
    run("connect_script.py", server, tmp_path)
    found = json.loads((tmp_path / "refused.json").read_text())
    wrong = {name: said for kind, answers in found.items() for name, said in answers.items() if kind not in said}
    assert not wrong
    assert sum(map(len, found.values())) > 30


@pytest.mark.long
def test_what_else_a_job_does_works_on_spark_connect_or_is_refused_by_name(tmp_path):
    with connect_server("local-cluster[2,2,1024]", tmp_path) as (url, _):
        run("connect_uses_script.py", url, tmp_path)
    found = json.loads((tmp_path / "uses.json").read_text())
    assert found["two at once"] and found["from a savepoint"]
    assert found["page"] == "one" and found["columns"]
    assert "a step (transform(<lambda>)) raised in Spark: [DIVIDE_BY_ZERO]" in found["raises"]
    sums = [{str(k): sum(range(k, 10 * files, 2)) for k in range(2)} for files in (2, 4)]
    assert found["streaming"] == sums
