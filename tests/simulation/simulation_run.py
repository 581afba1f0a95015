"""Simulates seeds: through all lives that a seed draws, then into calm weather, and checks the invariants of then.

    python tests/simulation/simulation_run.py 7        a seed, with its whole trace (`make simulate SEED=7`)

A seed that fails is printed with all that it drew, the end of its trace, and that command.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace

import simulation_oracle as oracle
from simulation_broadcast import check_ruled
from simulation_ends import Recorder
from simulation_invariants import Broken, require_equal
from simulation_joins import check_joined
from simulation_leaving import leaving
from simulation_rescaling import rescaling
from simulation_runtime import Stalled
from simulation_settings import Settings, draw, dropping, keeping
from simulation_settings_calm import calm
from simulation_slots import shrinking
from simulation_windows import LATE, check_late, check_windows
from simulation_world import Started, World, simulating

import holdfast as hf
from holdfast.storage import names

LIVES_MAX = 12
STORMY_MAX = 4
"""Lives at the end of a job in which faults go on; later lives are calm, so that each job comes to its end."""
TRACE_SHOWN = 50
DRAWINGS = {each.__name__: each for each in (keeping, calm, rescaling, leaving, shrinking)} | {"": draw}
"""Ways to draw settings, by the name that stands before a seed's number."""
SWEEP_S = 100.0
LOOK_S = 1.0
ROWS_A_LOOK = 2


def simulate(seed: int, drawing: Callable[[int], Settings] = draw) -> World:
    """Run a seed from its first life to the last sweep. Raises the error found, after it was printed.

    `drawing`: `draw`, or `keeping` and `calm` for jobs that keep checkpoints beside the newest.
    """
    settings = drawing(seed)
    with simulating(settings) as world:
        try:
            run_all(world)
        except BaseException:
            print("\n".join(world.runtime.trace[-TRACE_SHOWN:]))
            print(settings)
            kept = "" if drawing is draw else f"{drawing.__name__}:"
            print(f"again, with its whole trace: make simulate SEED={kept}{seed}")
            raise
        return world


def run_all(world: World, check: Callable[[World], None] | None = None) -> None:
    """All lives, then the checks; `check` looks at the output."""
    world.storm()
    for life in world.settings.lives[:-1]:
        started = world.start(life)
        world.run_until(lambda started=started: started.over or started.idle, "the end of a life")  # type: ignore[misc]
        if not started.over:
            world.part(started)
    last = run_last(world)
    check_nothing_stays(world, last)
    world.finish(last)
    world.bury()
    (check or check_output)(world)
    world.sweep()
    store = world.store.frozen()
    require_equal(oracle.unreferenced(store), set(), "what stays after a sweep")
    newest = oracle.newest_checkpoint(store)
    assert newest is not None
    world.complete(lambda: world.check_state(store, newest[1]), world.observer)
    require_equal(newest[1].offsets["numbers"], oracle.first(world.feed.limit, world.settings.splits), "positions")
    require_equal(world.feed.completed, newest[1].offsets["numbers"], "the last checkpoint that the source heard of")
    others = newest[1].offsets.get("others")
    if others is not None:
        require_equal(others, oracle.first(world.other_feed.limit, world.settings.splits), "positions of the others")
        require_equal(world.other_feed.completed, others, "the last checkpoint that the others heard of")


def simulate_dropping(seed: int, ruled: bool = False, drawn: Callable[[int], Settings] = dropping) -> World:
    """A life with `on_loss="drop"`: every row is counted, or said to be lost, at each checkpoint that is looked at.

    `ruled`: with broadcast state, which each batch changes.
    """
    settings = replace(drawn(seed), ruled=ruled)
    with simulating(settings) as world:
        try:
            world.storm()
            started = world.start(settings.lives[0])
            world.run_until(lambda: started.over or started.idle, "the end of all rows")
            if started.over:
                return world
            world.calm()
            store = world.store.frozen()
            newest = oracle.newest_checkpoint(store)
            assert newest is not None
            world.complete(lambda: world.check_state(store, newest[1]), world.observer)
            query = started.query
            assert query is not None
            told = sum(each.rows for each in query.losses)
            require_equal(told, world.declared.rows(newest[1]), "rows told as lost, and rows that records declare")
            world.finish(started)
        except BaseException:
            print("\n".join(world.runtime.trace[-TRACE_SHOWN:]))
            print(settings)
            raise
        return world


