"""TaskManagers of a driver in waiting follow the leader's logs, and continue from the state that they have."""

from dataclasses import replace

import pytest
from job_kit import WAIT_S_MAX
from test_job_waiting import Drivers, knows_the_leader

from holdfast import standby_query
from holdfast.errors import StorageError
from holdfast.jobmaster.starting import warm_following
from holdfast.jobmaster.starting.start import warm_processes
from holdfast.leadership import heartbeat
from holdfast.ports import Endpoint
from holdfast.taskmanager.standing_by import StandingBy
from waiting import until

KEYS = 200


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Drivers in this process have TaskManagers that wait, and everybody looks often."""

    def warm(start, job):
        return warm_processes(replace(start, endpoint=Endpoint("127.0.0.1")), job)

    monkeypatch.setattr(standby_query, "warm_processes", warm)
    monkeypatch.setattr(warm_following, "LOOK_S", 0.01)
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.05)


def work(drivers, query):
    drivers.feed.put([{"k": k, "v": 1} for k in range(KEYS)])
    query.processAllAvailable()


def newest(query):
    return query.checkpoints[-1].number


def has_followed(waiting, leader):
    return waiting.status["standby"]["followed"] == newest(leader)


def test_a_takeover_reads_nothing_that_was_followed():
    with Drivers() as drivers:
        leader = drivers.start()
        assert leader.await_lead(WAIT_S_MAX)
        work(drivers, leader)
        waiting = drivers.start(on_leader_stop="promote")
        until(lambda: knows_the_leader(waiting))
        for _ in range(3):
            work(drivers, leader)
            leader.trigger_checkpoint(WAIT_S_MAX)
        until(lambda: has_followed(waiting, leader))
        assert waiting.status["standby"]["requests"]["storeGets"] > 0
        leader.stop()
        assert waiting.await_lead(WAIT_S_MAX)
        work(drivers, waiting)
        [process] = [each for each in waiting.view().processes if each.role == "TaskManager"]
        assert process.metrics["recoveryBytesFromStore"] == 0
        assert drivers.totals() == dict.fromkeys(range(KEYS), 5)


def test_a_takeover_restores_where_no_follower_has_come_to(monkeypatch):
    asked = []

    def follow(self, order):
        asked.append(order)
        raise StorageError("the store does not answer")

    with Drivers() as drivers:
        leader = drivers.start()
        assert leader.await_lead(WAIT_S_MAX)
        work(drivers, leader)
        monkeypatch.setattr(StandingBy, "follow", follow)
        waiting = drivers.start(on_leader_stop="promote")
        until(lambda: len(asked) > 2)
        assert waiting.status["standby"]["followed"] is None
        leader.trigger_checkpoint(WAIT_S_MAX)
        leader.stop()
        assert waiting.await_lead(WAIT_S_MAX)
        work(drivers, waiting)
        assert drivers.totals() == dict.fromkeys(range(KEYS), 2)
