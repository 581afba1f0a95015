"""The rules of senders that stay: which sender gets which units, and which report counts."""

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
from execution_units_history import run_history, sender

from holdfast.execution.unit_events import (
    AcceptOutcome,
    AnswerBroke,
    AnswerEnded,
    AskForSplit,
    CancelOrder,
    Command,
    Give,
    GiveUp,
    LevelBegun,
    LevelDone,
    LevelFailed,
    LevelLeft,
    RunInSpark,
    SenderEnded,
    SenderLeaves,
    SenderServes,
    SendersWanted,
    SplitTold,
    StartSenders,
    UnitFailed,
    UnitReported,
    UnitsTick,
)
from holdfast.execution.units import CANCEL_S_MAX, STARTS_MAX, UNIT_LOSSES_MAX, Units


def serving(count: int) -> Units:
    units = Units(count)
    for number in range(count):
        assert units.handle(SenderServes(sender(number))) == []
    return units


def given(commands: list[Command]) -> list[Give]:
    return [command for command in commands if isinstance(command, Give)]


def test_units_are_divided_among_all_senders_and_the_level_is_done_with_the_last_report():
    units = serving(2)
    assert units.handle(LevelBegun((0, 1, 2))) == [Give(sender(0), 1, (0, 2)), Give(sender(1), 2, (1,))]
    assert units.handle(UnitReported(sender(0), 1, 0)) == [AcceptOutcome(0)]
    assert units.handle(UnitReported(sender(1), 2, 1)) == [AcceptOutcome(1)]
    assert units.handle(UnitReported(sender(0), 1, 2)) == [AcceptOutcome(2), LevelDone()]


def test_a_sender_takes_the_next_level_while_its_last_answer_is_still_ending():
    units = serving(1)
    units.handle(LevelBegun((0,)))
    units.handle(UnitReported(sender(0), 1, 0))
    assert units.handle(LevelLeft(0.0)) == []
    assert units.handle(LevelBegun((0,))) == [Give(sender(0), 2, (0,))]
    assert units.handle(AnswerEnded(sender(0), 1)) == []
    assert units.handle(UnitReported(sender(0), 2, 0)) == [AcceptOutcome(0), LevelDone()]


def test_units_wait_for_a_sender_that_is_being_started():
    units = Units(1)
    assert units.handle(LevelBegun((0, 1))) == []
    assert units.handle(SenderServes(sender(0))) == [Give(sender(0), 1, (0, 1))]


def test_the_death_of_a_sender_gives_what_it_had_not_reported_to_another_one_under_a_new_attempt():
    units = serving(2)
    units.handle(LevelBegun((0, 1, 2, 3)))
    units.handle(UnitReported(sender(0), 1, 0))
    units.handle(UnitReported(sender(1), 2, 1))
    units.handle(UnitReported(sender(1), 2, 3))
    assert units.handle(SenderEnded(sender(0), "killed")) == [Give(sender(1), 3, (2,))]
    assert units.handle(UnitReported(sender(1), 3, 2)) == [AcceptOutcome(2), LevelDone()]


def test_a_sender_that_was_given_up_and_wakes_changes_nothing():
    units = serving(2)
    units.handle(LevelBegun((0, 1)))
    units.handle(SenderEnded(sender(0), "silent"))
    units.handle(UnitReported(sender(1), 2, 1))
    assert units.handle(UnitReported(sender(0), 1, 0)) == []
    assert units.handle(AnswerEnded(sender(0), 1)) == []
    assert units.handle(UnitReported(sender(1), 3, 0)) == [AcceptOutcome(0), LevelDone()]


def test_a_report_that_comes_twice_counts_once():
    units = serving(1)
    units.handle(LevelBegun((0, 1)))
    assert units.handle(UnitReported(sender(0), 1, 0)) == [AcceptOutcome(0)]
    assert units.handle(UnitReported(sender(0), 1, 0)) == []


def test_a_report_about_an_earlier_level_counts_for_no_later_one():
    units = serving(1)
    units.handle(LevelBegun((0,)))
    assert units.handle(LevelLeft(0.0)) == [CancelOrder(sender(0), 1)]
    assert units.handle(LevelBegun((0,))) == [], "the sender works on the cancelled order"
    assert units.handle(UnitReported(sender(0), 1, 0)) == []
    assert units.handle(AnswerEnded(sender(0), 1)) == [Give(sender(0), 2, (0,))]


