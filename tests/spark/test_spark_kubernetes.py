"""A job on Spark's own backend for Kubernetes, with an API server and a kubelet of the tests: pods that are killed and
evicted, and a driver in a pod, which executors find by the name of its service. Results are compared row by row.
"""

import pytest
from kubernetes_kit import has_own_hosts, kubernetes
from submitted_kit import STEADY

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

EXECUTORS = {"executor__cores": 3, "executor__instances": 2}


def test_a_job_survives_a_pod_that_is_killed_and_goes_on_in_another():
    with kubernetes() as cluster, cluster.submit("client", STEADY, 60, 1, 0, "default", **EXECUTORS) as job:
        job.until_rows(2000)
        killed = job.executor_of("TaskManager 0")
        job.executors()[killed].kill()
        assert job.result() == "EQUAL"
        assert job.restarts()
        assert len(list(job.pods.iterdir())) == 3


def test_the_state_of_an_evicted_pod_moves_to_another_and_nothing_is_repeated():
    settings = EXECUTORS | {"decommission__enabled": "true"}
    with kubernetes() as cluster, cluster.submit("client", STEADY, 100, 1, 0, 2, **settings) as job:
        job.until_rows(2000)
        evicted = job.executor_of("TaskManager 0")
        cluster.evict(evicted)
        job.until(lambda: "no state is on machines that are to go" in job.log, "the state has moved")
        assert job.executor_of("TaskManager 1") != evicted
        assert job.restarts() == []
        assert job.result() == "EQUAL"


@pytest.mark.skipif(not has_own_hosts(), reason="this machine lets no process have an /etc/hosts of its own")
def test_a_driver_in_a_pod_is_found_by_its_services_name_and_started_again_after_its_pod_was_killed():
    settings = EXECUTORS | {"kubernetes__executor__useDriverPodIP": "false"}
    with kubernetes(own_hosts=True) as cluster:
        with cluster.submit("cluster", STEADY, 60, 1, 0, "default", **settings) as job:
            job.until_rows(2000)
            assert all("-driver-svc.default.svc:" in " ".join(each.cmdline()) for each in job.executors().values())
            job.executors()[job.executor_of("TaskManager 0")].kill()
            job.until(job.restarts, "the job goes on")
            folder = job.folder
        with cluster.submit("cluster", STEADY, 60, 1, 0, "default", work=folder, **settings) as job:
            assert job.result() == "EQUAL"
            assert len({line for line in job.log.splitlines() if "steady INFO driver" in line}) == 2
