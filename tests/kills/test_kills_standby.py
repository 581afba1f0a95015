"""A driver in waiting takes over from a leader that is killed with its executors, or stands still; output is exact.

In `make test`, `examples/test_examples_flights` shows a driver in waiting that takes over from a killed driver.
"""

from pathlib import Path

import pytest
from kills_ends import FENCED
from kills_pipelines import Shape, check
from kills_processes import DriverProcess

from waiting import until

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(600)]

SHAPE = Shape(rows=4_000, rows_per_batch=40, interval_s=0.2)
LASTING = SHAPE.with_rows(12_000)
"""Has rows left when a driver has started, and another has taken over."""
WAIT_S_MAX = 240.0


def started(folder: Path, name: str, shape: Shape, **told: bool) -> DriverProcess:
    return DriverProcess(folder, {folder / "job": shape}, name=name, master="local[3]", **told)


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