def test_a_sender_that_goes_on_with_what_was_cancelled_is_given_up_after_a_while():
    units = serving(1)
    units.handle(LevelBegun((0,)))
    units.handle(LevelLeft(10.0))
    units.handle(LevelBegun((0,)))
    assert units.handle(UnitsTick(10.0 + CANCEL_S_MAX)) == []
    [given_up] = units.handle(UnitsTick(10.1 + CANCEL_S_MAX))
    assert isinstance(given_up, GiveUp)
    assert units.handle(SenderEnded(sender(0), "killed")) == []
    assert units.handle(SenderServes(sender(0, 2))) == [Give(sender(0, 2), 2, (0,))]


def test_an_answer_that_breaks_off_costs_the_sender_its_place():
    units = serving(2)
    units.handle(LevelBegun((0,)))
    assert units.handle(AnswerBroke(sender(0), 1, "reset")) == [
        GiveUp(sender(0), "reset"),
        Give(sender(1), 2, (0,)),
    ]


def test_an_answer_that_ends_with_units_unreported_counts_as_broken():
    units = serving(1)
    units.handle(LevelBegun((0,)))
    [given_up] = units.handle(AnswerEnded(sender(0), 1))
    assert given_up == GiveUp(sender(0), "it did not report unit 0")


def test_a_unit_that_ends_one_sender_after_the_other_fails_the_level_and_spares_those_behind_it():
    units = Units(1)
    units.handle(LevelBegun((0, 1)))
    for attempt in range(1, UNIT_LOSSES_MAX + 1):
        process = sender(0, attempt)
        assert given(units.handle(SenderServes(process))) == [Give(process, attempt, (0, 1))]
        commands = units.handle(SenderEnded(process, "killed"))
        failed = [command.reason for command in commands if isinstance(command, LevelFailed)]
        assert bool(failed) == (attempt == UNIT_LOSSES_MAX)
    assert failed == [f"unit 0 was being worked on by {UNIT_LOSSES_MAX} senders that ended; last: killed"]


def isolating(count: int, units: tuple[int, ...], unit_s_max: float = 10.0) -> Units:
    rules = serving(count)
    rules.handle(LevelBegun(units, frozenset(units), unit_s_max=unit_s_max))
    return rules


def test_in_a_level_that_isolates_the_unit_of_a_lost_sender_fails_and_those_behind_it_go_to_another():
    units = isolating(2, (0, 1, 2, 3))
    assert units.handle(SenderEnded(sender(0), "killed")) == [UnitFailed(sender(0), 0, "killed")]
    assert given(units.handle(UnitReported(sender(1), 2, 1))) == [Give(sender(1), 3, (2,))]
    assert given(units.handle(UnitReported(sender(1), 3, 2))) == [Give(sender(1), 4, (3,))]
    assert units.handle(UnitReported(sender(1), 4, 3)) == [AcceptOutcome(3), LevelDone()]


def test_a_unit_that_ends_its_sender_at_once_is_never_given_behind_an_isolated_one_whose_report_may_be_lost():
    units = serving(2)
    begun = units.handle(LevelBegun((0, 1, 2, 3, 4, 5), isolated=frozenset({1, 3, 5})))
    assert begun == [Give(sender(0), 1, (0, 2, 4)), Give(sender(1), 2, (1,))]
    assert given(units.handle(UnitReported(sender(1), 2, 1))) == [Give(sender(1), 3, (3,))]
    assert units.handle(SenderEnded(sender(1), "killed")) == [UnitFailed(sender(1), 3, "killed")]
    for unit in (0, 2):
        assert units.handle(UnitReported(sender(0), 1, unit)) == [AcceptOutcome(unit)]
    assert units.handle(UnitReported(sender(0), 1, 4)) == [AcceptOutcome(4), Give(sender(0), 4, (5,))]
    assert units.handle(UnitReported(sender(0), 4, 5)) == [AcceptOutcome(5), LevelDone()]


