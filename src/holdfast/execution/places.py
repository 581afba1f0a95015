"""Places of TaskManagers: which process holds which share of the subtasks.

A job has as many places as declared TaskManagers, and one further process for each standby. All processes are alike and
keep their numbers. A process that holds a place keeps it as long as it lives. If the holder is lost, its place goes to
the process started instead, or to a standby, whichever serves first. A rescale gives the job another number of places
or subtasks; holders keep as many of their subtasks as possible.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from holdfast.ids import Incarnation

NOBODY: Mapping[int, int] = {}


class Places(NamedTuple):
    """The process that holds each place, by its number, and the incarnation of each of these processes."""

    holders: tuple[int, ...] = ()
    live: Mapping[int, Incarnation] = {}
    parallelism: int = 0
    """Number of subtasks of each operator, which the places share."""

    def hold(self, number: int, incarnation: Incarnation | int | None) -> bool:
        """True if that incarnation holds a place."""
        return self.live.get(number) == incarnation

    def still_held(self, serving: Mapping[int, Incarnation], absent: Collection[int] = ()) -> bool:
        """True if exactly the holders in `absent` do not serve any more."""
        gone = {number for number, incarnation in self.live.items() if serving.get(number) != incarnation}
        return gone == set(absent)


def choose(
    count: int, before: Places, serving: Mapping[int, Incarnation], follows: Mapping[int, int] = NOBODY
) -> Places | None:
    """Give each of `count` places to a serving process; None while too few serve. `follows`: the standby that follows
    each place; it gets the place if it holds none.
    """
    if len(serving) < count:
        return None
    holders = [number if number in serving else None for number in before.holders] or [None] * count
    free = sorted(number for number in serving if number not in holders)
    for place, number in enumerate(holders):
        if number is None and follows.get(place) in free:
            holders[place] = follows[place]
            free.remove(follows[place])
    left = iter(free)
    chosen = tuple(next(left) if number is None else number for number in holders)
    return Places(chosen, {number: serving[number] for number in sorted(chosen)}, before.parallelism)


def owners_of(parallelism: int, places: int) -> list[int]:
    """The place of each subtask; neighbours share a place."""
    return [subtask * places // parallelism for subtask in range(parallelism)] if places else []


def rescaled(
    count: int,
    before: Places,
    serving: Mapping[int, Incarnation],
    parallelism: int,
    follows: Mapping[int, int] = NOBODY,
) -> Places | None:
    """Choose the holder of each of `count` places, so that little state moves; None while too few processes serve.
    `follows`: the standby that follows each place; it counts only if the number of places and subtasks stays the same.
    """
    if len(serving) < count:
        return None
    shares = max(parallelism, before.parallelism)
    was = [before.holders[place] for place in owners_of(shares, len(before.holders))]
    stays = Counter(zip(was, owners_of(shares, count), strict=True))
    holders: dict[int, int] = {}
    for (number, place), _ in sorted(stays.items(), key=lambda each: (-each[1], each[0])):
        if number in serving and place not in holders and number not in holders.values():
            holders[place] = number
    # Processes started for the rescale come before standbys, which follow logs of other places.
    free = sorted((number for number in serving if number not in holders.values()), reverse=True)
    is_same = (count, parallelism) == (len(before.holders), before.parallelism)
    for place in [place for place in range(count) if place not in holders]:
        follower = follows.get(place) if is_same else None
        holders[place] = free.pop(free.index(follower) if follower in free else 0)
    chosen = tuple(holders[place] for place in range(count))
    return Places(chosen, {number: serving[number] for number in sorted(chosen)}, parallelism)


def gained(before: Places, after: Places) -> dict[int, tuple[int, ...]]:
    """Return the subtasks that each TaskManager gains by a rescale; TaskManagers that gain none are left out.
    A rescale to another parallelism makes all subtasks new, since each has other key groups.
    """
    was, is_now = owners_of(before.parallelism, len(before.holders)), owners_of(after.parallelism, len(after.holders))
    found: dict[int, tuple[int, ...]] = {}
    for subtask in range(after.parallelism):
        number = after.holders[is_now[subtask]]
        if before.parallelism != after.parallelism or before.holders[was[subtask]] != number:
            found[number] = (*found.get(number, ()), subtask)
    return found


def assign(places: Sequence[int], before: Mapping[int, int], standbys: Sequence[int]) -> dict[int, int]:
    """Choose the standby that follows each place, by number; empty without standbys.

    The choice is even: the numbers of places that standbys follow differ by at most one. Within this rule, a place
    keeps its standby.
    """
    if not standbys:
        return {}
    most = -(-len(places) // len(standbys))
    chosen: dict[int, int] = {}
    loads = dict.fromkeys(sorted(standbys), 0)
    for place in places:
        number = before.get(place)
        if number in loads and loads[number] < most:
            chosen[place] = number
            loads[number] += 1
    for place in places:
        if place not in chosen:
            number = min(loads, key=lambda each: loads[each])
            chosen[place] = number
            loads[number] += 1
    while max(loads.values()) - min(loads.values()) > 1:
        most_loaded, least = max(loads, key=lambda each: loads[each]), min(loads, key=lambda each: loads[each])
        moved = max(place for place, number in chosen.items() if number == most_loaded)
        chosen[moved] = least
        loads[most_loaded] -= 1
        loads[least] += 1
    return chosen
