"""How far event time has come: the pure rules."""

from holdfast.watermarks import SourceTime, SplitTime, Watermarks, WatermarkSpec

CURRENT = {"a", "b"}


def test_the_slowest_split_holds_the_watermark_back() -> None:
    time = SourceTime().after({"a": 10, "b": 7}, 1, None, CURRENT)
    assert time.reached_us == 7
    assert time.after({"a": 20}, 2, None, CURRENT).reached_us == 7
    assert time.after({"b": 9}, 2, None, CURRENT).reached_us == 9


def test_it_never_goes_back() -> None:
    time = SourceTime().after({"a": 10}, 1, None, CURRENT).after({"a": 5}, 2, None, CURRENT)
    assert time.reached_us == 10
    assert time.after({"b": 3}, 3, None, CURRENT).reached_us == 10


def test_an_idle_split_does_not_hold_it_back_until_it_has_rows_again() -> None:
    time = SourceTime().after({"a": 10, "b": 7}, 100, 50, CURRENT)
    assert time.after({"a": 20}, 149, 50, CURRENT).reached_us == 7
    idle = time.after({"a": 20}, 150, 50, CURRENT)
    assert idle.reached_us == 20
    assert idle.after({"a": 40, "b": 30}, 151, 50, CURRENT).reached_us == 30


def test_nothing_moves_while_all_splits_are_idle() -> None:
    time = SourceTime().after({"a": 10}, 100, 50, CURRENT)
    assert time.after({}, 500, 50, CURRENT).reached_us == 10
    assert SourceTime().after({}, 500, None, CURRENT) == SourceTime()


def test_a_split_that_its_source_no_longer_has_counts_for_its_last_batch_only() -> None:
    time = SourceTime().after({"file-1": 10}, 1, None, CURRENT)
    assert (time.reached_us, list(time.splits)) == (10, ["file-1"])
    assert time.after({"file-2": 30}, 2, None, CURRENT) == SourceTime(30, {"file-2": SplitTime(30, 2)})
    time = time.after({}, 2, None, CURRENT).after({"file-2": 30}, 3, None, CURRENT)
    assert (time.reached_us, list(time.splits)) == (30, ["file-2"])


def test_an_operator_waits_for_the_slowest_of_its_inputs_less_their_delays() -> None:
    specs = [WatermarkSpec("x", "at", 5), WatermarkSpec("y", "at", 0)]
    watermarks = Watermarks({spec.key: spec for spec in specs}, {"both": ("x/at", "y/at"), "one": ("x/at",)})
    offsets = {"x": {"0"}, "y": {"0"}}
    watermarks.restore({})
    assert watermarks.of_operators() == {}
    watermarks.committed({"x/at": {"0": 30}}, 1, offsets)
    assert watermarks.of_operators() == {"one": 25}
    watermarks.committed({"y/at": {"0": 10}}, 2, offsets)
    assert watermarks.of_operators() == {"one": 25, "both": 10}
    again = Watermarks({spec.key: spec for spec in specs}, {"both": ("x/at", "y/at")})
    again.restore(watermarks.times)
    assert again.of_operators() == {"both": 10}
