"""The random world finds broken rules: with a rule of the machine broken on purpose, an oracle complains."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from execution_world import World

from holdfast import errors
from holdfast.execution import course, machine, processes
from holdfast.execution import events as ev
from holdfast.execution.absences import Absences
from holdfast.execution.calls import Calls, Overdue, Step
from holdfast.execution.course import Course
from holdfast.execution.machine import Machine
from holdfast.execution.places import Places, choose
from holdfast.execution.processes import Process, ProcessTable
from holdfast.execution.supervision import Supervision
from holdfast.ids import RunNumber
from holdfast.settings import OnLoss
from pinned_seeds import PinnedSeeds

SEEDS = 60
PINNED = PinnedSeeds("broken rules of execution")


def _counts_no_restarts() -> AbstractContextManager[Any]:
    return mock.patch.object(Machine, "_may_restart", lambda self: True)


def _counts_no_losses() -> AbstractContextManager[Any]:
    before = ProcessTable.lost

    def lost(self: ProcessTable, process: Process, now_s: float) -> float:
        process.lost_s.clear()
        return before(self, process, now_s)

    return mock.patch.object(ProcessTable, "lost", lost)


def _never_waits() -> AbstractContextManager[Any]:
    return mock.patch.object(processes, "back_off_s", lambda failures, config: 0.0)


def _forgets_every_loss_at_a_checkpoint() -> AbstractContextManager[Any]:
    def proved(self: ProcessTable) -> None:
        for each in self:
            each.streak = 0

    return mock.patch.object(ProcessTable, "proved", proved)


def _believes_late_losses() -> AbstractContextManager[Any]:
    return mock.patch.object(ProcessTable, "of", lambda self, process: self._processes[process.role, process.number])


def _commits_beside_a_loss() -> AbstractContextManager[Any]:
    return mock.patch.object(Machine, "_go_on", lambda self, following, restart=None: following())


def _uses_a_run_again() -> AbstractContextManager[Any]:
    return mock.patch.object(Course, "next_run", lambda self: RunNumber(max(self.run, 1)))


def _forgets_the_base() -> AbstractContextManager[Any]:
    return mock.patch.object(Machine, "_on_base_chosen", lambda self, event: self._gather())


def _lets_calls_hang() -> AbstractContextManager[Any]:
    return mock.patch.object(Calls, "overdue", lambda self, now_s: [])


def _lets_cuts_hang() -> AbstractContextManager[Any]:
    before = Calls.overdue

    def overdue(self: Calls, now_s: float) -> list[Overdue]:
        return [each for each in before(self, now_s) if each.call.step is not Step.CUT]

    return mock.patch.object(Calls, "overdue", overdue)


def _ends_work_for_a_cut() -> AbstractContextManager[Any]:
    """A cut is taken for a part of the work in flight, which is cancelled in place of the process."""
    before = Supervision.call_began

    def began(self: Supervision, event: ev.CallBegan) -> None:
        before(self, replace(event, process=None) if event.step is Step.CUT else event)

    return mock.patch.object(Supervision, "call_began", began)


def _goes_on_after_broken_work() -> AbstractContextManager[Any]:
    def failed(self: Machine, event: ev.WorkFailed) -> None:
        self._restart()

    return mock.patch.object(Machine, "_on_work_failed", failed)


def _hides_why_work_broke() -> AbstractContextManager[Any]:
    before = Machine._on_work_failed

    def failed(self: Machine, event: ev.WorkFailed) -> None:
        before(self, ev.WorkFailed(errors.QueryFailed("it broke")))

    return mock.patch.object(Machine, "_on_work_failed", failed)


def _tries_for_ever() -> AbstractContextManager[Any]:
    before = Machine._try_again

    def try_again(self: Machine, *arguments: Any) -> None:
        self._attempt = 1
        before(self, *arguments)

    return mock.patch.object(Machine, "_try_again", try_again)


def _goes_on_after_a_failed_commit() -> AbstractContextManager[Any]:
    def commit_failed(self: Machine, event: ev.CommitFailed) -> None:
        self._on_batch_committed(ev.BatchCommitted(event.run, event.batch))

    return mock.patch.object(Machine, "_on_commit_failed", commit_failed)


def _takes_answers_of_other_runs() -> AbstractContextManager[Any]:
    before = Course.take

    def take(self: Course, event: Any) -> bool:
        present = {"run": self.run, "batch": self.batch} if hasattr(event, "run") else {}
        return before(self, replace(event, **{name: now for name, now in present.items() if hasattr(event, name)}))

    return mock.patch.object(Course, "take", take)


def _awaits_no_loss() -> AbstractContextManager[Any]:
    return mock.patch.object(course, "LOSS_NOTICE_S", float("inf"))


def _moves_survivors() -> AbstractContextManager[Any]:
    def shuffled(count: int, before: Places, serving: dict[int, Any], *_: Any) -> Places | None:
        found = choose(count, before, serving)
        return found and Places((*found.holders[1:], *found.holders[:1]), found.live, found.parallelism)

    return mock.patch.object(machine, "choose", shuffled)


def _leaves_anybody_out() -> AbstractContextManager[Any]:
    def may(self: Machine) -> bool:
        return self._on_loss is OnLoss.DROP and self.phase in machine.GOING_ON

    return mock.patch.object(Machine, "_may_leave_out", may)


def _waits_for_ever() -> AbstractContextManager[Any]:
    return mock.patch.object(Machine, "_look_at_absent", lambda self: None)


def _everybody_joins() -> AbstractContextManager[Any]:
    return mock.patch.object(Places, "hold", lambda self, number, incarnation: False)


def _joins_within_a_batch() -> AbstractContextManager[Any]:
    before = Machine._look_who_joins

    def look(self: Machine) -> None:
        before(self)
        places = self._joinable()
        if places is not None and self._course.work is not None:
            self._join(places)

    return mock.patch.object(Machine, "_look_who_joins", look)


def _joins_without_broadcast_state() -> AbstractContextManager[Any]:
    return mock.patch.object(Absences, "base_is_too_old", False)


MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "restarts are not counted": _counts_no_restarts,
    "losses are not counted": _counts_no_losses,
    "nothing waits before it starts again": _never_waits,
    "a checkpoint clears processes that took no part in it": _forgets_every_loss_at_a_checkpoint,
    "losses of older incarnations count": _believes_late_losses,
    "work goes on beside a loss": _commits_beside_a_loss,
    "a run number is used again": _uses_a_run_again,
    "the chosen base is forgotten": _forgets_the_base,
    "calls may hang": _lets_calls_hang,
    "a cut may hang": _lets_cuts_hang,
    "a cut that hangs ends the work beside it": _ends_work_for_a_cut,
    "the job goes on after work that broke": _goes_on_after_broken_work,
    "nobody learns why work broke": _hides_why_work_broke,
    "a batch is tried for ever": _tries_for_ever,
    "a commit that was not answered counts": _goes_on_after_a_failed_commit,
    "answers of other runs count": _takes_answers_of_other_runs,
    "a loss that never comes is awaited for ever": _awaits_no_loss,
    "survivors change their places": _moves_survivors,
    "the job goes on without anybody": _leaves_anybody_out,
    "a TaskManager is missing for ever": _waits_for_ever,
    "survivors are deployed where somebody joins": _everybody_joins,
    "a replacement joins within a batch": _joins_within_a_batch,
    "a replacement knows less broadcast state than the others": _joins_without_broadcast_state,
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_broken_rule_is_found(name: str) -> None:
    shown = None
    for seed in [PINNED.first(name), *range(SEEDS)]:
        try:
            with MUTATIONS[name]():
                World(seed).run()
        except (AssertionError, KeyError) as broken:
            print(f"{name}: seed {seed}: {str(broken).splitlines()[0]}")
            world, shown = World(seed), seed
            world.run()
            if PINNED.found(name, seed, world.order):
                break
    assert shown is not None, f"{name}: nothing was found in {SEEDS} seeds"
