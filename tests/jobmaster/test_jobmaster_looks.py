"""How often sources are looked at for new data: work that grows with them does not take the batch loop's time."""

from collections.abc import Mapping

from holdfast.clock import ManualClock
from holdfast.jobmaster.batches.planner import LOOK_PAUSE_S_MAX, BatchLimits, Planner
from holdfast.jobmaster.batches.regional import AllOffsets
from holdfast.jobmaster.batches.wanted import Waiters
from holdfast.sources.base import Enumerator, Offsets, SourcePlan


class Slow(Enumerator):
    """A source whose positions tell the time of its last look."""

    def __init__(self, clock: ManualClock, look_s: float) -> None:
        self._clock = clock
        self.look_s = look_s
        self.looks = 0

    def initial(self) -> Offsets:
        return {"0": 0}

    def latest(self) -> Offsets:
        self._clock.advance(self.look_s)
        self.looks += 1
        return {"0": self.looks}

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        return SourcePlan(start, [])


def planner(clock: ManualClock, sources: Mapping[str, Enumerator]) -> Planner:
    made = Planner(sources, BatchLimits(1, 1), lambda: 1, ManualClock(), monotonic=clock.monotonic)
    made.begin(None)
    return made


def test_a_source_that_takes_long_to_look_through_is_looked_at_for_a_tenth_of_the_time() -> None:
    clock = ManualClock()
    large, small = Slow(clock, 2.0), Slow(clock, 0.0)
    planned = planner(clock, {"large": large, "small": small})
    began_s = clock.monotonic()
    for turn in range(1, 1001):
        assert planned.latest() == {"large": {"0": large.looks}, "small": {"0": turn}}
        clock.advance(0.1)
    assert 2.0 * large.looks <= (clock.monotonic() - began_s) / 10 + 4.0
    assert large.looks > 1


def test_a_source_is_looked_at_now_and_then_however_long_it_takes() -> None:
    clock = ManualClock()
    huge = Slow(clock, 100.0)
    planned = planner(clock, {"huge": huge})
    planned.latest()
    for looks in range(2, 4):
        planned.latest()
        assert huge.looks == looks
        planned.latest()
        assert huge.looks == looks
        clock.advance(LOOK_PAUSE_S_MAX)


def test_a_single_look_that_was_held_up_does_not_delay_the_next() -> None:
    clock = ManualClock()
    source = Slow(clock, 0.001)
    planned = planner(clock, {"source": source})
    for look_s in (0.001, 30.0, 0.001):
        source.look_s = look_s
        planned.latest()
        clock.advance(0.1)
    assert source.looks == 3


def test_who_asks_for_all_that_is_there_is_served_with_a_look_that_began_after_that() -> None:
    clock = ManualClock()
    large = Slow(clock, 2.0)
    planned = planner(clock, {"large": large})
    reached: list[AllOffsets] = []

    def note(until: AllOffsets) -> bool:
        reached.append(until)
        return False

    waiters = Waiters(note, lambda: None, lambda: True)  # type: ignore[arg-type, return-value]
    assert not waiters.somebody_waits()
    for _ in range(3):
        waiters.serve(planned.latest)
    assert large.looks == 2
    waiters.add()
    assert waiters.somebody_waits()
    for _ in range(3):
        waiters.serve(planned.latest)
    assert large.looks == 3
    assert reached == [{"large": {"0": 3}}] * 3
