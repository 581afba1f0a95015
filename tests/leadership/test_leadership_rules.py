"""A driver in waiting takes over from a silent leader, soon, once, and from no leader that is well."""

import pytest
from leadership_world import FIRST_BEAT_S, NOTICE_S, World

from holdfast.formats.leader import LeaderState
from holdfast.ids import Epoch
from holdfast.leadership import rules
from holdfast.leadership.rules import Command, StandbyPhase, StandbyRules

CALM_S = 2 * (FIRST_BEAT_S + NOTICE_S) + 10
LEADS, STOPPED = LeaderState.LEADS, LeaderState.STOPPED


def watching(promote: bool = False) -> StandbyRules:
    """Rules that have seen two heartbeats of epoch 5, the last at 1 s."""
    made = StandbyRules(3.0, 15.0, promote)
    assert made.handle(rules.Began(0.0)) == [Command.READ_JOURNAL]
    assert made.handle(rules.JournalRead(0.0, Epoch(5))) == [Command.LOOK]
    made.handle(rules.Looked(0.0, 0.0, 1))
    made.handle(rules.Looked(1.0, 1.0, 2))
    return made


def test_a_leader_that_is_silent_for_the_whole_time_is_claimed_from_after_a_look_at_the_journal():
    made = watching()
    assert made.handle(rules.Looked(3.9, 3.9, 2)) == []
    assert made.handle(rules.Looked(4.0, 4.0, 2)) == [Command.READ_JOURNAL]
    assert made.handle(rules.JournalRead(4.0, Epoch(5))) == [Command.CLAIM]
    made.handle(rules.ClaimEnded(4.1, won=True))
    assert made.phase is StandbyPhase.LEADING


def test_a_newer_epoch_in_the_journal_is_watched_instead_and_has_time_for_its_first_beat():
    made = watching()
    made.handle(rules.Looked(4.0, 4.0, 2))
    assert made.handle(rules.JournalRead(4.0, Epoch(9))) == [Command.LOOK]
    assert made.handle(rules.Looked(4.1, 4.1, None)) == []
    assert made.handle(rules.Looked(18.9, 18.9, None)) == []
    assert made.handle(rules.Looked(19.1, 19.1, None)) == [Command.READ_JOURNAL]


def test_time_in_which_the_store_did_not_answer_is_no_silence():
    made = watching()
    made.handle(rules.LookFailed(60.0))
    assert made.handle(rules.Looked(61.0, 61.0, 2)) == []


def test_a_slow_read_counts_from_its_beginning():
    made = watching()
    assert made.handle(rules.Looked(2.0, 30.0, 2)) == []


def test_a_lost_link_is_believed_only_if_the_heartbeat_does_not_say_that_the_leader_was_stopped():
    made = watching()
    assert made.handle(rules.LinkLost(1.2)) == [Command.LOOK]
    assert made.handle(rules.Looked(1.2, 1.2, 2, LEADS)) == [Command.READ_JOURNAL]
    made = watching()
    made.handle(rules.LinkLost(1.2))
    assert made.handle(rules.Looked(1.2, 1.2, 3, STOPPED)) == [Command.END]
    assert made.phase is StandbyPhase.ENDED


@pytest.mark.parametrize(
    ("state", "promote", "expected"),
    [
        (LeaderState.STOPPED, False, Command.END),
        (LeaderState.STOPPED, True, Command.READ_JOURNAL),
        (LeaderState.COMPLETE, True, Command.END),
        (LeaderState.FAILED, False, Command.READ_JOURNAL),
    ],
)
def test_the_end_of_a_leader_ends_or_promotes_as_it_ended_and_as_is_set(state, promote, expected):
    assert watching(promote).handle(rules.Looked(1.1, 1.1, 3, state)) == [expected]


def test_an_end_that_was_there_at_the_first_look_is_one_of_the_past():
    made = StandbyRules(3.0, 15.0, promote=False)
    made.handle(rules.Began(0.0))
    made.handle(rules.JournalRead(0.0, Epoch(5)))
    assert made.handle(rules.Looked(0.0, 0.0, 7, STOPPED)) == [Command.READ_JOURNAL]


def test_a_storage_that_nobody_has_led_is_taken_at_once():
    made = StandbyRules(3.0, 15.0, promote=False)
    made.handle(rules.Began(0.0))
    assert made.handle(rules.JournalRead(0.0, Epoch(0))) == [Command.CLAIM]


def simulate(seed: int, world: type[World] = World) -> World:
    made = world(seed, drivers=2 + seed % 3)
    made.run(disturbances=12, calm_s=CALM_S)
    leaders = made.leaders()
    assert len(leaders) == 1, f"seed {seed}: led by {[each.name for each in leaders]}"
    assert made.now_s - made.beaten_s[made.store.epoch] < NOTICE_S + 2, f"seed {seed}: the leader does not beat"
    return made


def test_whatever_dies_or_is_paused_one_driver_leads_soon_and_no_leader_that_is_well_is_taken_over_from():
    taken = sum(len(simulate(seed).takeovers) for seed in range(60))
    assert taken > 120, "the disturbances hardly ever cost a leader"


class CountsOutages(StandbyRules):
    """Broken: time in which the store did not answer is silence."""

    def handle(self, event):
        return [] if isinstance(event, rules.LookFailed) else super().handle(event)


class Impatient(StandbyRules):
    """Broken: a leader that nobody told to beat is silent."""

    @property
    def silence_s_max(self):
        return 0.2


class KeepsWatchingTheOld(StandbyRules):
    """Broken: another epoch in the journal is passed over."""

    def handle(self, event):
        if isinstance(event, rules.JournalRead) and self.epoch is not None:
            self.phase = StandbyPhase.WATCHING
            return []
        return super().handle(event)


@pytest.mark.parametrize("broken", [Impatient, KeepsWatchingTheOld])
def test_the_simulation_finds_a_broken_rule(broken):
    class Broken(World):
        def make_rules(self):
            return broken(3.0, FIRST_BEAT_S, True)

    with pytest.raises(AssertionError, match=r"was well|led by|does not beat"):
        for seed in range(40):
            simulate(seed, Broken)


def test_counting_an_outage_as_silence_is_a_broken_rule():
    made = CountsOutages(3.0, 15.0, False)
    made.handle(rules.Began(0.0))
    made.handle(rules.JournalRead(0.0, Epoch(5)))
    made.handle(rules.Looked(0.0, 0.0, 1))
    made.handle(rules.LookFailed(60.0))
    assert made.handle(rules.Looked(61.0, 61.0, 1)) == [Command.READ_JOURNAL], "the right rules answer with nothing"
