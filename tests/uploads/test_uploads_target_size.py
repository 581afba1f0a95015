"""The size at which objects of logs are split follows the store, stays within its bounds and does not oscillate."""

import itertools
import random
import string
from dataclasses import dataclass
from unittest import mock

import pyarrow as pa
import pytest

from changelog_kit import SCHEMA, ManualLog
from holdfast.settings import ChangelogConfig, SettingsError
from holdfast.uploads import target_size
from holdfast.uploads.target_size import BELOW_CAP, DEAD_BAND, LEARNED_EVERY, LOOKS_MIN, STEP_MAX, TargetSize

MIB = 1024 * 1024
CAP = 8 * MIB
AT_ONCE = 12
CALM_REVERSALS_MAX = 4
"""Changes of direction in 400 checkpoints of a store that stays as it is."""


@dataclass
class Store:
    """A store with a latency, a rate for each request, a rate for all of them, noise, and answers that are slow."""

    latency_s: float
    rate: float
    total_rate: float
    rng: random.Random
    noise: float = 0.3
    slow: float = 0.01

    def took_s(self, size_bytes: int, beside: int) -> float:
        rate = min(self.rate, self.total_rate / beside)
        factor = 10.0 if self.rng.random() < self.slow else 1.0
        return factor * self.rng.lognormvariate(0.0, self.noise) * (self.latency_s + size_bytes / rate)


def checkpoint(target: TargetSize, store: Store, size_bytes: int, *, learns: bool = True) -> tuple[int, float]:
    """Store a log and its manifest; return the number of requests, and how long they took."""
    split = target.split_at(size_bytes)
    parts = [split] * (size_bytes // split) + [size_bytes % split] * (size_bytes % split > 0)
    took_s = [store.took_s(part, min(len(parts), AT_ONCE)) for part in parts]
    for part, each_s in zip(parts, took_s, strict=True):
        if learns:
            target.stored(part, each_s)
    if len(parts) == 1:
        return 1, took_s[0]
    rounds = [max(took_s[at : at + AT_ONCE]) for at in range(0, len(took_s), AT_ONCE)]
    return len(parts) + 1, sum(rounds) + store.took_s(0, 1)


def ran(seed: int, checkpoints: int) -> tuple[Store, list[int]]:
    """Draw a store and a load, and return the target after each checkpoint."""
    rng = random.Random(seed)
    rate = 10 ** rng.uniform(6.5, 8.5)
    store = Store(10 ** rng.uniform(-2.5, -0.3), rate, rate * rng.choice([2.0, 8.0, 100.0]), rng)
    target, load, targets = TargetSize(CAP, AT_ONCE), 10 ** rng.uniform(6.5, 7.7), []
    for _ in range(checkpoints):
        checkpoint(target, store, int(load * rng.lognormvariate(0.0, 0.7)))
        targets.append(target.size_bytes)
    return store, targets


def reversals(targets: list[int]) -> int:
    steps = [b - a for a, b in itertools.pairwise(targets) if a != b]
    return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))


def does_not_oscillate(seed: int) -> None:
    store, targets = ran(seed, 600)
    assert min(targets) >= CAP // BELOW_CAP and max(targets) <= CAP
    assert reversals(targets[200:]) <= CALM_REVERSALS_MAX, (store, targets[200:])


@pytest.mark.parametrize("seed", range(8))
def test_the_target_settles_under_random_loads(seed: int) -> None:
    does_not_oscillate(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 300))
def test_the_target_settles_under_many_random_loads(seed: int) -> None:
    does_not_oscillate(seed)


@pytest.mark.parametrize(
    "broken", [{"DEAD_BAND": 1.0, "LOOKS_MIN": 1}, {"BELOW_CAP": 10_000}], ids=["moves at once", "has no least size"]
)
def test_a_broken_rule_is_found(broken: dict[str, float]) -> None:
    """The target oscillates without its damping, and runs away in a store of a shared rate without its bound."""
    with mock.patch.multiple(target_size, **broken), pytest.raises(AssertionError):
        for seed in range(40):
            does_not_oscillate(seed)


def settle(target: TargetSize, store: Store, checkpoints: int = 200) -> int:
    for number in range(checkpoints):
        checkpoint(target, store, (10 + number % 7) * MIB)
    return target.size_bytes


