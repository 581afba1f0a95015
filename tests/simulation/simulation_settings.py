"""Settings that a seed draws: the shape of a job, how wrong its surroundings are, its lives, and the events in
each.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulation_joins import KINDS as JOINS
from simulation_storages import storages
from simulation_windows import LATE

from holdfast import failpoints
from holdfast.jobmaster.checkpoints.outages import UNTRIED_S_MAX

ELSEWHERE = {
    "sink.delta.loaded": "tests/sinks and tests/kills: a Delta table needs a folder",
    "sink.delta.committed": "as above",
    "process.copy": "only seeds with savepoints pass it; struck in tests/simulation/test_simulation_savepoints.py",
    "jobmaster.savepoint.before": "as above",
    **dict.fromkeys(
        ["sink.kafka.begun", "sink.kafka.sent", "sink.kafka.numbered", "sink.kafka.committed"],
        "needs a broker; struck in tests/kills",
    ),
    **dict.fromkeys(["stream.epoch.parts", "stream.epoch.stored"], "needs Spark; struck in tests/kills"),
    **dict.fromkeys(
        ["taskmanager.move.before", "jobmaster.follow", "jobmaster.hand.over", "jobmaster.moved"],
        "only jobs whose subtasks move pass it; struck in tests/simulation/test_simulation_rescaling.py",
    ),
}
"""Failpoints that no simulated job passes, and where they are struck instead."""
STRUCK = sorted(failpoints.KNOWN.keys() - ELSEWHERE.keys())
FATES = ("master", "replace", "stop")
"""Events that end a life."""
SAVEPOINTS = ("process.copy", "jobmaster.savepoint.before")
"""Failpoints of savepoints."""

PARTS = (
    (("put",), "sources/"),
    (("put",), "dstl/"),
    (("put",), "gathered/"),
    (("put",), "staging/"),
    (("create", "get"), "journal/"),
    (("put", "get", "list", "create", "delete"), ""),
)
"""Parts of the store that may be away, with the operations that they refuse meanwhile."""
OUTAGE_TIMEOUT_S = 30.0
LISTED_EVERY = 5
"""One seed in so many has subtasks that keep lists."""
OUTAGES_APART_S = 15.0
"""Time for whatever waits to be tried again, and to succeed, before the next outage."""
OUTAGE_S_LONG = 5 * OUTAGE_TIMEOUT_S
SLOWER = 100.0
"""Factor by which a slow request takes longer."""
ROWS_OVER_S_LONG = 60.0
"""Rows come for that long where there are several outages, so that each of them meets something to do."""


@dataclass(frozen=True)
class Event:
    """Number of the hit of a failpoint, counted from the start of the life: of `at`, or of any failpoint if that is
    None.
    """

    hit: int
    action: str
    """crash: the process that is there; kill: a TaskManager; master: the JobMaster; replace: it stands still, a next
    one takes over, and it goes on; still: the process that is there stands still for a while; stop: orderly;
    hang: the next call to a sender or TaskManager that can, until its process is ended; storm: they die again and
    again, soon after they start; fail: the next step of a batch or checkpoint that can; checkpoint: one is asked for;
    failover: the job goes back to its newest checkpoint; savepoint: one is taken; update: settings change;
    clean: somebody runs `holdfast gc`; rescale: another number of TaskManagers is asked for; notice: the
    machine of a process is to go; executor: an executor goes."""
    task_manager: int = 0
    at: str | None = None


@dataclass(frozen=True)
class Outage:
    """A time, counted from the start of a life, in which a part of the store refuses some operations."""

    after_s: float
    for_s: float
    operations: tuple[str, ...]
    folder: str
    """The part: all names that begin with these letters."""


@dataclass(frozen=True)
class Life:
    """A start of the job, until it ends or something happens to its JobMaster."""

    parallelism: int
    task_managers: int
    rows_per_batch: int
    batch_every_s: float
    to_end: bool
    """True: the life ends when it has processed all rows of its start. False: it goes on until it is stopped."""
    checkpoint_every_s: float
    checkpoint_timeout_s: float
    max_concurrent: int
    log_handles_max: int
    materialization_interval_s: float
    object_bytes_max: int
    preempt_bytes_max: int
    upload_attempts_max: int
    upload_timeout_s: float | None
    changelog: bool
    cache_entries: int | None
    """Bound on the entries of RocksDB's cache; None: no RocksDB."""
    local_recovery: bool
    events: tuple[Event, ...]
    partitioned: bool = False
    """True: files are in folders, one for each key."""
    senders: int = 0
    """How many stay; 0: a task for each unit."""
    heartbeat_timeout_s: float = 30.0
    restarts_max: int = 10
    losses_max: int = 10
    standby: int = 0
    standby_state: bool = False
    by_follower: bool = False
    """True: standbys that follow materialize the tables."""
    on_loss: str = "rewind"
    call_timeout_s: float = 600.0
    outages: tuple[Outage, ...] = ()
    outage_timeout_s: float = 600.0
    retained: int = 1
    goes_back: str | None = None
    """Back to a retained checkpoint ("retained") or to a savepoint of the same storage ("claim"), if there is one."""
    logs_at: str | None = None
    """Storage for logs; None: the job's own."""
    tables_at: tuple[str, ...] = ()
    """Storages for materialized tables; empty: the job's own."""
    saves_at_start: bool = False
    """True: a savepoint is asked for at once, before the start has a checkpoint of its own."""

    @property
    def has_remote_apply(self) -> bool:
        """True if a standby materializes the tables."""
        return self.by_follower and self.standby > 0 and self.standby_state and self.changelog

    @property
    def gathered_bytes(self) -> int:
        """Bytes up to which new logs and the manifest travel: many, none, or too few for most. Not drawn apart, so that
        seeds stay the same."""
        return (64_000, 0, 1_500)[(self.rows_per_batch + len(self.events)) % 3]

    @property
    def pieces_max(self) -> int:
        """Pieces at which a log is merged: few in some lives. Not drawn apart, so that seeds stay the same."""
        return self.log_handles_max if self.log_handles_max <= 2 else (4, 6, 64)[self.rows_per_batch % 3]

    @property
    def adjusts_object_size(self) -> bool:
        """True if the size of objects follows the store. Not drawn apart, so that seeds stay the same."""
        return bool((self.rows_per_batch + self.parallelism) % 2)

    @property
    def outlasted(self) -> bool:
        """True if the store is away for longer than a query waits for it."""
        return self.is_outlasted_by(self.outages)

    def is_outlasted_by(self, outages: Iterable[Outage]) -> bool:
        """True if one of the outages takes longer than a query of this life waits."""
        return any(each.for_s > self.outage_timeout_s for each in outages)

    def is_outlasted_untried(self, outages: Iterable[Outage]) -> bool:
        """True if a step that is not tried between the outages takes them for a single outage that is too long."""
        return sum(each.for_s + UNTRIED_S_MAX for each in outages) - UNTRIED_S_MAX > self.outage_timeout_s

    @property
    def has_storm(self) -> bool:
        """True if TaskManagers die again and again in this life."""
        return any(each.action == "storm" for each in self.events)

    def uploads_outlast_checkpoints(self, around: "Surroundings") -> bool:
        """True if checkpoints time out again and again where the store takes long for some uploads.

        A second attempt overtakes a slow first, so only very short checkpoints have no time for it.
        """
        slowest_s = max(around.late_s, SLOWER * around.delay_s)
        longest_s = slowest_s if self.upload_attempts_max == 1 else 1.0
        return self.checkpoint_timeout_s < longest_s


