"""Rules of the coordinator that the scenarios do not show: times, limits, and refusals."""

import pytest
from checkpoint_text import CheckpointsScenario

from holdfast.checkpoint import events as ev
from holdfast.errors import HoldfastError
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, JournalNumber, RunNumber


def scenario(config: str, *steps: str) -> CheckpointsScenario:
    running = CheckpointsScenario()
    for step in (f"config {config}", "start", *steps):
        running.step(step)
    return running


def test_the_minimum_pause_counts_from_the_end_of_a_checkpoint() -> None:
    running = scenario("trigger=every:1s min_pause=3", "deploy run=1", "commit 1", "tick 1", "written 1 number=2")
    running.step("commit 2")
    assert running.step("tick 2") == []
    assert running.step("tick 1")[0] == "Cut 2 batch=2 run=1 to nobody"


def test_a_request_does_not_wait_for_the_minimum_pause() -> None:
    running = scenario("min_pause=99", "deploy run=1 0:1", "commit 1", "request a", "ack 1 tm=0:1 batch=1")
    running.step("written 1 number=2")
    running.step("commit 2")
    assert running.step("request b") == ["Cut 2 batch=2 run=1 to 0:1"]


def test_no_more_than_max_concurrent_are_pending_and_a_due_trigger_stays_due() -> None:
    running = scenario("trigger=every:1s max_concurrent=2", "deploy run=1 0:1", "commit 1", "tick 1", "commit 2")
    assert running.step("tick 1") == ["Cut 2 batch=2 run=1 to 0:1"]
    running.step("commit 3")
    assert running.step("tick 1") == []
    assert running.step("decline 1 tm=0:1 soft")[-1] == "Cut 3 batch=3 run=1 to 0:1"


def test_one_that_is_due_soon_is_cut_at_a_commit_and_the_next_one_at_its_own_time() -> None:
    running = scenario("trigger=every:1s max_concurrent=2", "deploy run=1 0:1", "tick 0.84")
    assert running.step("commit 1") == []
    assert running.step("tick 0.02") == []
    assert running.step("commit 2") == ["Cut 1 batch=2 run=1 to 0:1"]
    running.step("commit 3")
    assert running.step("tick 0.05") == []
    assert running.step("tick 1.1") == ["Cut 2 batch=3 run=1 to 0:1"]


def test_by_default_the_first_batch_with_rows_is_cut_at_once_and_a_named_trigger_waits_for_its_time() -> None:
    running = scenario("trigger=default", "deploy run=1 0:1")
    assert running.step("commit 1 idle") == []
    assert running.step("commit 2") == ["Cut 1 batch=2 run=1 to 0:1"]
    running.step("ack 1 tm=0:1 batch=2")
    running.step("written 1 number=2")
    assert running.step("commit 3") == []
    assert running.step("tick 10") == ["Cut 2 batch=3 run=1 to 0:1"]
    named = scenario("trigger=every:10s", "deploy run=1 0:1")
    assert named.step("commit 1") == []


def test_how_soon_is_a_part_of_the_interval_and_at_most_of_a_second() -> None:
    running = scenario("trigger=every:500ms", "deploy run=1 0:1", "tick 0.42")
    assert running.step("commit 1") == []
    running = scenario("trigger=every:60s", "deploy run=1 0:1", "tick 59.8")
    assert running.step("commit 1") == []
    running.step("tick 0.1")
    assert running.step("commit 2") == ["Cut 1 batch=2 run=1 to 0:1"]


def test_without_progress_there_is_no_cut_until_there_is_some() -> None:
    running = scenario("trigger=every:1s", "deploy run=1", "commit 1 idle")
    assert running.step("tick 5") == []
    assert running.step("commit 2")[0] == "Cut 1 batch=2 run=1 to nobody"


def test_staged_output_is_progress_even_if_no_source_moved() -> None:
    running = scenario("trigger=every:1s", "deploy run=1", "tick 1")
    assert running.step("commit 1 idle out=x")[0] == "Cut 1 batch=1 run=1 to nobody"


def test_from_the_announcement_of_a_commit_until_it_is_done_there_is_no_cut() -> None:
    running = scenario("trigger=every:1s", "deploy run=1 0:1", "commit 1", "commit-begins")
    assert running.step("tick 5") == []
    assert running.step("request a") == []
    assert running.step("commit 2") == ["Cut 1 batch=2 run=1 to 0:1"]