def test_beside_isolated_units_a_unit_of_a_lost_sender_that_is_not_isolated_is_given_to_another():
    units = serving(2)
    units.handle(LevelBegun((0, 1), isolated=frozenset({1})))
    assert units.handle(SenderEnded(sender(0), "killed")) == []
    assert given(units.handle(UnitReported(sender(1), 2, 1))) == [Give(sender(1), 3, (0,))]


def test_a_unit_that_takes_too_long_and_is_not_isolated_is_given_to_another_sender():
    units = serving(2)
    units.handle(LevelBegun((0, 1), unit_s_max=10.0))
    for now_s in (1.0, 12.0):
        asked = units.handle(UnitsTick(now_s))
    assert asked == [AskForSplit(sender(0), 1, 0), AskForSplit(sender(1), 2, 1)]
    units.handle(UnitReported(sender(1), 2, 1, is_last=True))
    given_up, again = units.handle(SplitTold(sender(0), 1, 0, "3"))
    assert isinstance(given_up, GiveUp) and again == Give(sender(1), 3, (0,))


def test_the_loss_of_the_only_unit_ends_a_level_that_isolates():
    units = isolating(1, (0,))
    assert units.handle(SenderEnded(sender(0), "killed")) == [UnitFailed(sender(0), 0, "killed"), LevelDone()]


def test_a_sender_that_takes_too_long_for_a_unit_is_asked_for_its_split_and_ended():
    units = isolating(1, (0, 1))
    assert units.handle(UnitsTick(5.0)) == units.handle(UnitsTick(15.0)) == []
    assert units.handle(UnitsTick(15.1)) == [AskForSplit(sender(0), 1, 0)]
    assert units.handle(UnitsTick(16.0)) == [], "it is asked once"
    failed, given_up = units.handle(SplitTold(sender(0), 1, 0, "7"))
    assert isinstance(failed, UnitFailed) and (failed.unit, failed.split) == (0, "7")
    assert isinstance(given_up, GiveUp)
    assert units.handle(SenderServes(sender(0, 2))) == [Give(sender(0, 2), 2, (1,))]


def test_the_time_of_a_unit_begins_with_the_report_of_the_one_before_it():
    units = isolating(1, (0, 1))
    units.handle(UnitsTick(0.0))
    units.handle(UnitReported(sender(0), 1, 0))
    assert units.handle(UnitsTick(10.1)) == []
    assert units.handle(UnitsTick(20.2)) == [AskForSplit(sender(0), 2, 1)]


def test_a_unit_that_is_reported_after_all_keeps_its_sender():
    units = isolating(1, (0, 1))
    units.handle(UnitsTick(0.0))
    units.handle(UnitsTick(11.0))
    units.handle(UnitReported(sender(0), 1, 0))
    assert units.handle(SplitTold(sender(0), 1, 0, "7")) == []
    assert units.handle(UnitReported(sender(0), 2, 1)) == [AcceptOutcome(1), LevelDone()]


def test_a_sender_whose_slot_is_needed_fails_no_unit():
    units = isolating(2, (0, 1))
    assert not [each for each in units.handle(SendersWanted(1)) if isinstance(each, UnitFailed)]
    units.handle(UnitReported(sender(0), 1, 0))
    assert given(units.handle(AnswerEnded(sender(0), 1))) == []
    assert units.handle(UnitReported(sender(0), 3, 1)) == [AcceptOutcome(1), LevelDone()]


def test_where_no_sender_can_be_started_units_go_as_a_short_spark_job():
    units = Units(1)
    units.handle(LevelBegun((0, 1)))
    for incarnation in range(1, STARTS_MAX):
        assert units.handle(SenderEnded(sender(0, incarnation), "no port")) == []
    last = units.handle(SenderEnded(sender(0, STARTS_MAX), "no port"))
    assert last == [StartSenders(frozenset()), RunInSpark((0, 1)), LevelDone()]
    units.handle(LevelLeft(0.0))
    assert units.handle(LevelBegun((5,))) == [RunInSpark((5,)), LevelDone()]


