"""Standbys are of use where they run in other executors than those whose places they may have to take."""

from holdfast.execution.placement import weak_point


def test_an_executor_with_more_places_than_standbys_elsewhere_is_named():
    found = weak_point({0: "a/1", 1: "a/1", 2: "b/2"}, {3: "a/1", 4: "b/2"})
    assert found is not None
    assert found.startswith("executor a/1 holds TaskManager 0, 1, and 1 of 2 standbys run elsewhere: after its loss")


def test_nothing_is_said_where_enough_standbys_run_elsewhere_or_there_is_one_executor():
    assert weak_point({0: "a/1", 1: "b/2"}, {2: "a/1", 3: "b/2"}) is None
    assert weak_point({0: "a/1", 1: "a/1"}, {2: "a/1"}) is None
    assert weak_point({0: "a/1", 1: "b/2"}, {}) is None