@dataclass(frozen=True)
class Surroundings:
    """How the store, the network and the scheduler behave until all is calm."""

    faults: float
    delay_s: float
    slow: float
    late_s: float
    network_delay_s: float
    lost: float
    doubled: float
    preemption: float
    clock_jumps: bool


@dataclass(frozen=True)
class Settings:
    """Everything that is drawn from a seed; printed with it."""

    seed: int
    rows: int
    rows_over_s: float
    """Seconds until all rows are there."""
    splits: int
    keys: int
    emit: str
    chained: bool
    passed_through: bool
    marked: bool
    """True: the job has an operator whose entries come and go."""
    windowed: str | None
    """The job has windows of that kind (`simulation_windows.KINDS`)."""
    joined: str | None
    """The job has a join of that kind (`simulation_joins.KINDS`)."""
    ruled: bool
    """True: the job has an operator with a broadcast state."""
    skew_s: float | None
    """Bound in seconds by which a source may be ahead in event time; None: no bound."""
    sinks: dict[str, str]
    inline_bytes_max: int
    callback_errors: float
    callback_s: float
    around: Surroundings
    lives: tuple[Life, ...]
    gather_bytes_max: int
    portion_bytes_max: int
    listed: bool = False
    """True: the job has an operator whose subtasks keep lists."""
    refusals: int = 0
    """Number of times the source and an operator refuse a cut at a place; some places are never refused."""
    copies_max: int = 4
    """Objects of a savepoint that a process copies side by side."""

    @property
    def elsewhere(self) -> bool:
        """True: objects of some life lie in other storages than the job's own."""
        return any(life.logs_at or life.tables_at for life in self.lives)

    @property
    def apart(self) -> bool:
        """True: the right side of the join has a source of its own, whose rows are there earlier."""
        return self.joined is not None and self.skew_s is not None

    @property
    def bounds(self) -> dict[str, int]:
        """Bounds of Holdfast's modules, by their names. In every other seed, changes that wait in tables are collected
        ahead of a cut when they have a few hundred bytes."""
        return {
            "holdfast.sinks.staging.INLINE_BYTES_MAX": self.inline_bytes_max,
            "holdfast.sinks.staging.PORTION_BYTES_MAX": self.portion_bytes_max,
            "holdfast.checkpoint.ledger.GATHER_BYTES_MAX": self.gather_bytes_max,
            "holdfast.storage.copying.COPIES_MAX": self.copies_max,
            "holdfast.uploads.uploader.COLLECT_DIVISOR": (2, 200_000)[self.seed % 2],
        }


