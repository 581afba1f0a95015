"""Standbys follow places evenly and with few moves, and the one that has the state of a place takes it."""

import random

from holdfast.execution.places import Places, assign, choose


def test_a_free_place_goes_to_the_standby_that_has_its_state():
    before = Places((0, 1), {0: 1, 1: 2})
    serving = {0: 1, 2: 3, 3: 4}
    assert choose(2, before, serving) == Places((0, 2), {0: 1, 2: 3})
    assert choose(2, before, serving, {0: 2, 1: 3}) == Places((0, 3), {0: 1, 3: 4})


def test_a_standby_that_has_the_state_of_two_free_places_takes_the_first_and_anybody_the_other():
    before = Places((0, 1), {0: 1, 1: 2})
    assert choose(2, before, {2: 3, 3: 4}, {0: 3, 1: 3}) == Places((3, 2), {2: 3, 3: 4})


def test_a_standby_that_is_gone_is_passed_over():
    before = Places((0, 1), {0: 1, 1: 2})
    assert choose(2, before, {0: 1, 2: 3}, {1: 3}) == Places((0, 2), {0: 1, 2: 3})
    assert choose(2, before, {0: 1}, {1: 3}) is None


def test_places_are_followed_evenly_and_stay_with_their_standby_as_far_as_that_allows():
    rng = random.Random(1)
    assigned: dict[int, int] = {}
    for _ in range(300):
        places, standbys = range(rng.randint(1, 7)), rng.sample(range(20), rng.randint(0, 5))
        before, assigned = assigned, assign(places, assigned, standbys)
        assert set(assigned) == (set(places) if standbys else set())
        loads = [list(assigned.values()).count(each) for each in standbys]
        assert not loads or max(loads) - min(loads) <= 1
        assert assign(places, assigned, standbys) == assigned
        kept = [place for place in assigned if before.get(place) == assigned[place]]
        could = [place for place in places if before.get(place) in standbys]
        assert len(kept) >= min(len(could), len(standbys) and len(places) // len(standbys))


def test_a_further_standby_takes_over_some_places_and_leaves_the_others():
    assert assign(range(4), {}, [5]) == dict.fromkeys(range(4), 5)
    assert assign(range(4), dict.fromkeys(range(4), 5), [5, 6]) == {0: 5, 1: 5, 2: 6, 3: 6}
    assert assign(range(2), {0: 7, 1: 5}, [5, 7]) == {0: 7, 1: 5}
