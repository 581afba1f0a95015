"""Whole jobs, simulated: whatever happens to TaskManagers, JobMasters and the store, counts balance, output is there
exactly once, and nothing is left over or missing.

A failing seed is printed with all that it drew. HOLDFAST_SEED=n replays it, HOLDFAST_SEEDS=n runs the first n.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from unittest import mock

import pytest
import simulation_oracle as oracle
from simulation_settings import Event, Settings, draw
from simulation_world import Recorder, World, short_waits

import holdfast as hf
from holdfast import errors
from holdfast.testing import Fault

GROUP = 10
LIVES_MAX = 12
PATIENCE_S = 5.0
RATE = 40.0
"""Rows a second of the world's clock, which is fast."""


def chosen(default: int) -> list[int]:
    if "HOLDFAST_SEED" in os.environ:
        return [int(os.environ["HOLDFAST_SEED"])]
    return list(range(int(os.environ.get("HOLDFAST_SEEDS", default))))


def groups(seeds: list[int]) -> list[list[int]]:
    return [seeds[start : start + GROUP] for start in range(0, len(seeds), GROUP)]


def simulate(seed: int) -> None:
    settings = draw(seed)
    try:
        with short_waits(), mock.patch("holdfast.sinks.staging.INLINE_BYTES_MAX", settings.inline_bytes_max):
            run_all(World(settings))
    except BaseException:
        print(f"HOLDFAST_SEED={seed}")
        print(settings)
        raise


def run_all(world: World) -> None:
    settings = world.settings
    for life in settings.lives[:-1]:
        if world.live(life):
            check_output(world, life.stop)
    last = settings.lives[-1]
    for attempt in range(LIVES_MAX):
        faults = last.faults if attempt < 3 else 0.0
        events = last.events if attempt == 0 else ()
        if world.live(dataclasses.replace(last, faults=faults, events=events)):
            break
    else:
        raise AssertionError(f"the job did not come to its end in {LIVES_MAX} lives: {world.unexpected}")
    assert not world.unexpected, world.unexpected
    world.bury()
    world.faults = 0.0
    assert not world.unexpected, world.unexpected
    check_output(world, last.stop)
    check_state(world, last.stop)
    check_left_over(world)


def check_output(world: World, rows: int) -> None:
    settings = world.settings
    check = oracle.check_running if settings.emit == "every" else oracle.check_changes
    expected = oracle.counts(settings, rows)
    first = oracle.check_running if settings.chained else check
    first(output(world, "counts"), "k", expected, ordered(settings, "counts"))
    if settings.chained:
        check(output(world, "levels"), "level", oracle.levels(settings, rows), ordered(settings, "levels"))
    if settings.passed_through:
        assert sorted(row["value"] for row in output(world, "raw")) == list(range(rows))
    for sink in world.sinks.values():
        if isinstance(sink, hf.CallbackSink) and isinstance(sink.fn, Recorder):
            assert not sink.fn.wrong


def output(world: World, name: str) -> oracle.Rows:
    sink = world.sinks[name]
    if isinstance(sink, hf.MemorySink):
        return sink.rows()
    if isinstance(sink, hf.ParquetSink):
        return oracle.parquet_rows(sink.url)
    assert isinstance(sink, hf.CallbackSink) and isinstance(sink.fn, Recorder)
    return sink.fn.rows()


def ordered(settings: Settings, name: str) -> bool:
    return settings.sinks[name] != "parquet"


def check_state(world: World, rows: int) -> None:
    program = world.program()
    found = oracle.stored_state(world.inner, program, "counts", "k", "n.count")
    assert found == dict(oracle.counts(world.settings, rows))
    if world.settings.chained:
        found = oracle.stored_state(world.inner, program, "levels", "level", "n.count")
        assert found == dict(oracle.levels(world.settings, rows))


def check_left_over(world: World) -> None:
    """A life that goes on and on, with faults and deaths at first: whatever nobody needs goes while it lives."""
    last = world.settings.lives[-1]
    happenings = [(20, "kill"), (40, "fail"), (60, "fail"), (120, "kill"), (150, "fail"), (170, "fail")]
    events = tuple(Event(hit, action) for hit, action in happenings)
    life = dataclasses.replace(
        last, stop=10**9, rows_per_second=RATE, checkpoint_every_s=0.3, delay_s=0.0, events=events
    )
    world.fault_kinds = [Fault.FAIL, Fault.LOST_ANSWER, Fault.FALSE_EXISTS, Fault.OWN_EXISTS]
    with world.living(life) as query:
        until(lambda: len(query.checkpoints) > 2 or not query.isActive, "checkpoints between faults")
        world.faults, world.delay_s = 0.0, 0.0
        if query.isActive:
            check_nothing_stays(world)
    rows = rows_recorded(world)
    assert world.live(dataclasses.replace(last, stop=rows, faults=0.0, events=())), world.unexpected
    oracle.referenced(world.inner)
    check_output(world, rows)
    check_state(world, rows)


def check_nothing_stays(world: World) -> None:
    """Whatever is not needed at one moment is gone, or needed, at some later one."""
    suspects: set[str] | None = None

    def none_left() -> bool:
        nonlocal suspects
        with contextlib.suppress(errors.ObjectNotFound):
            found = oracle.unreferenced(world.inner)
            suspects = found if suspects is None else suspects & found
        return suspects is not None and not suspects

    until(none_left, lambda: f"still there: {sorted(suspects or ())}")


def rows_recorded(world: World) -> int:
    """So many rows that the newest checkpoint is not past them."""
    newest = oracle.newest_checkpoint(world.inner)
    assert newest is not None
    positions = [position for position in newest[1].offsets["numbers"].values() if isinstance(position, int)]
    return (max(positions) + 1) * world.settings.splits


def until(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what if isinstance(what, str) else what()
        time.sleep(0.002)


@pytest.mark.parametrize("seeds", groups(chosen(150)), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_jobs_balance_whatever_happens_to_them(seeds: list[int]) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_jobs_balance_whatever_happens_to_them(first: int) -> None:
    for seed in range(first, first + 100):
        simulate(seed)