def draw(seed: int) -> Settings:
    """Seeds take turns with failpoints: at each a process is to crash."""
    rng = random.Random(seed)
    strike = STRUCK[seed % len(STRUCK)]
    kinds = ["memory", "callback", "callback", "parquet"]
    sinks = {name: rng.choice(kinds) for name in ("counts", "levels", "raw")}
    inline_bytes_max = rng.choice([0, 0, 8192])
    if strike.startswith("sink."):
        sinks = dict.fromkeys(sinks, "parquet" if strike.startswith("sink.parquet") else "callback")
        inline_bytes_max = 0
    rows = rng.choice([40, 120, 300])
    outputs = random.Random(f"outputs of {seed}")
    processes = random.Random(f"processes of {seed}")
    windows = random.Random(f"windows of {seed}")
    joins = random.Random(f"joins of {seed}")
    storms = random.Random(f"storms of {seed}")
    refusals, absences = random.Random(f"refusals of {seed}"), random.Random(f"outages of {seed}")
    recoveries = random.Random(f"recoveries of {seed}")
    gather_bytes_max = 0 if strike.startswith("jobmaster.gather") else outputs.choice([0, 300, 2_000, 1 << 20])
    windowed = windows.choice([None, None, "tumbling", "sliding", "session"])
    timed = joins.choice([None] * 5 + [*JOINS, LATE]) if windowed is None else windowed
    settings = Settings(
        seed=seed,
        rows=rows,
        rows_over_s=rng.choice([0.0, 1.0, 3.0]),
        splits=rng.choice([1, 1, 2, 3]),
        keys=rng.choice([1, 7, 60]),
        emit=rng.choice(["every", "changes"]),
        chained=rng.random() < 0.15,
        passed_through=rng.random() < 0.15,
        marked=rng.random() < 0.15,
        windowed=None if timed in JOINS else timed,
        joined=timed if timed in JOINS else None,
        ruled=random.Random(f"broadcast of {seed}").random() < 0.12,
        skew_s=None if timed is None else joins.choice([None, 3.0, 20.0]),
        sinks={**sinks, **dict.fromkeys(("windows", "late", "joined", "ruled"), sinks["counts"])},
        inline_bytes_max=inline_bytes_max,
        callback_errors=rng.choice([0.0, 0.3]),
        callback_s=rng.choice([0.0, 0.0, 3.0]),
        around=_surroundings(rng),
        lives=tuple(
            replace(
                life,
                partitioned=outputs.random() < 0.3,
                senders=max(int(strike.startswith("sender.")), processes.choice([0, 1, 2, 3])),
                heartbeat_timeout_s=processes.choice([30.0, 30.0, 5.0]),
                **_storm(storms, life),
                outages=_outages(absences),
                outage_timeout_s=OUTAGE_TIMEOUT_S,
                standby=recoveries.choice([0, 0, 1]),
                on_loss=recoveries.choice([*["rewind"] * 5, "restart"]),
            )
            for life in _lives(rng, rows, strike)
        ),
        gather_bytes_max=gather_bytes_max,
        portion_bytes_max=outputs.choice([1, 1 << 26]),
        listed=seed % LISTED_EVERY == LISTED_EVERY - 1,
        refusals=refusals.choice([0, 0, 0, 1, 4]),
    )
    settings = _some_followed(settings, random.Random(f"followers of {seed}"))
    several = any(len(life.outages) > 1 for life in settings.lives)
    return replace(settings, rows_over_s=ROWS_OVER_S_LONG) if several else settings


