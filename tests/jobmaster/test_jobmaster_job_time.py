"""The time of a job: it follows a wall clock that is a little wrong, and goes on as time passes if that jumps."""

import itertools
import logging
from dataclasses import dataclass

import msgspec
import pytest

from holdfast.clock import SystemClock
from holdfast.ids import ClockReading
from holdfast.jobmaster.checkpoints.job_time import AHEAD_S_MAX, STEP_S_MAX, JobTime
from holdfast.journal.records import CheckpointRecord
from journal_kit import checkpoint

DAY_S = 86_400.0
BEGIN_S = 1_700_000_000.0


@dataclass(eq=False)
class Machine:
    """A machine's clocks: `passed_s` since it started, and by how much its wall clock is ahead of the truth."""

    passed_s: float = 1000.0
    ahead_s: float = 0.0
    suspended_s: float = 0.0
    identity: str = "this run"

    def now(self) -> float:
        return BEGIN_S + self.passed_s + self.suspended_s + self.ahead_s

    def monotonic(self) -> float:
        return self.passed_s

    def elapsed(self) -> float:
        return self.passed_s + self.suspended_s

    @property
    def truth(self) -> float:
        return BEGIN_S + self.elapsed()


def recorded(time: JobTime) -> CheckpointRecord:
    """A checkpoint of a batch that is planned now."""
    now_us = int(time.now() * 1e6)
    return msgspec.structs.replace(checkpoint(1, 1), batch_time_us=now_us, clock=time.reading(now_us))


def passes(machine: Machine, time: JobTime, seconds: float, step_s: float = 0.5) -> list[float]:
    """The times that the job sees while that many seconds pass."""
    seen = []
    for _ in range(int(seconds / step_s)):
        machine.passed_s += step_s
        seen.append(time.now())
    return seen


@pytest.mark.parametrize("ahead_s", [3 * DAY_S, -3 * DAY_S, 60.0, -60.0, 1e9, -1.6e9])
def test_a_jump_of_the_wall_clock_moves_no_time_and_is_said_until_it_is_over(ahead_s: float) -> None:
    machine = Machine()
    time = JobTime("j", machine, None)
    machine.ahead_s = ahead_s
    for seen in passes(machine, time, 5.0):
        assert seen == pytest.approx(machine.truth, abs=6.0)
    assert time.now() == pytest.approx(machine.truth, abs=0.01)
    assert "the wall clock jumped" in time.message and ("behind" if ahead_s > 0 else "ahead of") in time.message
    machine.ahead_s = 0.0
    passes(machine, time, 5.0)
    assert time.now() == pytest.approx(machine.truth, abs=0.01) and time.message == ""


@pytest.mark.parametrize("step_s", [-9.0, -2.0, -0.01, 0.01, 2.0, 9.0])
def test_a_step_of_seconds_is_followed_and_time_never_stands(step_s: float) -> None:
    machine = Machine()
    time = JobTime("j", machine, None)
    machine.ahead_s = step_s
    seen = passes(machine, time, 30.0)
    assert all(before < after for before, after in itertools.pairwise(seen))
    assert time.now() == pytest.approx(machine.now(), abs=0.01) and time.message == ""


def test_a_clock_that_runs_fast_is_not_followed_for_long() -> None:
    machine = Machine()
    time = JobTime("j", machine, None)
    for _ in range(100):
        machine.passed_s += 0.1
        machine.ahead_s += 9.0
        time.now()
    assert time.now() <= machine.truth + STEP_S_MAX + 2.0 and time.message


def test_a_suspended_machine_has_no_jump() -> None:
    machine = Machine()
    time = JobTime("j", machine, None)
    machine.suspended_s = 6 * 3600.0
    assert time.now() == machine.truth and time.message == ""


@pytest.mark.parametrize("pause_s", [0.0, 3600.0, 30 * DAY_S])
@pytest.mark.parametrize("ahead_s", [0.0, 3 * DAY_S, -3 * DAY_S])
def test_a_later_start_on_the_same_machine_knows_how_much_time_has_passed(pause_s: float, ahead_s: float) -> None:
    machine = Machine()
    base = recorded(JobTime("j", machine, None))
    machine.passed_s += pause_s
    machine.ahead_s = ahead_s
    time = JobTime("j", machine, base)
    assert time.now() == pytest.approx(machine.truth, abs=0.01) and bool(time.message) == bool(ahead_s)
    machine.ahead_s = 0.0
    assert time.now() == pytest.approx(machine.truth, abs=0.01) and time.message == ""


def test_a_time_that_differs_from_the_wall_clock_goes_on_over_later_starts() -> None:
    machine = Machine()
    time = JobTime("j", machine, None)
    machine.ahead_s = 3 * DAY_S
    for _ in range(3):
        passes(machine, time, 10.0)
        time = JobTime("j", machine, recorded(time))
    assert time.now() == pytest.approx(machine.truth, abs=0.01) and "behind the wall clock" in time.message


@pytest.mark.parametrize("clock", [None, ClockReading("another run", 17)])
@pytest.mark.parametrize(
    ("ahead_s", "is_taken"),
    [(60.0, True), (3 * DAY_S, True), (AHEAD_S_MAX + 60.0, False), (-60.0, False), (-3 * DAY_S, False)],
)
def test_elsewhere_a_start_takes_a_wall_clock_that_is_not_too_far_ahead(
    clock: ClockReading | None, ahead_s: float, is_taken: bool
) -> None:
    machine = Machine()
    base_s = machine.now()
    base = msgspec.structs.replace(checkpoint(1, 1), batch_time_us=int(base_s * 1e6), clock=clock)
    machine.ahead_s = ahead_s
    time = JobTime("j", machine, base)
    assert time.now() == pytest.approx(machine.now() if is_taken else base_s, abs=0.01)
    assert bool(time.message) == (not is_taken)
    machine.passed_s += 100.0
    assert time.now() == pytest.approx(base_s + 100.0 + (ahead_s if is_taken else 0.0), abs=0.01)


def test_a_start_that_takes_the_wall_clock_goes_to_it_or_stands_until_it_is_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    base = recorded(JobTime("j", machine, None))
    machine.ahead_s = 30 * DAY_S
    ahead = JobTime("j", machine, base, takes_wall=True)
    assert ahead.now() == machine.now() and ahead.message == ""
    machine.ahead_s = -100.0
    with caplog.at_level(logging.WARNING, "holdfast"):
        behind = JobTime("j", machine, base, takes_wall=True)
    assert "stands at 2023-11-14 22:30:00 UTC" in behind.message and behind.message in caplog.text
    assert behind.now() == base.batch_time_us / 1e6
    passes(machine, behind, 99.0)
    assert behind.now() == base.batch_time_us / 1e6
    passes(machine, behind, 10.0)
    assert behind.now() == machine.now() and behind.message == ""


def test_the_systems_clock_counts_suspended_time_and_names_the_run_of_the_machine() -> None:
    clock = SystemClock()
    assert clock.elapsed() >= clock.monotonic() - 1.0
    assert clock.identity == SystemClock().identity
