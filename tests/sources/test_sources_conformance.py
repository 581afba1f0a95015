"""Each source keeps the same promises: deterministic reads, restarts at any position, a single direction, an end."""

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from sources_conformance_kit import BENCHES, BENCHES_OF_A_DATABASE, SourceBench, describe

from holdfast.availability import SnapshotAvailability
from holdfast.sources.base import Enumerator, Offsets, Source, SplitRead
from holdfast.watermarks import Watermarks, WatermarkSpec
from sampling import quick

AWAY = r"away|cannot be listed"


class Step(NamedTuple):
    """A batch that was planned and read: its position before and after, the objects of its record, its rows.

    `is_cut`: a checkpoint may be cut after it; within a transaction that is larger than a batch none may.
    """

    start: Offsets
    to: Offsets
    objects: list[str]
    reads: list[SplitRead]
    rows: list[tuple]
    is_cut: bool = True


@pytest.fixture(params=[*sorted(BENCHES), *quick("postgres", of=BENCHES_OF_A_DATABASE)])
def bench(request, tmp_path: Path) -> Iterator[SourceBench]:
    if isinstance(request.param, str):
        made = BENCHES[request.param](tmp_path)
    else:
        made = request.param(request.getfixturevalue("database"))
    yield made
    made.close()


@pytest.fixture
def draw() -> random.Random:
    seed = random.randrange(10**9)
    print("seed", seed)
    return random.Random(seed)


def steps(
    bench: SourceBench,
    source: Source,
    planner: Enumerator,
    at: Offsets,
    draw: random.Random,
    until: Offsets | None = None,
) -> Iterator[Step]:
    """Batches of a random size, up to `until` (all that is there now by default)."""
    until = bench.latest(planner) if until is None else until
    while True:
        limits = draw.choice([(draw.randint(1, 12), draw.choice([40, 10**9])), (40, 10**9), (40, 10**9)])
        plan = planner.plan(at, until, *limits)
        assert planner.plan(at, until, *limits) == plan, "planned twice, it must be the same plan"
        if not plan.reads and plan.to == at:
            return
        rows = [row for read in plan.reads for row in bench.read(source, read)]
        is_cut = plan.availability == SnapshotAvailability.AVAILABLE
        yield Step(at, plan.to, planner.objects(plan.to), plan.reads, rows, is_cut)
        at = plan.to


def rows_of(found: list[Step]) -> list[tuple]:
    return [row for step in found for row in step.rows]


def run(bench: SourceBench, source: Source, planner: Enumerator, draw: random.Random) -> Iterator[Step]:
    """Everything from the beginning, while more rows appear; some batches read nothing, as those of timers do."""
    at, found = planner.initial(), []
    for rounds_left in reversed(range(bench.rounds)):
        if rounds_left == 0:
            bench.all_there()
        idle = rounds_left > 0 and draw.random() < 0.4
        for step in [] if idle else steps(bench, source, planner, at, draw):
            found.append(step)
            yield step
            at = step.to
            if rounds_left and draw.random() < 0.2:
                break
        if idle:
            bench.latest(planner)
            found.append(Step(at, at, planner.objects(at), [], [], not found or found[-1].is_cut))
            yield found[-1]
        if rounds_left:
            bench.more()
    assert sorted(rows_of(found)) == sorted(bench.rows())


def restarted(bench: SourceBench, step: Step, epoch: int) -> tuple[Source, Enumerator]:
    """A new driver that goes on after a step, with the offsets as its record stores them."""
    source = bench.declare()
    planner = bench.enumerator(source, epoch)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(step.to), type=Offsets)
    assert msgspec.json.decode(msgspec.json.encode(step.to), type=Offsets) == stored == step.to
    planner.restore(stored, step.objects)
    return source, planner


def test_a_read_gives_the_same_rows_whenever_it_is_repeated(bench, draw):
    source = bench.declare()
    found = list(run(bench, source, bench.enumerator(source), draw))
    again = bench.declare()
    describe(again)
    for step in draw.sample(found, len(found)):
        assert [row for read in step.reads for row in bench.read(source, read)] == step.rows
        assert [row for read in step.reads for row in bench.read(again, read)] == step.rows


def test_nothing_new_is_an_empty_plan_that_stays_where_it_is(bench, draw):
    source = bench.declare()
    planner = bench.enumerator(source)
    found = list(run(bench, source, planner, draw))
    end, latest = found[-1].to, bench.latest(planner)
    assert list(steps(bench, source, planner, end, draw, latest)) == []
    assert list(steps(bench, source, planner, latest, draw, latest)) == []