def dropping(seed: int) -> Settings:
    """A life whose TaskManagers die here and there, while the others go on without them."""
    rng = random.Random(f"drops of {seed}")
    parallelism = rng.choice([2, 3, 4])
    task_managers = rng.randint(2, min(3, parallelism))
    drawn = draw(seed)
    kills = [Event(_moment(rng), rng.choice(["kill", "kill", "crash"]), rng.randrange(task_managers)) for _ in range(3)]
    life = replace(
        drawn.lives[-1],
        parallelism=parallelism,
        task_managers=task_managers,
        standby=rng.choice([0, 1]),
        on_loss="drop",
        to_end=False,
        events=tuple(sorted((replace(each, at=_of_task_managers(rng)) for each in kills), key=lambda each: each.hit)),
        outages=(),
        call_timeout_s=600.0,
        losses_max=10,
        restarts_max=10,
        cache_entries=None,
    )
    alone = {"chained": False, "passed_through": False, "marked": False, "ruled": False, "listed": False}
    return replace(drawn, lives=(life,), rows_over_s=3.0, windowed=None, joined=None, skew_s=None, **alone)


def following(seed: int) -> Settings:
    """Lives with a standby that follows, whose TaskManagers and JobMaster die here and there."""
    rng = random.Random(f"followers of {seed}")
    drawn = draw(seed)
    lives = tuple(replace(life, standby=rng.choice([1, 1, 2]), standby_state=True) for life in drawn.lives)
    return _some_by_follower(replace(drawn, lives=lives))


def remote_apply(seed: int) -> Settings:
    """The lives of `following`, in which standbys materialize tables all the time."""
    drawn = following(seed)
    often = {"by_follower": True, "changelog": True, "log_handles_max": 1 + seed % 2, "materialization_interval_s": 0.5}
    lives = tuple(replace(life, **often) for life in drawn.lives)
    return replace(drawn, lives=lives, rows=max(200, drawn.rows), rows_over_s=max(6.0, drawn.rows_over_s))


def _some_followed(settings: Settings, rng: random.Random) -> Settings:
    """The same lives, of which some have standbys that follow, or objects in other storages than the job's own."""
    lying = zip(settings.lives, storages(settings.seed, len(settings.lives)), strict=True)
    lives = tuple(replace(life, standby_state=rng.random() < 0.6, **each) for life, each in lying)
    return _some_by_follower(replace(settings, lives=lives))


def _some_by_follower(settings: Settings) -> Settings:
    """The same lives, of which some have followers that materialize."""
    rng = random.Random(f"materialized by followers of {settings.seed}")
    return replace(settings, lives=tuple(replace(each, by_follower=rng.random() < 0.7) for each in settings.lives))


def _of_task_managers(rng: random.Random) -> str:
    return rng.choice([name for name in STRUCK if name.startswith("taskmanager.")])


def keeping(seed: int) -> Settings:
    """The same as `draw`, but checkpoints are retained, savepoints taken and settings changed; some starts go back.

    Without joins and late rows, whose output may differ where rows are processed anew.
    """
    rng = random.Random(f"savepoints of {seed}")
    drawn = draw(seed)
    lives = tuple(_keeping(rng, life) for life in drawn.lives)
    windowed = None if drawn.windowed == LATE else drawn.windowed
    over_s = max(3.0, drawn.rows_over_s)
    return replace(drawn, lives=lives, rows=300, rows_over_s=over_s, windowed=windowed, joined=None)


def _keeping(rng: random.Random, life: Life) -> Life:
    """The same life, which goes on for long enough that there are some checkpoints."""
    later = [replace(each, hit=each.hit + 250) if each.action in FATES else each for each in life.events]
    actions = [*["savepoint"] * 3, *["update"] * rng.choice([0, 1, 2])]
    events = [*later, *(Event(rng.randint(30, 250), action) for action in actions)]
    events += [Event(rng.choice([1, 2]), "crash", at=place) for place in SAVEPOINTS if rng.random() < 0.1]
    return replace(
        life,
        events=tuple(sorted(events, key=lambda event: event.hit)),
        retained=rng.choice([1, 2, 4, 4]),
        goes_back=rng.choice([None, "retained", "claim"]),
    )


