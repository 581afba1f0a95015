"""Several JobMasters over a faulty store, driven at random from a printed seed: the real code, end to end."""

import random

import pytest

from holdfast.errors import Fenced, StorageError
from holdfast.journal.fence import TakenOver, read_record, take_over
from holdfast.journal.journal import Journal
from holdfast.journal.records import CheckpointRecord, Takeover
from holdfast.testing.stores import FaultyStore, seeded_faults
from journal_kit import checkpoint, fresh_store, no_wait, numbers
from sampling import some


class Contest:
    """JobMasters that take over from each other at any time; the ones before stay alive until they are fenced."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inner = fresh_store()
        self.faulty = FaultyStore(self.inner, seeded_faults(seed, self.rng.choice([0.0, 0.1, 0.3])))
        self.masters: list[tuple[TakenOver, Journal, list[int]]] = []
        self.written: dict[int, tuple[int, int]] = {}
        self.fenced = 0

    def take_over(self) -> None:
        try:
            taken = take_over(self.faulty, wait=no_wait)
        except StorageError:
            return
        below = [number for number in self.written if number < taken.epoch]
        if taken.base is not None and taken.base_number not in self.written:
            below.append(taken.base_number)  # written by a JobMaster that does not know it yet
        assert taken.base_number == max(below, default=None)
        known = [] if taken.base_number is None else [int(taken.base_number)]
        self.masters.append(
            (taken, Journal(self.faulty, taken.epoch, taken.base_number, attempts_max=3, wait=no_wait), known)
        )

    def append(self, turn: int) -> None:
        taken, journal, known = self.rng.choice(self.masters)
        try:
            number = journal.resolve() if journal.unresolved else journal.append(checkpoint(taken.epoch, turn))
        except Fenced:
            assert taken.epoch < max(other.epoch for other, _, _ in self.masters) or self.stray_takeover(taken.epoch)
            self.masters = [master for master in self.masters if master[1] is not journal]
            self.fenced += 1
        except StorageError:
            assert journal.unresolved
        else:
            record = read_record(self.inner, number)
            assert isinstance(record, CheckpointRecord)
            newest = max(other.epoch for other, _, _ in self.masters)
            assert record.epoch == newest or number < newest, "written before it was fenced, and learned late"
            self.written[int(number)] = (record.epoch, record.checkpoint_id)
            known.append(int(number))

    def stray_takeover(self, epoch: int) -> bool:
        """True if a takeover that its candidate gave up landed above."""
        return any(
            isinstance(read_record(self.inner, number), Takeover) for number in numbers(self.inner) if number > epoch
        )

    def expire(self) -> None:
        _, journal, known = self.rng.choice(self.masters)
        if journal.unresolved or len(known) < 2:
            return
        try:
            journal.expire(known[:-1])  # type: ignore[arg-type]
        except StorageError:
            return
        del known[:-1]

    def check(self) -> None:
        found = {number: read_record(self.inner, number) for number in numbers(self.inner)}
        if self.written:
            assert max(self.written) in found, "the newest record is never deleted"
        for taken, _, _ in self.masters:
            assert isinstance(found[taken.epoch], Takeover)


@pytest.mark.parametrize("seed", some(range(40), *range(12)))
def test_however_jobmasters_contend_only_the_newest_completes_checkpoints(seed: int) -> None:
    print(f"seed {seed}")
    contest = Contest(seed)
    while not contest.masters:
        contest.take_over()
    for turn in range(120):
        action = contest.rng.random()
        if action < 0.1 or not contest.masters:
            contest.take_over()
        elif action < 0.2:
            contest.faulty.land()
        elif action < 0.4:
            contest.expire()
        else:
            contest.append(turn)
        contest.check()
    ids = [checkpoint_id for _, (_, checkpoint_id) in sorted(contest.written.items())]
    epochs = [epoch for _, (epoch, _) in sorted(contest.written.items())]
    assert epochs == sorted(epochs)
    assert len(set(ids)) == len(ids)
    print(f"{len(contest.written)} checkpoints, {contest.fenced} fenced")
