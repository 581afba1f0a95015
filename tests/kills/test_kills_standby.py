"""A driver in waiting takes over from a leader that is killed with its executors, or stands still; output is exact.

In `make test`, `examples/test_examples_flights` shows a driver in waiting that takes over from a killed driver.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kills_ends import FENCED
from kills_pipelines import Shape, check
from kills_processes import DriverProcess

from odd_s3_kit import OddS3, odd_s3
from waiting import until

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(600)]

SHAPE = Shape(rows=4_000, rows_per_batch=40, interval_s=0.2)
LASTING = SHAPE.with_rows(12_000)
"""Has rows left when a driver has started, and another has taken over."""
TWO_SINKS = Shape(sink="delta-kafka", rows=12_000, rows_per_batch=40, interval_s=0.2)
ANOTHER_CLUSTER = "local-cluster[1,4,1024]"
FAULT_SHARE = 0.05
"""Share of the requests to S3 that fail, half of them after they have done their work."""
WAIT_S_MAX = 240.0


@pytest.fixture
def s3() -> Iterator[OddS3]:
    """A bucket whose requests fail now and then, also those of drivers that are started as programs."""
    proxies = {name: os.environ.pop(name) for name in list(os.environ) if name.lower() in ("http_proxy", "https_proxy")}
    with odd_s3() as store:
        store.faults, store.fault_share = random.Random(1), FAULT_SHARE
        yield store
    os.environ.update(proxies)


def started(folder: Path, name: str, shape: Shape, master: str = "local[3]", **told: Any) -> DriverProcess:
    return DriverProcess(folder, {folder / "job": shape}, name=name, master=master, **told)


def on(s3: OddS3) -> dict[str, Any]:
    return {"settings": {"storage": "s3://bucket/job", "storage_options": s3.options}}


def await_word(driver: DriverProcess, word: str) -> None:
    until(lambda: driver.ended or driver.says(word), driver.text, WAIT_S_MAX)
    assert driver.says(word), driver.text()


def test_a_driver_in_waiting_goes_on_after_the_kill_of_the_leader_and_all_its_processes(tmp_path):
    with started(tmp_path, "leader", SHAPE, stays=True) as leader:
        await_word(leader, "started 0")
        with started(tmp_path, "waiting", SHAPE, standby=True) as waiting:
            await_word(waiting, "ready")
            leader.clear()
            waiting.finish()
            assert waiting.says("leads")
    check(SHAPE, tmp_path / "job")


def test_a_leader_that_stood_still_during_the_takeover_is_fenced_when_it_goes_on(tmp_path):
    with started(tmp_path, "leader", LASTING, stays=True) as leader:
        await_word(leader, "started 0")
        with started(tmp_path, "waiting", LASTING, standby=True) as waiting:
            await_word(waiting, "ready")
            leader.suspend()
            await_word(waiting, "leads")
            leader.resume()
            assert leader.wait() == FENCED, leader.text()
            waiting.finish()
    check(LASTING, tmp_path / "job")


def test_a_driver_of_another_cluster_takes_over_on_s3_with_faults_and_delta_and_kafka_are_exact(tmp_path, s3):
    with started(tmp_path, "leader", TWO_SINKS, stays=True, **on(s3)) as leader:
        await_word(leader, "started 0")
        with started(tmp_path, "waiting", TWO_SINKS, ANOTHER_CLUSTER, standby=True, **on(s3)) as waiting:
            await_word(waiting, "ready, with record")
            leader.clear()
            waiting.finish()
            assert waiting.says("leads")
    check(TWO_SINKS, tmp_path / "job")


def test_a_suspended_leader_on_s3_with_faults_is_fenced_and_delta_and_kafka_are_exact(tmp_path, s3):
    with started(tmp_path, "leader", TWO_SINKS, stays=True, **on(s3)) as leader:
        await_word(leader, "started 0")
        with started(tmp_path, "waiting", TWO_SINKS, standby=True, **on(s3)) as waiting:
            await_word(waiting, "ready, with record")
            leader.suspend()
            await_word(waiting, "leads")
            leader.resume()
            assert leader.wait() == FENCED, leader.text()
            waiting.finish()
    check(TWO_SINKS, tmp_path / "job")
