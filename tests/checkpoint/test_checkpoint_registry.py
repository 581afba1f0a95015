"""Objects are deleted when nothing names or holds them any more, and not before."""

import time

from holdfast.checkpoint.registry import RETRY_PAUSE_S, LogHolder, ObjectRegistry, PendingHolder, RecordHolder
from holdfast.ids import CheckpointId, Incarnation, JournalNumber

LOG = LogHolder(0, Incarnation(1))
OTHER_LOG = LogHolder(1, Incarnation(1))
RECORD = RecordHolder(JournalNumber(2))
PENDING = PendingHolder(CheckpointId(1))


def test_what_was_in_no_acknowledgement_is_never_deleted() -> None:
    registry = ObjectRegistry()
    registry.hold(LOG, ["a"])
    registry.release(LOG)
    registry.validate()
    assert registry.take(0) == []
    assert len(registry) == 0


def test_an_acknowledged_object_goes_when_record_and_log_let_go_in_either_order() -> None:
    for first, second in ((RECORD, LOG), (LOG, RECORD)):
        registry = ObjectRegistry()
        registry.hold(LOG, ["a"])
        registry.hold(RECORD, ["a"])
        registry.acknowledge(["a"])
        registry.release(first)
        assert registry.take(0) == []
        registry.release(second)
        assert registry.take(0) == ["a"]
        registry.validate()


def test_an_object_shared_by_two_logs_goes_when_both_let_go() -> None:
    registry = ObjectRegistry()
    registry.update_log(LOG, (1, 1), {"a"}, set())
    registry.update_log(OTHER_LOG, (1, 1), {"a"}, {"b"})
    registry.acknowledge(["a", "b"])
    registry.update_log(LOG, (2, 2), set(), set())
    assert registry.take(0) == []
    registry.update_log(OTHER_LOG, (2, 2), set(), {"b"})
    assert registry.take(0) == ["a"]
    assert registry.names(OTHER_LOG) == {"b"}


def test_what_is_handed_over_is_held_once_by_who_takes_it() -> None:
    registry = ObjectRegistry()
    registry.hold(PENDING, ["a", "b"])
    registry.hold(RECORD, ["b", "c"])
    registry.acknowledge(["a", "b", "c"])
    registry.hand_over(PENDING, RECORD)
    registry.validate()
    assert (registry.names(PENDING), registry.names(RECORD)) == (frozenset(), {"a", "b", "c"})
    registry.hold(LOG, ["b"])
    registry.release(RECORD)
    registry.validate()
    assert registry.take(0) == ["a", "c"]
    registry.release(LOG)
    assert registry.take(0) == ["b"]


def test_an_object_acknowledged_too_late_is_deleted_at_once() -> None:
    registry = ObjectRegistry()
    registry.acknowledge(["late"])
    assert registry.take(0) == ["late"]


def test_an_object_is_given_out_for_deletion_once_until_answered() -> None:
    registry = ObjectRegistry()
    registry.acknowledge(["a"])
    assert registry.take(0) == ["a"]
    registry.acknowledge(["a"])
    assert registry.take(0) == []
    assert registry.being_deleted(["a", "b"]) == ["a"]
    registry.deleted(["a"])
    registry.deleted(["a"])
    registry.validate()
    assert len(registry) == 0


def test_a_failed_delete_stays_queued() -> None:
    registry = ObjectRegistry()
    registry.acknowledge(["a"])
    registry.take(0)
    registry.delete_failed(["a", "unknown"], 10)
    assert registry.take(10) == []
    assert registry.take(10 + RETRY_PAUSE_S) == ["a"]


def test_a_name_that_is_needed_again_while_its_deletion_pauses_waits_for_its_last_holder() -> None:
    registry = ObjectRegistry()
    registry.acknowledge(["a", "b"])
    registry.take(0)
    registry.delete_failed(["a", "b"], 0)
    registry.hold(PENDING, ["a"])
    registry.validate()
    assert registry.take(RETRY_PAUSE_S) == ["b"]
    registry.release(PENDING)
    registry.validate()
    assert registry.take(RETRY_PAUSE_S) == ["a"]
    registry.delete_failed(["a"], RETRY_PAUSE_S)
    assert registry.take(RETRY_PAUSE_S + 1) == []
    assert registry.take(2 * RETRY_PAUSE_S) == ["a"]


def test_events_cost_the_same_however_many_deletions_have_failed() -> None:
    registry = ObjectRegistry()
    names = [f"object {number}" for number in range(200_000)]
    registry.acknowledge(names)
    registry.take(0)
    registry.delete_failed(names, 0)
    begun_s = time.monotonic()
    for number in range(2_000):
        registry.hold(LOG, [f"log {number}"])
        registry.acknowledge([f"log {number}"])
        assert registry.take(1) == []
    assert time.monotonic() - begun_s < 2.0, "a scan of all failed deletions at each of these takes 10 s"


def test_an_object_that_is_needed_again_before_its_deletion_was_ordered_stays() -> None:
    registry = ObjectRegistry()
    registry.acknowledge(["a"])
    registry.hold(PENDING, ["a"])
    registry.validate()
    assert registry.take(0) == []
    registry.release(PENDING)
    assert registry.take(0) == ["a"]
