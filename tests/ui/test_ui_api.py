"""The JSON of a job's page, and the server around it, with a job in process."""

import itertools
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import JobRefused, SettingsError
from holdfast.query import Query
from holdfast.testing import TestSource, start
from holdfast.testing.local import LocalCluster
from holdfast.ui import api
from holdfast.ui.server import is_loopback
from waiting import until

_numbers = itertools.count()
ROWS = [{"k": key, "v": key} for key in range(6)]


class Shown:
    """A job with a page: two batches of a keyed count, then whatever the test does."""

    def __init__(self, **settings: Any) -> None:
        self.cluster: LocalCluster | None = None
        job = hf.Job(
            None,
            name="shown",
            storage=settings.pop("storage", "memory://shown"),
            parallelism=2,
            ui_port=0,
            checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
            **settings,
        )
        source = TestSource([ROWS, ROWS], "k BIGINT, v BIGINT", name="rows")
        counts = job.read(source).key_by("k").aggregate(n=hf.count(), name="counts")
        counts.write(hf.MemorySink(name="out"))
        self.query: Query = start(job, hf.processing_time("0s"), on_cluster=self._note)
        self.query.processAllAvailable()

    def _note(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def get(self, path: str, **headers: str) -> Any:
        assert self.query.uiUrl is not None
        request = urllib.request.Request(self.query.uiUrl.partition("?")[0] + path, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def document(self, name: str) -> Any:
        return json.loads(self.get(f"api/v1/{name}"))


def status_of(url: str | None, path: str = "", method: str = "GET", **headers: str) -> int:
    assert url is not None
    request = urllib.request.Request(url + path, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


@pytest.fixture
def shown(request: pytest.FixtureRequest) -> Iterator[Shown]:
    made = Shown(storage=f"memory://page-{next(_numbers)}")
    yield made
    made.query.stop()


def test_the_overview_has_the_graph_with_the_figures_of_the_query(shown: Shown) -> None:
    job, progress = shown.document("job"), shown.query.lastProgress
    assert progress is not None
    assert [(node["kind"], node["name"]) for node in job["nodes"]] == [
        ("source", "rows"),
        ("operator", "counts"),
        ("sink", "out"),
    ]
    assert [(edge["from"], edge["to"]) for edge in job["edges"]] == [
        ("source/rows", "operator/counts"),
        ("operator/counts", "sink/out"),
    ]
    assert job["rows"] == shown.query.totals.rows == 12
    assert job["batches"][-1]["batch"] == progress["batchId"]
    assert job["batches"][-1]["phases_ms"].keys() == {"push", "process", "pull", "commit"}
    assert job["nodes"][1]["state_rows"] == progress["stateOperators"][0]["numRowsTotal"] == 6
    assert job["nodes"][0]["rows_per_s"] == pytest.approx(job["rows_per_s"], rel=0.5) and job["rows_per_s"] > 0
    assert job["nodes"][2]["rows"] == sum(each["sink"]["numOutputRows"] for each in shown.query.recentProgress) == 12
    assert job["nodes"][2]["rows_per_s"] > 0
    assert job["last_restart"] is None
    assert job["message"] == shown.query.status["message"] == "Processing"


def test_the_overview_has_the_steps_of_edges_and_bad_rows_by_reason_with_the_place_of_the_dead_letters() -> None:
    job = hf.Job(
        None,
        name="bad",
        storage="memory://page-bad",
        ui_port=0,
        bad_records="dead_letter",
        dead_letters="memory://page-bad/letters",
    )
    rows = [{"k": 1}, {"k": None}, {"k": None}, {"k": 2}]
    kept = job.read(TestSource([rows, rows], "k BIGINT", name="rows")).map_batches(_as_it_is, "k BIGINT")
    kept.select("k").key_by("k").aggregate(n=hf.count(), name="counts").write(hf.MemorySink(name="out"))
    query = start(job, hf.processing_time("0s"))
    query.processAllAvailable()
    found = api.job(query.view())
    query.stop()
    assert found["edges"][0]["steps"] == ["map_batches(_as_it_is)", "select('k')"] and found["edges"][1]["steps"] == []
    assert found["dead_letters"] == "memory://page-bad/letters"
    (reason,) = found["bad_reasons"]
    assert (reason["source"], reason["operator"], reason["rows"], found["bad_rows"]) == ("rows", "counts", 4, 4)
    assert reason["reason"] == "null in a key column (k) of operator 'counts'"


def _as_it_is(batch: Any) -> Any:
    return batch


def test_the_state_is_shown_by_subtask_with_its_key_groups(shown: Shown) -> None:
    (operator,) = shown.document("state")["operators"]
    assert [each["key_groups"] for each in operator["subtasks"]] == [[0, 64], [64, 128]]
    assert sum(each["rows"] for each in operator["subtasks"]) == operator["rows"] == 6
    assert operator["skew"] == max(each["rows"] for each in operator["subtasks"]) / 3


def test_checkpoints_are_shown_with_their_parts_and_statistics(shown: Shown) -> None:
    number = shown.query.trigger_checkpoint(30)
    found = shown.document("checkpoints")
    last = found["latest"]["completed"]
    assert last["number"] == number == found["history"][-1]["number"]
    assert last["task_managers"][0]["answered"] and last["task_managers"][0]["subtasks"]
    assert found["summary"]["duration_s"]["p50"] <= found["summary"]["duration_s"]["max"]
    assert found["counts"]["completed"] == shown.query.totals.completed_checkpoints
    assert found["settings"]["trigger"].startswith("Manual")
    assert found["restored"] is None


def test_a_restart_is_shown_with_its_reason_and_the_events_that_led_to_it(shown: Shown) -> None:
    assert shown.cluster is not None
    shown.cluster.kill(0)
    until(lambda: bool(shown.query.restarts))
    found = shown.document("restarts")
    assert shown.document("job")["last_restart"]["reason"] == shown.query.restarts[-1]
    assert [each["reason"] for each in found["restarts"]] == shown.query.restarts
    until(lambda: "Deployed" in _after_the_loss(shown))
    assert "Tick" not in _names(shown)


def _names(shown: Shown) -> list[str]:
    """Events and commands of the execution machine, by name, in the order in which the page shows them."""
    return [each["name"] for each in shown.document("restarts")["events"] if each["loop"] == "execution"]


def _after_the_loss(shown: Shown) -> list[str]:
    names = _names(shown)
    return names[names.index("Lost") :]


def test_processes_are_shown_with_their_metrics(shown: Shown) -> None:
    (task_manager,) = (each for each in shown.document("processes")["processes"] if each["role"] == "TaskManager")
    assert task_manager["state_rows"] == 6 and task_manager["memory_bytes"] > 1_000_000


def test_the_page_is_one_file_that_loads_nothing_from_elsewhere(shown: Shown) -> None:
    page = shown.get("")
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert "fetch(`/api/v1/${name}`" in page, "shows the figures of the job"
    assert all(f'"{view}"' in page for view in ("job", "checkpoints", "state", "processes", "restarts"))
    assert "src=" not in page and "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_the_server_of_the_page_has_the_metrics_too(shown: Shown) -> None:
    assert 'holdfast_input_rows_total{job="shown"} 12.0' in shown.get("metrics")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("nothing", {}, 404), ("api/v1/nothing", {}, 404), ("api/v1/job", {"Host": "attacker.example"}, 403)],
)
def test_other_requests_are_refused(shown: Shown, path: str, headers: dict[str, str], status: int) -> None:
    assert status_of(shown.query.uiUrl, path, **headers) == status


def test_nothing_can_be_changed_from_outside(shown: Shown) -> None:
    assert status_of(shown.query.uiUrl, method="POST") == 405


def test_outside_of_loopback_a_token_is_asked_for() -> None:
    shown = Shown(storage="memory://token", ui_host="0.0.0.0")
    try:
        url = shown.query.uiUrl
        assert url is not None and "?token=" in url
        own = url.replace("0.0.0.0", "127.0.0.1")
        plain, _, token = own.partition("?token=")
        assert status_of(own) == 200
        assert status_of(plain) == 403
        assert status_of(plain, Authorization=f"Bearer {token}") == 200
    finally:
        shown.query.stop()


def test_the_page_goes_with_its_query(shown: Shown) -> None:
    url = shown.query.uiUrl
    shown.query.stop()
    assert url is not None
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job = hf.Job(None, name="taken", storage="memory://taken", ui_port=port)
        job.read(TestSource([ROWS], "k BIGINT, v BIGINT")).write(hf.NoopSink())
        with pytest.raises(JobRefused, match=f"ui_port={port}: nothing can listen there"):
            start(job, hf.processing_time())


@pytest.mark.parametrize("settings", [{"ui_port": 70000}, {"ui_port": "80"}, {"ui_host": None}])
def test_settings_of_the_page_that_are_none_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(settings))):
        hf.Job(None, name="none", storage="memory://none", **settings)


def test_percentiles_are_values_that_occurred() -> None:
    found = api.summary([float(value) for value in range(1, 1001)])
    assert found is not None
    assert (found["min"], found["p50"], found["p99_9"], found["max"]) == (1.0, 500.0, 999.0, 1000.0)
    assert api.summary([]) is None


def test_addresses_of_this_machine_alone_are_told_apart() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("10.0.0.1") and not is_loopback("driver.example")