def test_the_target_nears_latency_times_rate_and_follows_a_store_that_changes() -> None:
    rng, target = random.Random(1), TargetSize(CAP, AT_ONCE)
    assert target.size_bytes == CAP
    quick = settle(target, Store(0.05, 70e6, 1e12, rng))
    assert 0.05 * 70e6 / DEAD_BAND <= quick <= 0.05 * 70e6 * DEAD_BAND
    assert settle(target, Store(0.5, 70e6, 1e12, rng)) >= CAP / DEAD_BAND, "a far store gets fewer, larger requests"
    assert settle(target, Store(0.002, 70e6, 1e12, rng)) <= CAP // BELOW_CAP * STEP_MAX, "never smaller than the bound"


def mean(target: TargetSize, store: Store, logs: list[int], *, learns: bool) -> tuple[float, float]:
    made = [checkpoint(target, store, size, learns=learns) for size in logs]
    return sum(requests for requests, _ in made) / len(made), sum(took_s for _, took_s in made) / len(made)


@pytest.mark.parametrize(("latency_s", "rate", "share"), [(0.02, 40e6, 0.7), (0.05, 70e6, 0.95), (0.5, 70e6, 1.02)])
def test_checkpoints_with_large_logs_end_sooner(latency_s: float, rate: float, share: float) -> None:
    drawn, found = random.Random(3), []
    logs = [drawn.randint(4, 40) * MIB for _ in range(400)]
    for learns in (True, False):
        target, store = TargetSize(CAP, AT_ONCE), Store(latency_s, rate, 1e12, random.Random(2), noise=0.1, slow=0.0)
        mean(target, store, logs, learns=learns)
        found.append(mean(target, store, logs, learns=learns))
    (requests, took_s), (fixed_requests, fixed_s) = found
    assert took_s <= share * fixed_s, (took_s, fixed_s)
    assert requests <= BELOW_CAP * fixed_requests


def test_sizes_that_are_alike_and_slow_answers_move_nothing() -> None:
    target = TargetSize(CAP, AT_ONCE)
    for number in range(500):
        target.stored(CAP, 10.0 if number % 50 == 0 else 0.1)
    assert target.size_bytes == CAP


def test_a_log_is_whole_up_to_twice_the_target_and_has_no_more_parts_than_go_at_once() -> None:
    target = TargetSize(CAP, AT_ONCE)
    for number in range(2000):
        size = (1 + number % 4) * MIB
        target.stored(size, 0.001 + size / 10e6)
    assert target.size_bytes == CAP // BELOW_CAP
    assert target.split_at(2 * target.size_bytes) == CAP
    assert target.split_at(2 * target.size_bytes + 1) == target.size_bytes
    assert target.split_at(60 * MIB) == 5 * MIB
    assert target.split_at(1000 * MIB) == CAP


LOG_CAP, AHEAD = 40_000, 34_000


def rows(size_bytes: int) -> pa.RecordBatch:
    """Make changes in four key groups that cannot be compressed."""
    rng = random.Random(size_bytes)
    text = ["".join(rng.choices(string.printable, k=size_bytes // 4)) for _ in range(4)]
    made = [{"__key_group": group, "__deleted": False, "k": text[group], "n": group} for group in range(4)]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def stored(world: ManualLog, batch: int, size_bytes: int) -> int:
    """Store the changes of a batch at a cut, at 1 ms and 1 MB a second; return the number of objects."""
    world.took_s = [0.001 + size_bytes / 1e6] * 8
    world.writer.append(batch, rows(size_bytes))
    return len({piece.object for piece in world.persisted(batch, world.writer.next_sqn() - 1)})


def taught(**settings: bool) -> ManualLog:
    world = ManualLog(object_bytes_max=LOG_CAP, preempt_bytes_max=AHEAD, **settings)
    batches = LEARNED_EVERY * (LOOKS_MIN + 8)
    assert {stored(world, batch, 4_000 if batch % 2 else 16_000) for batch in range(batches)} == {1}
    return world


def test_an_uploader_divides_the_logs_of_a_cut_as_its_store_answers() -> None:
    world = taught(adjust_object_size=True)
    assert world.metric("uploadTargetSize") == LOG_CAP // BELOW_CAP
    assert stored(world, 1000, 33_000) == 4
    assert stored(world, 1001, AHEAD + 500) == 1, "uploads ahead of a cut are not divided"


def test_an_uploader_that_does_not_adjust_divides_at_its_bound() -> None:
    world = taught()
    assert world.metric("uploadTargetSize") == LOG_CAP
    assert stored(world, 1000, 33_000) == 1


def test_the_switch_is_refused_unless_it_is_a_bool() -> None:
    with pytest.raises(SettingsError, match="adjust_object_size='no': allowed is True or False"):
        ChangelogConfig(adjust_object_size="no")  # type: ignore[arg-type]