def _storm(rng: random.Random, life: Life) -> dict[str, Any]:
    """Some lives have calls that hang and TaskManagers that keep dying, against budgets that may be small."""
    actions = [action for action in ("hang", "hang", "storm") if rng.random() < 0.15]
    if not actions:
        return {}
    events = [*life.events, *(Event(_moment(rng), action) for action in actions)]
    return {
        "events": tuple(sorted(events, key=lambda event: event.hit)),
        "restarts_max": rng.choice([3, 10]),
        "losses_max": rng.choice([3, 10]),
        "call_timeout_s": rng.choice([2.0, 20.0]),
    }


def _surroundings(rng: random.Random) -> Surroundings:
    return Surroundings(
        faults=rng.choice([0.0, 0.0, 0.03, 0.1]),
        delay_s=rng.choice([0.0, 0.01, 0.05]),
        slow=rng.choice([0.0, 0.03]),
        late_s=rng.choice([0.3, 2.0, 8.0]),
        network_delay_s=rng.choice([0.0, 0.002, 0.05]),
        lost=rng.choice([0.0, 0.0, 0.01]),
        doubled=rng.choice([0.0, 0.3]),
        preemption=rng.choice([0.0, 0.02, 0.2]),
        clock_jumps=rng.random() < 0.2,
    )


def _lives(rng: random.Random, rows: int, strike: str) -> Sequence[Life]:
    fates = [rng.choice(["master", "replace", "stop", None]) for _ in range(rng.choice([0, 1, 1, 2]))]
    return [
        _life(rng, rows, fate, strike if number == 0 else None, last=number == len(fates))
        for number, fate in enumerate([*fates, None])
    ]


def _life(rng: random.Random, rows: int, fate: str | None, strike: str | None, last: bool) -> Life:
    parallelism = rng.choice([1, 1, 2, 2, 3])
    task_managers = rng.randint(1, min(3, parallelism))
    actions = ["kill", "crash", "still", "fail", "fail", "checkpoint"]
    events = [
        Event(_moment(rng), rng.choice(actions), rng.randrange(task_managers)) for _ in range(rng.choice([0, 1, 2, 3]))
    ]
    events += [Event(rng.randint(30, 250), "failover") for _ in range(rng.choice([0, 0, 1, 3]))]
    if fate is not None:
        events.append(Event(_moment(rng), fate))
    if strike is not None:
        events.append(Event(rng.choice([1, 1, 2, 5]), "crash", at=strike))
    return Life(
        parallelism=parallelism,
        task_managers=task_managers,
        rows_per_batch=max(5, rows // rng.choice([2, 4, 8])),
        batch_every_s=rng.choice([0.0, 0.3, 0.6, 1.0]),
        to_end=not last and rng.random() < 0.3,
        checkpoint_every_s=rng.choice([0.2, 0.5, 2.0]),
        checkpoint_timeout_s=rng.choice([0.5, 3.0, 600.0]),
        max_concurrent=rng.choice([1, 1, 2, 3]),
        log_handles_max=rng.choice([1, 2, 64]),
        materialization_interval_s=rng.choice([0.5, 3.0, 600.0]),
        object_bytes_max=rng.choice([400, 8_000_000]),
        preempt_bytes_max=rng.choice([200, 5_000_000]),
        upload_attempts_max=rng.choice([1, 3, 5]),
        upload_timeout_s=rng.choice([None, 0.03, 1.0]),
        changelog=rng.random() < 0.85,
        cache_entries=rng.choice([0, 3]) if rng.random() < 0.1 else None,
        local_recovery=rng.random() < 0.2,
        events=tuple(sorted(events, key=lambda event: event.hit)),
    )


def _outages(rng: random.Random) -> tuple[Outage, ...]:
    """Draw no outage; or a few, together longer than a query would outlast at once; or a single, too long outage."""
    kind = rng.choices(["none", "short", "long"], [8, 1, 1])[0]
    if kind == "none":
        return ()
    operations, folder = rng.choice(PARTS)
    after_s = rng.uniform(0.0, 3.0)
    if kind == "long":
        return (Outage(after_s, OUTAGE_S_LONG, operations, folder),)
    outages = []
    for _ in range(rng.choice([1, 3])):
        outages.append(Outage(after_s, OUTAGE_TIMEOUT_S * rng.uniform(0.1, 0.6), operations, folder))
        after_s += outages[-1].for_s + OUTAGES_APART_S
    return tuple(outages)


def _moment(rng: random.Random) -> int:
    return rng.randint(1, rng.choice([12, 60, 250]))
