"""Whole jobs, simulated: whatever happens to TaskManagers, JobMasters and the store, counts balance, output is there
exactly once, and nothing is left over or missing.

A failing seed is printed with all that it drew. HOLDFAST_SEED=n replays it, HOLDFAST_SEEDS=n runs the first n.
"""

import dataclasses
import os
import time
from unittest import mock

import pytest
import simulation_oracle as oracle
from simulation_settings import Life, Settings, draw
from simulation_world import Recorder, World, short_waits

import holdfast as hf
from holdfast.checkpoint.registry import LogHolder
from holdfast.query import Query
from holdfast.testing import start

GROUP = 10
LIVES_MAX = 12
SETTLE_S = 20.0


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
    check_left_over(world, dataclasses.replace(last, stop=last.stop + 30, events=(), faults=0.0))


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


def check_left_over(world: World, life: Life) -> None:
    """One more start, with a few more rows: then the store holds what the newest checkpoint needs, and nothing else."""
    query = start(world.job(life), hf.processing_time(0), store=world.inner, clock=world.clock)
    try:
        query.processAllAvailable()
        deadline_s = time.monotonic() + SETTLE_S
        while left := oracle.unreferenced(world.inner) - held(query):
            assert time.monotonic() < deadline_s, f"left over: {sorted(left)}"
            time.sleep(0.002)
        oracle.referenced(world.inner)
    finally:
        query.stop()
    check_output(world, life.stop)
    check_state(world, life.stop)


def held(query: Query) -> set[str]:
    """Objects that live logs hold, by their last acknowledgement or since: the next checkpoint lets go of them."""
    registry = query._master._control._coordinator._registry
    names = {name for each in registry.holders() if isinstance(each, LogHolder) for name in registry.names(each)}
    hosted = [each.task_manager._hosted for each in query._master._cluster._hosted.values()]  # type: ignore[attr-defined]
    return names | {name for each in hosted if each is not None for name in each.held()}


@pytest.mark.parametrize("seeds", groups(chosen(150)), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_jobs_balance_whatever_happens_to_them(seeds: list[int]) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 5000, 100))
def test_many_jobs_balance_whatever_happens_to_them(first: int) -> None:
    for seed in range(first, first + 100):
        simulate(seed)
