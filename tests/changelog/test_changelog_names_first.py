"""A cut's pieces have names before they are stored; names of first attempts count only until then."""

from changelog_kit import ManualLog, change
from holdfast.changelog_config import RetryPolicy
from holdfast.testing.stores import Fault


def test_pieces_have_names_while_they_are_being_stored() -> None:
    log = ManualLog()
    log.writer.append(1, change("a"))
    persisting = log.writer.persist(1)
    log.scheduler.advance(0.05)
    assert persisting.named.done() and not persisting.done()
    named = persisting.named.result()
    assert log.scheduler.result(persisting) == named
    assert log.names() == [named[0].object]


def test_the_winner_of_a_hedge_has_another_name_than_the_first_attempt() -> None:
    log = ManualLog(RetryPolicy.fixed(3, timeout=0.2, next_attempt_delay=0.5))
    log.took_s = [10.0]
    log.writer.append(1, change("a"))
    persisting = log.writer.persist(1)
    stored = log.scheduler.result(persisting)
    named = persisting.named.result()
    assert named[0].object != stored[0].object
    assert [(each.offset, each.length) for each in named] == [(each.offset, each.length) for each in stored]
    log.writer.append(2, change("b"))
    again = log.writer.persist(2)
    log.scheduler.advance(0.05)
    assert again.named.result()[:1] == stored, "what is stored has its real name"
    log.scheduler.result(again)
    log.scheduler.advance(20.0)
    assert named[0].object in log.puts and named[0].object not in log.names(), "the first attempt has lost"


def test_a_cut_names_pieces_of_an_earlier_cut_that_are_still_being_stored() -> None:
    log = ManualLog()
    log.took_s = [5.0, 1.0]
    for batch in (1, 2):
        log.writer.append(batch, change("a", batch))
        persisting = log.writer.persist(batch)
    log.scheduler.advance(0.5)
    named = persisting.named.result()
    assert len(named) == 2 and not persisting.done()
    assert log.scheduler.result(persisting) == named


def test_an_upload_that_fails_ends_both_steps() -> None:
    log = ManualLog(RetryPolicy.none())
    log.faults = [Fault.FAIL]
    log.writer.append(1, change("a"))
    persisting = log.writer.persist(1)
    log.scheduler.advance(1.0)
    assert persisting.named.done() and persisting.exception() is not None
    again = log.writer.persist(1)
    assert again.exception() is not None and again.named.exception() is not None
