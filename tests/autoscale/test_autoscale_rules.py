"""The autoscaler finds the right number in a few steps, stays there, and says why."""

import random

import pytest
from autoscale_world import JobWorld

from holdfast.autoscale import rules
from holdfast.autoscale.applying import AdviceApplied
from holdfast.autoscale.rules import Advice, AutoscaleRules, BatchFacts
from holdfast.autoscale.settings import Autoscale
from holdfast.autoscale.work import SubtaskWork
from holdfast.errors import SettingsError
from sampling import some

SETTINGS = Autoscale(max_task_managers=16, cooldown="2min")
HOUR_S = 3600.0

SCENARIOS = """
# TaskManagers | rows/s | busy ms of each second's batch | of it process ms | lag rows | advice
2 |  1000 |  300 |  200 |      0 | 2 -> 1: 1,000 rows/s take 30% of the time
4 |  1000 |  300 |  200 |      0 | 4 -> 2: 1,000 rows/s take 30% of the time
2 |  1000 |  900 |  800 |      0 | 2 -> 3: 1,000 rows/s take 90% of the time
3 |  1000 |  500 |  400 |      0 | 3 -> 3: 1,000 rows/s take 50% of the time
2 |  1000 |  720 |  600 |      0 | 2 -> 2: 1,000 rows/s take 72% of the time
2 |  1000 |  600 |  500 | 120000 | 2 -> 5: 2,000 rows/s take 120% of the time
8 |     0 |    0 |    0 |      0 | 8 -> 1: no rows come
2 | 10000 | 1000 |  980 | 9000000 | 2 -> 16: 85,000 rows/s take 850% of the time, and at most 16 are allowed
2 |  1000 |  950 |  100 |      0 | 2 -> 2: 1,000 rows/s take 95% of the time; 89% of it is planning
"""


@pytest.mark.parametrize("line", [each for each in SCENARIOS.strip().splitlines() if not each.startswith("#")])
def test_scenario(line):
    now, rate, busy_ms, process_ms, lag, expected = (each.strip() for each in line.split("|"))
    made = AutoscaleRules(SETTINGS)
    for second in range(61):
        made.handle(BatchFacts(second, int(rate), int(busy_ms) / 1e3, int(process_ms) / 1e3, int(lag), int(now)))
    assert made.advice is not None
    told = f"{made.advice.now} -> {made.advice.task_managers}: {made.advice.why}"
    assert told.startswith(expected), told


