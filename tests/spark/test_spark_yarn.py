"""A job on a real YARN of two nodes: both deploy modes, and whatever ends there, with results compared row by row."""

import re

import pytest
from submitted_kit import STEADY
from yarn_kit import yarn

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

EXECUTORS = {"executor__cores": 3, "executor__instances": 2, "decommission__enabled": "true"}


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_job_survives_the_death_of_an_executor_in_both_modes(mode):
    with yarn() as cluster, cluster.submit(mode, STEADY, 60, 1, 0, "default", **EXECUTORS) as job:
        job.until_rows(2000)
        job.executors()[job.executor_of("TaskManager 0")].kill()
        assert job.result() == "EQUAL"
        assert job.restarts()


def test_the_death_of_the_driver_in_cluster_mode_is_the_start_of_another():
    with yarn() as cluster, cluster.submit("cluster", STEADY, 60, 1, 0, "default", **EXECUTORS) as job:
        job.until_rows(2000)
        [manager] = job.others()
        manager.kill()
        assert job.result() == "EQUAL"
        assert len(re.findall(r"steady INFO driver \d+", job.log)) == 2


@pytest.mark.parametrize(("senders", "files"), [(2, 200), (0, 60)])
def test_a_decommissioned_node_loses_its_state_to_the_other_and_nothing_is_repeated(senders, files):
    with yarn() as cluster, cluster.submit("client", STEADY, files, 1, 0, senders, **EXECUTORS) as job:
        job.until_rows(2000)
        leaving = job.executor_of("TaskManager 0")
        cluster.decommission(job.host_of(leaving), 60)
        job.until(lambda: "no state is on machines that are to go" in job.log, "the state has moved")
        assert "TaskManager 0 is to leave: executor" in job.log
        assert job.executor_of("TaskManager 1") != leaving
        assert job.restarts() == []
        assert job.result() == "EQUAL"


@pytest.mark.parametrize("has_manager", [True, False])
def test_a_node_is_decommissioned_with_and_without_the_application_master(has_manager):
    with yarn() as cluster, cluster.submit("client", STEADY, 150, 2, 0, "default", **EXECUTORS) as job:
        job.until_rows(2000)
        leaving = job.host_of_manager()
        if not has_manager:
            [leaving] = {job.host_of(each) for each in job.executors()} - {leaving}
        [executor] = [each for each in job.executors() if job.host_of(each) == leaving]
        cluster.decommission(leaving, 20)
        job.until(lambda: f"is to leave: executor {executor} " in job.log, "the notice is seen")
        job.until(lambda: executor not in job.executors(), "the node is gone")
        job.until_rows(job.rows() + 2000)
        assert job.result() == "EQUAL"


def test_dynamic_allocation_gives_a_job_its_slots_and_says_what_it_waits_for():
    settings = {"executor__cores": 1, "dynamicAllocation__enabled": "true", "dynamicAllocation__maxExecutors": 5}
    settings |= {"dynamicAllocation__shuffleTracking__enabled": "true"}
    with yarn() as cluster, cluster.submit("client", STEADY, 40, 2, 0, 1, **settings) as job:
        assert job.result() == "EQUAL"
        assert "spark.dynamicAllocation.minExecutors=0 is lower than the 4 executors" in job.log
        assert "1 senders stay" in job.log