def test_a_sender_whose_slot_is_needed_leaves_its_units_to_the_others():
    units = serving(2)
    units.handle(LevelBegun((0, 1)))
    commands = units.handle(SendersWanted(1))
    assert commands[0] == StartSenders(frozenset({0}))
    assert [command.sender for command in commands if isinstance(command, GiveUp)] == [sender(1)]
    units.handle(UnitReported(sender(0), 1, 0))
    units.handle(SenderEnded(sender(1), "ended"))
    units.handle(AnswerEnded(sender(0), 1))
    assert units.handle(UnitReported(sender(0), 3, 1)) == [AcceptOutcome(1), LevelDone()]
    assert units.handle(SendersWanted(2)) == [StartSenders(frozenset({0, 1}))]


def test_senders_that_cannot_be_started_end_none_that_serves():
    units = serving(1)
    units.handle(SendersWanted(3))
    for incarnation in range(1, STARTS_MAX):
        assert units.handle(SenderEnded(sender(1, incarnation), "no port")) == []
    assert units.handle(SenderEnded(sender(2, STARTS_MAX), "no port")) == [StartSenders(frozenset({0}))]
    assert units.handle(SendersWanted(3)) == [], "no more are started"
    assert given(units.handle(LevelBegun((0, 1)))) == [Give(sender(0), 1, (0, 1))]
    assert units.handle(SendersWanted(0))[0] == StartSenders(frozenset())


def test_where_fewer_senders_fit_those_that_serve_stay():
    units = serving(4)
    for number in (0, 1):
        units.handle(SenderEnded(sender(number), "its executor was lost"))
    units.handle(SenderLeaves(sender(2), "its executor is to go"))
    assert units.handle(SendersWanted(2)) == [StartSenders(frozenset({0, 3}))]
    assert given(units.handle(LevelBegun((0, 1)))) == [Give(sender(3), 1, (0, 1))]
    assert units.handle(SendersWanted(3)) == [StartSenders(frozenset({0, 1, 3}))]


def test_a_leaving_sender_that_is_not_wanted_any_more_finishes_its_order():
    units = serving(1)
    units.handle(LevelBegun((0, 1)))
    units.handle(SenderLeaves(sender(0), "its executor is to go"))
    assert units.handle(SendersWanted(0)) == [StartSenders(frozenset())]
    assert units.handle(UnitReported(sender(0), 1, 0)) == [AcceptOutcome(0)]
    last = units.handle(UnitReported(sender(0), 1, 1, is_last=True))
    assert last == [AcceptOutcome(1), LevelDone(), GiveUp(sender(0), "its executor is to go")]


def test_a_leaving_sender_that_is_not_wanted_any_more_is_not_waited_for():
    units = serving(2)
    units.handle(LevelBegun((0, 1)))
    units.handle(SenderLeaves(sender(0), "its executor is to go"))
    assert units.handle(SendersWanted(1)) == [StartSenders(frozenset({1}))]
    units.handle(UnitReported(sender(0), 1, 0))
    assert units.handle(AnswerEnded(sender(0), 1)) == [GiveUp(sender(0), "its executor is to go")]
    assert units.handle(SenderEnded(sender(1), "killed")) == [], "the only sender that is wanted starts again"
    assert units.handle(SenderServes(sender(1, 3))) == [Give(sender(1, 3), 3, (1,))]


def test_starts_that_are_ended_since_their_slots_are_needed_do_not_count_as_failed():
    units = Units(STARTS_MAX)
    units.handle(SendersWanted(0))
    for number in range(STARTS_MAX):
        assert units.handle(SenderEnded(sender(number), "fewer senders are to stay")) == []
    assert units.handle(SendersWanted(1)) == [StartSenders(frozenset({0}))]


def test_a_sender_that_serves_only_after_fewer_were_wanted_gives_up_its_slot():
    units = Units(2)
    units.handle(SendersWanted(1))
    assert units.handle(SenderServes(sender(1))) == [GiveUp(sender(1), "fewer senders are to stay")]
    assert units.handle(LevelBegun((0,))) == []
    assert units.handle(SenderEnded(sender(1), "ended")) == []
    assert units.handle(SenderServes(sender(0))) == [Give(sender(0), 1, (0,))]


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_every_unit_counts_once_by_the_sender_that_holds_it(seed):
    run_history(seed)


