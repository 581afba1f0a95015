"""Small jobs in calm weather that keep checkpoints beside the newest: a seed takes a second, not a minute.

Whatever could hide a broken rule of keeping checkpoints is left out: faults, and objects that are copied side by side,
all of them read before anything can go. Sinks are slow, so that output waits at the end of each life.
"""

import random
from dataclasses import replace

from simulation_settings import Event, Life, Settings, Surroundings, draw

CALM = Surroundings(
    faults=0.0,
    delay_s=0.01,
    slow=0.0,
    late_s=0.3,
    network_delay_s=0.0,
    lost=0.0,
    doubled=0.0,
    preemption=0.0,
    clock_jumps=False,
)
LIVES = 3


def calm(seed: int) -> Settings:
    """Draw a few starts of a job with a single operator; the next start may go back, or begin with a savepoint."""
    rng = random.Random(f"calm {seed}")
    lives = tuple(_life(rng, last=number == LIVES - 1) for number in range(LIVES))
    drawn = draw(seed)
    return replace(
        drawn,
        rows=60,
        rows_over_s=6.0,
        splits=1,
        keys=7,
        emit="every",
        chained=False,
        passed_through=False,
        marked=False,
        windowed=None,
        joined=None,
        ruled=False,
        listed=False,
        skew_s=None,
        sinks=dict.fromkeys(drawn.sinks, "callback"),
        callback_errors=0.0,
        callback_s=rng.choice([0.0, 3.0]),
        around=CALM,
        lives=lives,
        refusals=0,
        copies_max=1,
    )


def _life(rng: random.Random, *, last: bool) -> Life:
    actions = ["savepoint", "clean", "clean", *rng.choice([[], ["update", "failover"]])]
    events = [Event(rng.randint(40, 200), action) for action in actions]
    if not last:
        events.append(Event(rng.randint(150, 250), rng.choice(["master", "stop"])))
    return Life(
        parallelism=1,
        task_managers=1,
        rows_per_batch=10,
        batch_every_s=0.3,
        to_end=False,
        checkpoint_every_s=0.2,
        checkpoint_timeout_s=600.0,
        max_concurrent=1,
        log_handles_max=2,
        materialization_interval_s=0.5,
        object_bytes_max=8_000_000,
        preempt_bytes_max=5_000_000,
        upload_attempts_max=3,
        upload_timeout_s=None,
        changelog=True,
        cache_entries=None,
        local_recovery=False,
        events=tuple(sorted(events, key=lambda event: event.hit)),
        retained=rng.choice([1, 1, 4]),
        goes_back=rng.choice([None, "retained", "claim"]),
        saves_at_start=rng.random() < 0.5,
    )
