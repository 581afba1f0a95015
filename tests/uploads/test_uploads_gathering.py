"""When requests to persist are put together."""

from holdfast.uploads.gathering import Gathering


def test_nothing_is_due_before_a_request():
    gathering: Gathering[str, str] = Gathering(0.25, 100)
    assert gathering.due_in_s(5.0, {"a"}) is None
    gathering.ask("a", 5.0)
    assert gathering.due_in_s(6.0, {"a"}) is None


def test_requests_are_due_when_every_registered_log_has_asked_even_with_nothing():
    gathering: Gathering[str, str] = Gathering(0.25, 100)
    gathering.ask("a", 5.0, "request", 10)
    assert gathering.due_in_s(5.0, {"a", "b"}) == 0.25
    gathering.ask("b", 5.0)
    assert gathering.due_in_s(5.0, {"a", "b"}) == 0.0
    assert gathering.take() == ["request"]
    assert gathering.due_in_s(9.0, {"a", "b"}) is None


def test_the_delay_counts_from_the_first_request_and_is_not_prolonged_by_later_ones():
    gathering: Gathering[str, str] = Gathering(1.0, 100)
    gathering.ask("a", 5.0, "first", 1)
    gathering.ask("b", 5.75, "second", 1)
    assert gathering.due_in_s(5.75, {"a", "b", "c"}) == 0.25
    assert gathering.due_in_s(7.0, {"a", "b", "c"}) == 0.0
    assert gathering.take() == ["first", "second"]


def test_the_size_ends_the_waiting():
    gathering: Gathering[str, str] = Gathering(1.0, 100)
    gathering.ask("a", 5.0, "first", 60)
    gathering.ask("a", 5.0, "second", 40)
    assert gathering.due_in_s(5.0, {"a", "b"}) == 0.0


def test_delay_zero_is_due_at_once():
    gathering: Gathering[str, str] = Gathering(0.0, 100)
    gathering.ask("a", 5.0, "first", 1)
    assert gathering.due_in_s(5.0, {"a", "b"}) == 0.0


def test_a_cut_with_nothing_to_store_leaves_nothing_behind_for_the_next_one():
    gathering: Gathering[str, str] = Gathering(1.0, 100)
    gathering.ask("a", 5.0)
    gathering.ask("b", 5.0)
    gathering.ask("a", 6.0, "first", 1)
    assert gathering.due_in_s(6.0, {"a", "b"}) == 1.0
    gathering.ask("b", 6.0, "second", 1)
    assert gathering.due_in_s(6.0, {"a", "b"}) == 0.0