def _believes_who_is_gone() -> AbstractContextManager[Any]:
    def order(self: Units, event: Any) -> Any:
        same = [each for process, each in self._senders.items() if process.number == event.sender.number]
        return same[0] if same else None

    return mock.patch.object(Units, "_order", order)


def _believes_earlier_attempts() -> AbstractContextManager[Any]:
    return mock.patch.object(Units, "_order", lambda self, event: self._senders.get(event.sender))


def _forgets_units_of_the_lost() -> AbstractContextManager[Any]:
    return mock.patch.object(
        Units, "_without", lambda self, process, reason, blames_unit=True: self._senders.pop(process, None) and ()
    )


def _gives_to_the_busy() -> AbstractContextManager[Any]:
    return mock.patch.object(Units, "_is_free", lambda self, process: True)


def _keeps_what_was_left() -> AbstractContextManager[Any]:
    def left(self: Units, event: Any) -> Any:
        self._level = None
        return []

    return mock.patch.object(Units, "_on_left", left)


def _fails_a_unit_and_gives_it_again() -> AbstractContextManager[Any]:
    before = Units._without

    def without(self: Units, process: Any, reason: str, blames_unit: bool = True) -> Any:
        found = self._senders.get(process)
        units = [] if found is None else list(found.units)
        yield from before(self, process, reason, blames_unit)
        if units and blames_unit and self._level is not None and units[0] in self._level.isolated:
            self._level.waiting.append(units[0])

    return mock.patch.object(Units, "_without", without)


def _fails_a_unit_for_a_slot() -> AbstractContextManager[Any]:
    before = Units._give_up
    return mock.patch.object(
        Units, "_give_up", lambda self, process, reason, blames_unit=True: before(self, process, reason)
    )


def _fails_what_was_reported() -> AbstractContextManager[Any]:
    def told(self: Units, event: Any) -> Any:
        yield from self._fail(event.sender, event.unit, "hangs", event.split)

    return mock.patch.object(Units, "_on_split_told", told)


MUTATIONS = [
    _fails_a_unit_and_gives_it_again,
    _fails_a_unit_for_a_slot,
    _fails_what_was_reported,
    _believes_who_is_gone,
    _believes_earlier_attempts,
    _forgets_units_of_the_lost,
    _gives_to_the_busy,
    _keeps_what_was_left,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.strip("_"))
def test_a_rule_that_is_broken_is_found_out(mutation):
    with mutation():
        for seed in range(300):
            try:
                run_history(seed)
            except (AssertionError, KeyError, IndexError, TypeError, ValueError):
                return
    raise AssertionError("no history complained")


def test_a_sender_that_is_to_go_ends_its_order_gets_no_other_and_is_given_up():
    units = serving(2)
    units.handle(LevelBegun((0, 1, 2)))
    assert units.handle(SenderLeaves(sender(0), "spot notice")) == []
    assert units.handle(UnitReported(sender(0), 1, 0)) == [AcceptOutcome(0)], "the rest of its order is its own"
    assert units.handle(UnitReported(sender(1), 2, 1, True)) == [AcceptOutcome(1)]
    last = units.handle(UnitReported(sender(0), 1, 2, True))
    assert last == [AcceptOutcome(2), LevelDone(), GiveUp(sender(0), "spot notice")]
    assert units.handle(SenderEnded(sender(0), "spot notice")) == []
    units.handle(LevelLeft(0.0))
    assert units.handle(LevelBegun((0, 1))) == [Give(sender(1), 3, (0, 1))]


def test_a_free_sender_that_is_to_go_is_given_up_at_once():
    assert serving(1).handle(SenderLeaves(sender(0), "spot notice")) == [GiveUp(sender(0), "spot notice")]


def test_units_go_as_short_spark_jobs_while_the_only_sender_is_replaced():
    units = serving(1)
    units.handle(SenderLeaves(sender(0), "spot notice"))
    assert units.handle(LevelBegun((0, 1))) == [RunInSpark((0, 1)), LevelDone()]
    units.handle(LevelLeft(0.0))
    assert units.handle(SenderServes(sender(0, 2))) == []
    assert units.handle(LevelBegun((0,))) == [Give(sender(0, 2), 1, (0,))]