@pytest.mark.parametrize("seed", some(range(12), *range(4)))
def test_after_any_change_of_the_load_a_few_steps_lead_to_a_number_that_stays(seed):
    drawn = random.Random(seed)
    rates: list[float] = []
    job = JobWorld(
        SETTINGS,
        lambda at_s: rates[min(3, int(at_s // HOUR_S))],
        row_us=drawn.uniform(50, 150),
        overhead=drawn.choice([0.0, 0.03, 0.1]),
        other_us=drawn.uniform(1, 4),
        seed=seed,
    )
    while len(rates) < 4:
        rate = drawn.uniform(500, 60_000)
        rates += [rate] if job.share(SETTINGS.max_task_managers, rate) < 0.5 else []
    for number, rate in enumerate(rates):
        before = len(job.changes)
        job.run((number + 1) * HOUR_S - job.now_s)
        steps = [count for _, count in job.changes[before:]]
        # A backlog from before takes more for a while; the way back from there is a single step.
        turns = sum(1 for a, b, c in zip(steps, steps[1:], steps[2:], strict=False) if (b - a) * (c - b) < 0)
        assert len(steps) <= 5 and turns <= 1, f"{rate:.0f} rows/s: {steps}"
        late = [at_s for at_s, _ in job.changes[before:] if at_s > number * HOUR_S + HOUR_S / 2]
        assert not late, f"changes at {late}, half an hour after the load changed"
        assert abs(job.task_managers - job.fitting(rate)) <= 2, (rate, steps, job.fitting(rate))
        assert job.lag < 3 * rate or job.task_managers == SETTINGS.max_task_managers


DIVIDED = """
# TaskManagers | work of each subtask | advice for 1,000 rows/s that take 950 ms of a second, 900 ms of it in subtasks
2 | 1 1 1 1 1 1 1 1  | 2 -> 4: 1,000 rows/s take 95% of the time
2 | 1 1              | 2 -> 2: 1,000 rows/s take 95% of the time; each operator has 2 subtasks
2 | 13 1 1 1 1 1 1 1 | 2 -> 4: 1,000 rows/s take 95% of the time; subtask 0 does 65% of the work of level 1
2 | 1 1 14 1         | 2 -> 2: 1,000 rows/s take 95% of the time; subtask 2 does 82% of the work of level 1
"""


@pytest.mark.parametrize("line", [each for each in DIVIDED.strip().splitlines() if not each.startswith("#")])
def test_more_task_managers_are_advised_only_as_far_as_the_busiest_of_them_gets_less_work(line):
    now, work, expected = (each.strip() for each in line.split("|"))
    made = AutoscaleRules(SETTINGS)
    for second in range(61):
        made.handle(BatchFacts(second, 1000, 0.95, 0.9, 0, int(now), {1: [float(each) for each in work.split()]}))
    assert made.advice is not None
    told = f"{made.advice.now} -> {made.advice.task_managers}: {made.advice.why}"
    assert told.startswith(expected), told


def test_the_busiest_of_each_level_counts_and_subtasks_of_an_earlier_parallelism_do_not():
    levels = {1: [3.0, 1.0], 2: [1.0, 1.0]}
    assert SubtaskWork([levels, levels]).ratio(2, 1) == pytest.approx((3 + 1) / (4 + 2))
    assert SubtaskWork([{1: [9.0, 1.0]}, {1: [1.0, 1.0, 1.0, 1.0]}]).ratio(4, 1) == pytest.approx(1 / 4)
    assert SubtaskWork([]).ratio(4, 2) == 0.5, "without facts work counts as even"


@pytest.mark.parametrize("seed", some(range(12), *range(4)))
def test_a_hot_key_sends_a_job_to_the_number_that_helps_in_three_steps_at_most(seed):
    drawn = random.Random(f"hot {seed}")
    shares = [drawn.uniform(0.5, 1.5) for _ in range(drawn.choice([6, 12, 16]))]
    shares[drawn.randrange(len(shares))] += drawn.uniform(0.5, 2.0) * len(shares)
    shares = [each / sum(shares) for each in shares]
    job = JobWorld(SETTINGS, lambda at_s: 9_000.0, row_us=90, overhead=0.0, other_us=2, seed=seed, shares=shares)
    job.run(HOUR_S)
    early = len(job.changes)
    job.run(4 * HOUR_S)
    assert len(job.changes) == early <= 3, job.changes
    best = job.share(SETTINGS.max_task_managers, 9_000.0)
    found = job.share(job.task_managers, 9_000.0)
    assert found <= max(SETTINGS.target * rules.UP_MARGIN, best / (1 - rules.GAIN_MIN) * 1.05), (found, best)
    if best > SETTINGS.target * rules.UP_MARGIN:
        assert job.task_managers < SETTINGS.max_task_managers, "the bound is asked for, though it helps nothing"


def test_a_steady_load_is_left_alone_after_it_was_met():
    job = JobWorld(SETTINGS, lambda at_s: 20_000.0, overhead=0.15, noise=0.2)
    job.run(HOUR_S)
    met = len(job.changes)
    job.run(6 * HOUR_S)
    assert len(job.changes) == met <= 3


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("begins_with", [1, 16], ids=["too few", "too many"])
def test_three_steps_lead_from_any_number_to_the_right_one_and_none_follows(seed, begins_with):
    """The load is steady, and nothing waits at the beginning: that is what DS2 promises its three steps for."""
    drawn = random.Random(f"steps {seed}")
    rate = drawn.uniform(2_000, 40_000)
    job = JobWorld(
        SETTINGS,
        lambda at_s: rate,
        row_us=drawn.uniform(20, 60),
        overhead=drawn.choice([0.0, 0.03, 0.1]),
        other_us=drawn.uniform(1, 4),
        task_managers=begins_with,
        seed=seed,
    )
    job.run(2 * HOUR_S)
    steps = [count for _, count in job.changes]
    assert len(steps) <= 3, steps
    assert abs(job.task_managers - job.fitting(rate)) <= 2, (rate, steps, job.fitting(rate))
    late = [at_s for at_s, _ in job.changes if at_s > HOUR_S]
    assert not late, f"changes at {late}: the number does not stay"


APPLIED = """
# time s | advice | now | under way | asked for
0   | none   | 2 | no  | none
0   | 2 -> 4 | 2 | no  | 4
1   | 2 -> 4 | 2 | yes | none
60  | 2 -> 4 | 2 | no  | none
130 | 2 -> 4 | 2 | no  | 4
131 | 2 -> 4 | 4 | no  | none
300 | 4 -> 3 | 4 | no  | 3
500 | 3 -> 9 | 3 | no  | 6
700 | 6 -> 9 | 6 | no  | none
"""


def test_advice_is_applied_once_after_a_failure_only_after_the_cooldown_and_never_beyond_the_subtasks():
    applied = AdviceApplied(SETTINGS)
    for line in APPLIED.strip().splitlines()[1:]:
        at_s, advice, now, under_way, expected = (each.strip() for each in line.split("|"))
        before, _, wanted = advice.partition(" -> ")
        made = None if advice == "none" else Advice(int(wanted), int(before), "")
        found = applied.due(made, int(now), 6, under_way == "yes", float(at_s))
        assert str(found).lower() == expected, line


def test_margins_that_overlap_send_a_job_up_and_down(monkeypatch):
    monkeypatch.setattr(rules, "DOWN_MARGIN", 1.3)
    job = JobWorld(SETTINGS, lambda at_s: 20_000.0, overhead=0.15)
    job.run(6 * HOUR_S)
    assert len(job.changes) > 20, "the simulation does not see it"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_task_managers": 0}, "max_task_managers=0"),
        ({"max_task_managers": 2, "min_task_managers": 3}, "max_task_managers=2"),
        ({"max_task_managers": 2, "target": 1.0}, "target=1.0"),
        ({"max_task_managers": 2, "cooldown": "0s"}, "cooldown='0s'"),
        ({"max_task_managers": 2, "apply": "yes"}, "apply='yes' is not allowed: True or False"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, words):
    with pytest.raises(SettingsError, match=words):
        Autoscale(**given)
