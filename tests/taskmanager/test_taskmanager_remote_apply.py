"""The tables that a standby materializes: when a base that no handle names counts as refused."""

from itertools import count
from threading import Event
from unittest.mock import Mock, patch

import pytest

from holdfast.clock import ManualClock
from holdfast.followers.subtask import FollowedTable
from holdfast.formats.handles import LogPiece, MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.ids import BatchNumber, Incarnation, ProcessId, Role
from holdfast.materialize.base import Base
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.taskmanager.remote_apply import OFFER_RECORDS, OFFER_S_MAX, RemoteApply


def test_a_base_is_made_again_once_enough_time_and_enough_records_have_passed_without_its_name() -> None:
    clock, policy = ManualClock(), MaterializationPolicy(log_handles_max=1, interval_s=3600.0)
    remote = RemoteApply(
        ProcessId(Role.TASK_MANAGER, 2, Incarnation(1)), Mock(), policy, clock, Event(), Mock(), Mock(), count(1)
    )
    handle = TableHandle("op", "state", 0, 4, b"", [], [LogPiece("log", 0, 10, 0, 1, 0, 4)])
    table = FollowedTable(LogId("op", "state", 0, 4), 0, Mock(**{"files.return_value": {}}), handle)
    part = MaterializedPart("shared", 0, 10, 0, 4)
    made: list[int] = []

    def stored(_: FollowedTable, batch: BatchNumber) -> Base:
        made.append(batch)
        return Base(1, batch, [part])

    with patch.object(remote, "_stored", stored):
        for batch in range(OFFER_RECORDS + 1):
            clock.advance(5 * OFFER_S_MAX)
            assert made == [0][:batch], "a record every five minutes"
            for _ in range(2):  # an order is repeated
                remote.materialize([table], BatchNumber(batch))
        assert made == [0, OFFER_RECORDS]
        for batch in range(10, 10 + 2 * OFFER_RECORDS):
            clock.advance(1.0)
            remote.materialize([table], BatchNumber(batch))
        assert made == [0, OFFER_RECORDS], "a record every second"
    remote.close()


@pytest.mark.parametrize(("handles_max", "pieces", "is_made"), [(3, 3, True), (8, 15, False), (8, 16, True)])
def test_the_number_of_pieces_is_a_reason_only_where_the_owner_does_not_merge_them(
    handles_max: int, pieces: int, is_made: bool
) -> None:
    policy = MaterializationPolicy(log_handles_max=handles_max, interval_s=3600.0)
    remote = RemoteApply(
        ProcessId(Role.TASK_MANAGER, 2, Incarnation(1)),
        Mock(),
        policy,
        ManualClock(),
        Event(),
        Mock(),
        Mock(),
        count(1),
    )
    log = [LogPiece("log", 10 * sqn, 10, sqn, sqn + 1, 0, 4) for sqn in range(pieces)]
    handle = TableHandle("op", "state", 0, 4, b"", [], log)
    table = FollowedTable(LogId("op", "state", 0, 4), 0, Mock(**{"files.return_value": {}}), handle)
    with patch.object(remote, "_stored", return_value=Base(1, BatchNumber(1))) as stored:
        remote.materialize([table], BatchNumber(1))
    assert stored.called == is_made
    remote.close()