def run_last(world: World) -> Started:
    """Live until everything is processed and published, however often it takes a new start."""
    last = world.settings.lives[-1]
    for attempt in range(LIVES_MAX):
        if attempt < STORMY_MAX:
            world.storm()
        else:
            world.calm()
        started = world.start(last if attempt == 0 else replace(last, events=(), outages=(), goes_back=None))
        world.run_until(lambda started=started: started.over or started.idle, "the end of all rows")  # type: ignore[misc]
        if started.idle and world.settle(started):
            return started
    raise Broken(f"the job did not come to its end in {LIVES_MAX} lives")


def check_nothing_stays(world: World, last: Started) -> None:
    """Let the job live on, with rows that come: an object that is needless now is gone, or needed, later."""
    observer = Observer(world, last)
    try:
        world.run_until(lambda: observer.left == set(), "an end of it", SWEEP_S)
    except Stalled as stalled:
        raise Broken(f"not needed, and never deleted: {sorted(observer.left or ())}; {stalled}") from stalled


class Observer:
    """Looks now and then at objects that the living epoch has stored in vain."""

    def __init__(self, world: World, last: Started) -> None:
        self.left: set[str] | None = None
        self._world = world
        self._last = last
        world.runtime.spawn(self._look, "look", world.observer)

    def _look(self) -> None:
        assert self._last.cluster is not None
        epoch = self._last.cluster.place.epoch
        while self.left != set():
            self._world.feed.limit += ROWS_A_LOOK
            self._world.other_feed.limit += ROWS_A_LOOK
            self._world.runtime.sleep(LOOK_S)
            found = oracle.unreferenced(self._world.store.frozen())
            found = {name for name in found - self._world.store.late_journal if names.epoch_of(name) in (None, epoch)}
            self.left = found if self.left is None else self.left & found


def check_output(world: World) -> None:
    settings, rows = world.settings, world.feed.limit
    check = oracle.check_running if settings.emit == "every" else oracle.check_changes
    expected = oracle.counts(oracle.first(rows, settings.splits), settings.keys)
    first = oracle.check_running if settings.chained else check
    first(output(world, "counts"), "k", expected, ordered(world, "counts"))
    if settings.chained:
        check(output(world, "levels"), "level", oracle.levels(expected), ordered(world, "levels"))
    newest = oracle.newest_checkpoint(world.store.frozen())
    assert newest is not None
    if settings.windowed == LATE:
        check_late(output(world, "windows"), output(world, "late"), settings.keys, newest[1])
    elif settings.windowed:
        check_windows(output(world, "windows"), settings.windowed, settings.keys, newest[1])
    if settings.joined:
        check_joined(output(world, "joined"), settings.joined, settings.keys, newest[1])
    if settings.ruled:
        check_ruled(output(world, "ruled"), newest[1].offsets["numbers"])
    if settings.passed_through:
        require_equal(sorted(row["value"] for row in output(world, "raw")), list(range(rows)), "rows passed through")


def output(world: World, name: str) -> oracle.Rows:
    """Published rows; where some start went back, rows that were published again count once."""
    found = published(world, name)
    return once(found) if world.carrying.went_back else found


def published(world: World, name: str) -> oracle.Rows:
    sink = world.sinks[name]
    if isinstance(sink, hf.MemorySink):
        return sink.rows()
    if isinstance(sink, hf.ParquetSink):
        return oracle.parquet_rows(sink.url)
    assert isinstance(sink, hf.CallbackSink) and isinstance(sink.fn, Recorder)
    return sink.fn.rows()


def once(rows: oracle.Rows) -> oracle.Rows:
    """Each of the rows once, in order of the first time."""
    return [dict(row) for row in dict.fromkeys(tuple(row.items()) for row in rows)]


def ordered(world: World, name: str) -> bool:
    return world.settings.sinks[name] != "parquet" and not world.carrying.went_back


def failing(seeds: Iterable[int]) -> list[str]:
    """Simulate seeds; return the texts that failing seeds print. For other processes."""
    found = []
    for seed in seeds:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                simulate(seed)
        except Exception as error:
            found.append(f"{printed.getvalue()}{type(error).__name__}: {error}")
    return found


if __name__ == "__main__":
    TRACE_SHOWN = 0
    for each in sys.argv[1:]:
        kind, _, number = each.rpartition(":")
        print("\n".join(simulate(int(number), DRAWINGS[kind]).runtime.trace))
