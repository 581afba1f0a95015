"""Advice on settings of cluster managers, from settings alone."""

import pytest

from holdfast.spark.advice import advice

DYNAMIC = {"spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "2"}


def lines(master: str, settings: dict[str, str]) -> list[str]:
    return advice(master, {"spark.decommission.enabled": "true", **settings}.get, 2, 3)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://there", "spark://there:7077"])
def test_a_spark_that_does_not_tell_which_machines_are_to_go_is_named(master: str) -> None:
    counted = {"spark.executor.maxNumFailures": "1000"}
    [line] = lines(master, counted | {"spark.decommission.enabled": "false"})
    assert "spark.decommission.enabled=true" in line
    assert lines(master, counted) == []
    assert lines("local[4]", {"spark.decommission.enabled": "false"}) == []


def test_yarn_counts_lost_executors_over_the_whole_life_unless_it_is_told_otherwise() -> None:
    [line] = lines("yarn", {})
    assert "spark.executor.failuresValidityInterval" in line
    assert lines("yarn", {"spark.executor.failuresValidityInterval": "1h"}) == []
    assert lines("yarn", {"spark.executor.maxNumFailures": "1000"}) == []
    assert lines("spark://master:7077", {}) == lines("local[4]", {}) == []


def test_the_drivers_attempts_are_counted_in_cluster_mode_alone() -> None:
    settings = {"spark.executor.maxNumFailures": "1000", "spark.submit.deployMode": "cluster"}
    [line] = lines("yarn", settings)
    assert "maxAppAttempts" in line
    assert lines("yarn", settings | {"spark.yarn.am.attemptFailuresValidityInterval": "1h"}) == []


@pytest.mark.parametrize(("least", "is_named"), [("0", True), ("2", True), ("3", False)])
def test_fewer_executors_than_the_job_fills_are_named_under_dynamic_allocation(least: str, is_named: bool) -> None:
    found = lines("spark://master:7077", DYNAMIC | {"spark.dynamicAllocation.minExecutors": least})
    assert bool(found) is is_named
    assert all(f"minExecutors={least} is lower than the 3 executors" in line for line in found)