def test_a_plan_never_goes_past_the_position_that_it_is_given(bench, draw):
    source = bench.declare()
    planner = bench.enumerator(source)
    found = list(run(bench, source, planner, draw))
    for first in range(0, len(found), max(1, len(found) // 8)):
        part = found[first : first + draw.randint(1, 5)]
        while part and not part[-1].is_cut:
            part.pop()
        if not part:
            continue
        repeated = list(steps(bench, source, planner, part[0].start, draw, part[-1].to))
        assert sorted(rows_of(repeated)) == sorted(rows_of(part))
        assert (repeated[-1].to if repeated else part[0].start) == part[-1].to


def test_a_restart_at_every_position_reads_the_rest_once(bench, draw):
    source = bench.declare()
    found = list(run(bench, source, bench.enumerator(source), draw))
    for place in sorted(draw.sample(range(len(found)), min(5, len(found)))):
        source, planner = restarted(bench, found[place], epoch=2 + place)
        read = rows_of(found[: place + 1])
        at = found[place].to
        if len(read) < len(bench.rows()):
            bench.more()
            found_now = steps(bench, source, planner, at, draw)
            step = next((step for step in found_now if step.rows), None)
            assert step is not None, "rows that are there, or that appear after a restart, are read"
            read, at = read + step.rows, step.to
        bench.all_there()
        read += rows_of(list(steps(bench, source, planner, at, draw)))
        assert sorted(read) == sorted(bench.rows())


def test_restarts_one_after_another_lose_and_repeat_nothing(bench, draw):
    source = bench.declare()
    planner = bench.enumerator(source)
    kept: list[Step] = []
    for epoch in range(2, 12):
        at = kept[-1].to if kept else planner.initial()
        found = list(steps(bench, source, planner, at, draw))
        kept += found[: draw.randint(0, len(found))]
        if draw.random() < 0.5 and kept:
            planner.completed(kept[-1].to)
        bench.more()
        planner.close()
        source = bench.declare()
        if kept:
            source, planner = restarted(bench, kept[-1], epoch)
        else:
            planner = bench.enumerator(source, epoch)
    bench.all_there()
    kept += steps(bench, source, planner, kept[-1].to if kept else planner.initial(), draw)
    assert sorted(rows_of(kept)) == sorted(bench.rows())


def test_a_failover_goes_back_to_any_position_that_is_not_before_the_last_checkpoint(bench, draw):
    source = bench.declare()
    planner = bench.enumerator(source)
    found = list(run(bench, source, planner, draw))
    covered = draw.randrange(len(found))
    planner.completed(found[covered].to)
    for step in draw.sample(found[covered:], min(8, len(found) - covered)):
        rest = rows_of(list(steps(bench, source, planner, step.to, draw)))
        assert sorted(rows_of(found[: found.index(step) + 1]) + rest) == sorted(bench.rows())


def test_completed_checkpoints_take_nothing_from_positions_that_follow(bench, draw):
    source = bench.declare()
    planner = bench.enumerator(source)
    found: list[Step] = []
    completed = 0
    for step in run(bench, source, planner, draw):
        found.append(step)
        if draw.random() < 0.3:
            completed = draw.randrange(completed, len(found))
            planner.completed(found[completed].to)
            planner.completed(found[completed].to)  # A driver that starts again tells its sources once more.
            others = {completed, draw.randrange(completed, len(found)), len(found) - 1}
            for later in () if bench.is_alone else others:
                restarted(bench, found[later], epoch=2 + len(found))
    chosen = draw.sample(range(completed, len(found)), min(5, len(found) - completed))
    for later in sorted(chosen) if bench.is_alone else chosen:
        source, restored = restarted(bench, found[later], epoch=1_000 + later)
        bench.all_there()
        rest = rows_of(list(steps(bench, source, restored, found[later].to, draw)))
        assert sorted(rest) == sorted(rows_of(found[later + 1 :]))


def test_lag_shrinks_with_each_batch_and_ends_at_nothing(bench, draw):
    source = bench.declare()
    planner = bench.enumerator(source)
    first = planner.initial()
    assert all(behind >= 0 for behind in planner.lag(first).values())
    bench.more()
    bench.all_there()
    until = bench.latest(planner)
    lags = [planner.lag(first)]
    lags += [planner.lag(step.to) for step in steps(bench, source, planner, first, draw, until)]
    for before, after in pairwise(lags):
        assert before.keys() == after.keys()
        assert all(0 <= after[split] <= before[split] for split in after)
    assert any(lags[0].values()) == bench.has_lag
    assert not any(lags[-1].values())


def test_splits_hold_the_watermark_back_until_it_has_come_as_far_as_each_of_them(bench, draw):
    """Event time counts the steps: the rows of step i have the time i."""
    source = bench.declare()
    planner = bench.enumerator(source)
    watermarks = Watermarks({"source/at": WatermarkSpec("source", "at", delay_us=0)}, {})
    watermarks.restore({})
    seen: dict[str, int] = {}
    for place, step in enumerate(run(bench, source, planner, draw)):
        newest = dict.fromkeys((read.split for read in step.reads), place)
        seen |= newest
        open_splits = planner.open_splits(step.to)
        watermarks.committed({"source/at": newest}, place, {"source": open_splits})
        if seen and set(open_splits) <= seen.keys():
            assert watermarks.of_sources(place)["source"] >= min(seen[split] for split in open_splits or seen)
    assert set(open_splits) <= seen.keys(), "a split that no read has named holds the watermark back for ever"


def test_a_look_that_failed_changes_nothing_and_a_later_one_goes_on(bench, draw):
    if bench.fail is None:
        pytest.skip("no test makes the look of this source fail")
    source = bench.declare()
    planner = bench.enumerator(source)
    found = list(steps(bench, source, planner, planner.initial(), draw))
    at, lag = found[-1].to, planner.lag(found[-1].to)
    bench.more()
    bench.fail(True)
    for _ in range(2):
        with pytest.raises(Exception, match=AWAY):
            planner.latest()
    assert planner.lag(at) == lag
    assert planner.objects(at) == found[-1].objects
    bench.fail(False)
    found += steps(bench, source, planner, at, draw)
    assert sorted(rows_of(found)) == sorted(bench.rows())


@pytest.mark.parametrize("used", ["never", "once", "failed"])
def test_a_source_can_be_closed_whatever_happened_and_more_than_once(bench, draw, used):
    source = bench.declare()
    planner = bench.enumerator(source)
    if used != "never":
        list(steps(bench, source, planner, planner.initial(), draw))
    if used == "failed" and bench.fail is not None:
        bench.fail(True)
        with pytest.raises(Exception, match=AWAY):
            planner.latest()
    planner.close()
    planner.close()
