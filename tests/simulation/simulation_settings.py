"""What a seed draws: the shape of a job, its lives one after the other, and what happens in each."""

import random
from dataclasses import dataclass, field

MAX_PARALLELISM = 16


@dataclass(frozen=True)
class Event:
    """At that hit of a failpoint, of any, counted from the start of the life."""

    hit: int
    action: str
    """kill: a TaskManager; crash: the JobMaster; replace: it lives on beside the next one; stop: orderly;
    fail: the next step of a batch or checkpoint that can; land: requests that are late arrive; checkpoint: one is
    asked for."""
    task_manager: int = 0


@dataclass(frozen=True)
class Life:
    """One start of the job, until it ends or something happens to its JobMaster."""

    stop: int
    parallelism: int
    task_managers: int
    rows_per_batch: int
    checkpoint_every_s: float
    max_concurrent: int
    log_handles_max: int
    materialization_interval_s: float
    faults: float
    delay_s: float
    events: tuple[Event, ...] = ()
    rows_per_second: float | None = None


@dataclass(frozen=True)
class Settings:
    """Everything that is drawn from a seed; printed with it."""

    seed: int
    splits: int
    keys: int
    emit: str
    chained: bool
    passed_through: bool
    sinks: dict[str, str]
    inline_bytes_max: int
    callback_errors: float
    lives: list[Life] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.lives[-1].stop


def draw(seed: int) -> Settings:
    rng = random.Random(seed)
    kinds = ["memory", "callback", "parquet"]
    settings = Settings(
        seed=seed,
        splits=rng.choice([1, 1, 2, 3]),
        keys=rng.choice([1, 7, 60, 400]),
        emit=rng.choice(["every", "changes"]),
        chained=rng.random() < 0.4,
        passed_through=rng.random() < 0.3,
        sinks={name: rng.choice(kinds) for name in ("counts", "levels", "raw")},
        inline_bytes_max=rng.choice([0, 8192]),
        callback_errors=rng.choice([0.0, 0.3]),
    )
    rows = rng.choice([40, 300, 1200])
    faults = rng.choice([0.0, 0.0, 0.02, 0.08])
    delay_s = rng.choice([0.0, 0.0, 0.001])
    fates = [rng.choice(["crash", "crash", "replace", "stop"]) for _ in range(rng.choice([0, 1, 1, 2]))]
    for fate in [*fates, "end"]:
        settings.lives.append(_life(rng, rows, faults, delay_s, fate))
        if rng.random() < 0.3:
            rows += rng.randrange(200)
    return settings


def _life(rng: random.Random, rows: int, faults: float, delay_s: float, fate: str) -> Life:
    parallelism = rng.choice([1, 2, 2, 3, 5])
    task_managers = rng.randint(1, min(3, parallelism))
    events = [
        Event(_moment(rng), rng.choice(["kill", "fail", "fail", "land", "checkpoint"]), rng.randrange(task_managers))
        for _ in range(rng.choice([0, 1, 2, 3]))
    ]
    if fate != "end":
        events.append(Event(_moment(rng), fate))
    return Life(
        stop=rows,
        parallelism=parallelism,
        task_managers=task_managers,
        rows_per_batch=max(5, rows // rng.choice([2, 6, 15])),
        checkpoint_every_s=rng.choice([0.05, 0.3, 2.0]),
        max_concurrent=rng.choice([1, 1, 2]),
        log_handles_max=rng.choice([1, 2, 64]),
        materialization_interval_s=rng.choice([0.2, 600.0]),
        faults=faults,
        delay_s=delay_s,
        events=tuple(sorted(events, key=lambda event: event.hit)),
    )


def _moment(rng: random.Random) -> int:
    return rng.randint(1, rng.choice([12, 60, 250]))
