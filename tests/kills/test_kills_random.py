"""Kills at random: drivers and TaskManagers of real Spark, at any time or at failpoints, jobs of any shape.

    HOLDFAST_SEED=<seed> HOLDFAST_KILLS=<at least so many> make test-long

The seed is printed. It fixes shapes, failpoints and who is killed after how long; processes run as fast as they do.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from kills_pipelines import check, random_shape
from kills_processes import DriverProcess

from holdfast import failpoints
from waiting import until

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(7200)]

JOBS = 2
POINTS = 4
KILLS_MAX = 10
"""Kills in a round, at any time; kills at failpoints come on top."""
STARTS_MAX = 30
PATIENCE_S = 900.0
GAVE_UP = "restarts in a row without a batch"
"""Errors of a driver that had no time for a single batch: the next driver goes on."""


def test_a_hundred_kills_lose_nothing_and_repeat_nothing(tmp_path):
    seed = os.environ.get("HOLDFAST_SEED") or str(random.randrange(10**9))
    wanted = int(os.environ.get("HOLDFAST_KILLS", "100"))
    print(f"HOLDFAST_SEED={seed}, at least {wanted} kills")
    kills = rounds = 0
    while kills < wanted:
        begun_s = time.monotonic()
        found = one_round(f"{seed}/{rounds}", tmp_path / str(rounds))
        kills, rounds = kills + found, rounds + 1
        print(f"round {rounds}: {found} kills in {time.monotonic() - begun_s:.0f} s, {kills} so far", flush=True)


def one_round(seed: str, folder: Path) -> int:
    """Run the jobs of a driver, killed until they are done; return the number of kills."""
    rng = random.Random(seed)
    markers = folder / "killed"
    markers.mkdir(parents=True)
    jobs = {folder / f"job-{number}": random_shape(rng, rows=12_000, batches=40) for number in range(JOBS)}
    hits = {point: rng.randint(1, 6) for point in rng.sample(sorted(failpoints.KNOWN), POINTS)}
    armed = {point: f"kill:{markers / point}@{hit}" for point, hit in hits.items()}
    print(f"round {seed}: {list(jobs.values())}, failpoints {hits}", flush=True)
    kills = 0
    for start in range(STARTS_MAX):
        with DriverProcess(folder, jobs, armed=armed, name=f"driver-{start}") as driver:
            kills += _torment(driver, rng, KILLS_MAX - kills)
            code = driver.wait(PATIENCE_S)
            assert code in (0, -signal.SIGKILL) or driver.says(GAVE_UP), driver.text()
            if code == 0:
                break
    else:
        raise AssertionError(f"not done after {STARTS_MAX} starts: {driver.text()}")
    for at, shape in jobs.items():
        check(shape, at)
    return kills + len(list(markers.iterdir()))


def _torment(driver: DriverProcess, rng: random.Random, kills_max: int) -> int:
    """Kill the driver or its TaskManagers from time to time, until it has ended or has had enough."""
    begun = rng.choice(["session", *3 * ["started 0"], *3 * ["started 1"]])
    until(lambda: driver.ended or driver.says(begun), driver.text, PATIENCE_S)
    kills = 0
    while not driver.ended and kills < kills_max:
        due_s = time.monotonic() + rng.uniform(0.2, 6.0)
        until(lambda due_s=due_s: driver.ended or time.monotonic() > due_s, driver.text)
        if driver.ended:
            break
        if rng.random() < 0.2:
            print(f"  killed the driver after {driver.last_line()!r}", flush=True)
            driver.kill()
            return kills + 1
        if driver.kill_task_manager(rng) is not None:
            print("  killed a TaskManager", flush=True)
            kills += 1
    return kills
