"""Groups of committables: published in order, carried under their number, discarded when no record names them."""

from holdfast.checkpoint.events import Discard, Group, PausePlanning, Publish, ResumePlanning
from holdfast.checkpoint.publication import RETRY_PAUSE_MAX_S, RETRY_PAUSE_S, Publication
from holdfast.ids import JournalNumber


def number(value: int) -> JournalNumber:
    return JournalNumber(value)


def queued(*numbers: int, sink: str = "out") -> Publication:
    publication = Publication()
    for each in numbers:
        publication.add(sink, Group(number(each), f"group-{each}"))
    return publication


def test_a_sink_publishes_one_group_at_a_time_in_order() -> None:
    publication = queued(2, 3)
    assert publication.publish(0) == [Publish("out", number(2), "group-2")]
    assert publication.publish(0) == []
    publication.published("out", number(3))
    assert publication.publish(0) == []
    publication.published("out", number(2))
    assert publication.publish(0) == [Publish("out", number(3), "group-3")]


def test_sinks_do_not_wait_for_each_other() -> None:
    publication = queued(2)
    publication.publish(0)
    publication.add("other", Group(number(2), "theirs"))
    assert publication.publish(0) == [Publish("other", number(2), "theirs")]


def test_a_group_is_carried_until_it_is_published() -> None:
    publication = queued(2, 3)
    publication.publish(0)
    assert [group.number for group in publication.unpublished()["out"]] == [2, 3]
    publication.published("out", number(2))
    assert [group.number for group in publication.unpublished()["out"]] == [3]
    assert publication.backlog() == {"out": 1}


def test_a_failed_publication_is_repeated_with_growing_pauses() -> None:
    publication = queued(2)
    now_s, pause_s = 0.0, RETRY_PAUSE_S
    for _ in range(8):
        assert publication.publish(now_s)
        publication.failed("out", number(2), now_s)
        assert not publication.publish(now_s + pause_s * 0.99)
        now_s += pause_s
        pause_s = min(2 * pause_s, RETRY_PAUSE_MAX_S)


def test_a_refused_group_is_not_tried_again_and_reported_once() -> None:
    publication = queued(2)
    publication.publish(0)
    assert publication.refused("out", number(2))
    assert not publication.refused("out", number(2))
    assert publication.publish(1e6) == []


def test_staged_files_go_when_published_and_named_by_no_record() -> None:
    publication = queued(2)
    publication.publish(0)
    assert publication.discard(set(), 0) == []
    publication.published("out", number(2))
    assert publication.discard({("out", number(2))}, 0) == []
    assert publication.discard(set(), 0) == [Discard("out", number(2), "group-2")]
    assert publication.discard(set(), 0) == []
    assert publication.discarded("out", number(2))
    assert not publication.discarded("out", number(2))


def test_a_failed_discard_is_repeated() -> None:
    publication = queued(2)
    publication.publish(0)
    publication.published("out", number(2))
    publication.discard(set(), 0)
    publication.discard_failed("out", number(2), 0)
    assert publication.discard(set(), 1) == []
    assert publication.discard(set(), RETRY_PAUSE_MAX_S) == [Discard("out", number(2), "group-2")]


def test_planning_pauses_at_the_bound_and_resumes_below_it() -> None:
    publication = queued(2, 3)
    assert publication.planning(3) == []
    assert publication.planning(2) == [PausePlanning("out")]
    assert publication.planning(2) == []
    publication.publish(0)
    publication.published("out", number(2))
    assert publication.planning(2) == [ResumePlanning("out")]


def test_answers_about_unknown_groups_are_ignored() -> None:
    publication = Publication()
    publication.published("out", number(2))
    publication.failed("out", number(2), 0)
    publication.discard_failed("out", number(2), 0)
    assert not publication.refused("out", number(2))
    assert not publication.discarded("out", number(2))
    publication.validate()