def test_an_acknowledgement_of_another_cut_does_not_count() -> None:
    running = scenario("trigger=every:1s", "deploy run=1 0:1", "commit 1", "tick 1")
    assert running.step("ack 1 tm=0:1 batch=9") == []
    assert running.step("decline 1 tm=0:7") == []


def test_settings_change_while_the_job_runs() -> None:
    running = scenario("trigger=manual", "deploy run=1 0:1", "commit 1", "tick 5")
    assert running.step("config trigger=every:1s timeout=2") == ["Cut 1 batch=1 run=1 to 0:1"]
    assert running.step("tick 2")[0].startswith("NotifyAborted 1 (counted): timed out after 2")


def test_no_checkpoint_within_the_tolerable_time_is_a_failover_even_if_softly_declined() -> None:
    running = scenario("trigger=every:1s tolerable_failure_timeout=10", "deploy run=1 0:1", "commit 1", "tick 1")
    assert running.step("decline 1 tm=0:1 soft")[0].startswith("NotifyAborted 1 (not counted)")
    running.step("tick 9")
    running.step("decline 2 tm=0:1 soft")
    assert running.step("tick 1")[0].startswith("Failover: no checkpoint completed for 10 s")


def test_a_failover_is_ordered_once() -> None:
    running = scenario("trigger=every:1s", "deploy run=1 0:1", "commit 1", "tick 1")
    assert running.step("decline 1 tm=0:1")[-1].startswith("Failover: 1 checkpoints failed in a row")
    assert running.step("tick 10") == []


def test_a_failover_begun_while_one_is_under_way_names_the_base_again() -> None:
    running = scenario("trigger=every:1s", "failover a", "failover b")
    assert running.step("failover c") == ["RestoreFrom None"]


def test_a_batch_reported_twice_is_recorded_once() -> None:
    running = scenario("trigger=every:1s", "deploy run=1", "commit 1 out=x", "commit 1 out=x")
    assert running.step("tick 1")[-1] == "StoreAndRecord 1 batch=1 run=1 new out=x"


def test_a_part_that_names_objects_being_deleted_does_not_complete_a_checkpoint() -> None:
    running = scenario("trigger=every:1s tolerable_failed_checkpoints=9", "deploy run=1 0:1", "found gone")
    running.step("commit 1")
    running.step("tick 1")
    answers = running.step("ack 1 tm=0:1 batch=1 objects=gone")
    assert answers[0].startswith("NotifyAborted 1 (counted): TaskManager 0 refers to objects it had let go of")


def test_deploying_before_the_base_is_known_is_refused() -> None:
    running = scenario("trigger=every:1s", "deploy run=1", "commit 1", "tick 1", "failover lost")
    with pytest.raises(HoldfastError, match="wait for RestoreFrom"):
        running.step("deploy run=2")


def test_a_record_without_the_objects_of_its_committables_is_refused() -> None:
    running = scenario("trigger=every:1s", "deploy run=1", "commit 1 out=x", "tick 1")
    with pytest.raises(HoldfastError, match=r"committables of \['out'\].*expected"):
        running.step("written 1 number=2")


def test_every_event_may_come_unasked() -> None:
    running = scenario("trigger=every:1s", "deploy run=1 0:1")
    checkpoint_id, number = CheckpointId(9), JournalNumber(9)
    unasked: list[ev.Event] = [
        ev.Declined(checkpoint_id, 5, Incarnation(7), "?"),
        ev.Acknowledged(checkpoint_id, 5, Incarnation(7), BatchNumber(3), "m", frozenset(), frozenset({"theirs"})),
        ev.RecordWritten(checkpoint_id, number, {}),
        ev.RecordFailed(checkpoint_id, "?", frozenset(["kept"])),
        ev.RecordsExpired(frozenset([number])),
        ev.ExpireFailed(frozenset([number])),
        ev.Published("out", number),
        ev.PublicationFailed("out", number, "?", io=False),
        ev.Discarded("out", number),
        ev.DiscardFailed("out", number),
        ev.ObjectsDeleted(frozenset(["theirs"])),
        ev.DeleteFailed(frozenset(["theirs"])),
        ev.TaskManagersChanged(RunNumber(1), {0: Incarnation(1)}),
    ]
    assert running.coordinator is not None
    for event in unasked:
        assert running.coordinator.handle(event) == []
        running.coordinator.validate()
