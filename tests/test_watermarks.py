"""How far event time has come: the pure rules."""

import random

from holdfast.watermarks import END_US, FIRST_US, SourceTime, Watermarks, WatermarkSpec

SPEC = WatermarkSpec("x", "at", 0)
IDLE = WatermarkSpec("x", "at", 0, 50)
BOTH = {"a", "b"}


def test_the_slowest_split_holds_the_watermark_back() -> None:
    time = SourceTime().after({"a": 10, "b": 7}, 1, SPEC, BOTH)
    assert time.reached_us == 7
    assert time.after({"a": 20}, 2, SPEC, BOTH).reached_us == 7
    assert time.after({"b": 9}, 2, SPEC, BOTH).reached_us == 9


def test_it_never_goes_back() -> None:
    time = SourceTime().after({"a": 10}, 1, SPEC, {"a"}).after({"a": 5}, 2, SPEC, {"a"})
    assert time.reached_us == 10
    assert time.after({"b": 3}, 3, SPEC, BOTH).reached_us == 10


def test_a_split_without_a_row_yet_holds_it_back_until_it_is_idle() -> None:
    time = SourceTime().after({"a": 10}, 100, IDLE, BOTH)
    assert time.reached_us is None
    assert time.after({"a": 20}, 149, IDLE, BOTH).reached_us is None
    assert time.after({"a": 20}, 150, IDLE, BOTH).reached_us == 20


def test_an_idle_split_does_not_hold_it_back_until_it_has_rows_again() -> None:
    time = SourceTime().after({"a": 10, "b": 7}, 100, IDLE, BOTH)
    assert time.after({"a": 20}, 149, IDLE, BOTH).reached_us == 7
    idle = time.after({"a": 20}, 150, IDLE, BOTH)
    assert idle.reached_us == 20
    assert idle.after({"a": 40, "b": 30}, 151, IDLE, BOTH).reached_us == 30


def test_time_alone_moves_the_watermark_past_splits_that_have_become_idle() -> None:
    time = SourceTime().after({"a": 10, "b": 7}, 100, IDLE, BOTH).after({"a": 20}, 130, IDLE, BOTH)
    assert time.watermark_at(149, IDLE) == 7
    assert time.watermark_at(150, IDLE) == 20
    assert time.watermark_at(1000, IDLE) == 20


def test_a_split_that_was_read_to_its_end_holds_nothing_back() -> None:
    time = SourceTime().after({"file-1": 10, "file-2": 30}, 1, SPEC, {"file-1"})
    assert time.reached_us == 10
    time = time.after({"file-1": 15}, 2, SPEC, set())
    assert (time.reached_us, time.splits) == (30, {})


def test_after_all_input_the_watermark_does_not_depend_on_the_batches() -> None:
    files = {f"file-{number}": [random.Random(number).randrange(1000) for _ in range(20)] for number in range(5)}
    for seed in range(200):
        chance = random.Random(seed)
        time, batch, rest = SourceTime(), 0, {name: list(rows) for name, rows in files.items()}
        while rest:
            batch += 1
            newest: dict[str, int] = {}
            for name in list(rest)[: chance.randint(1, 3)]:
                taken = [rest[name].pop(0) for _ in range(min(len(rest[name]), chance.randint(1, 12)))]
                newest[name] = max(taken)
            rest = {name: rows for name, rows in rest.items() if rows}
            time = time.after(newest, batch, SPEC, {name for name in newest if name in rest})
        assert time.reached_us == max(max(rows) for rows in files.values()), f"seed {seed}"


def test_an_operator_waits_for_the_slowest_of_its_inputs_less_their_delays() -> None:
    specs = [WatermarkSpec("x", "at", 5), WatermarkSpec("y", "at", 0)]
    watermarks = Watermarks({spec.key: spec for spec in specs}, {"both": ("x/at", "y/at"), "one": ("x/at",)})
    splits = {"x": {"0"}, "y": {"0"}}
    watermarks.restore({})
    assert watermarks.of_operators(0) == {}
    watermarks.committed({"x/at": {"0": 30}}, 1, splits)
    assert watermarks.of_operators(1) == {"one": 25}
    watermarks.committed({"y/at": {"0": 10}}, 2, splits)
    assert watermarks.of_operators(2) == {"one": 25, "both": 10}
    assert watermarks.closed() == {"one": 25}
    again = Watermarks({spec.key: spec for spec in specs}, {"both": ("x/at", "y/at")})
    again.restore(watermarks.times)
    assert again.of_operators(2) == {"both": 10}


def test_a_longer_delay_does_not_open_again_what_was_closed() -> None:
    before = Watermarks({SPEC.key: SPEC}, {"one": (SPEC.key,)})
    before.restore({})
    for batch in (1, 2):
        before.committed({SPEC.key: {"0": 30}}, batch, {"x": {"0"}})
    after = Watermarks({SPEC.key: WatermarkSpec("x", "at", 20)}, {"one": (SPEC.key,)})
    after.restore(before.times)
    assert after.of_operators(3) == after.closed() == {"one": 30}


def test_an_idle_source_goes_with_the_others_and_never_back() -> None:
    specs = [WatermarkSpec("x", "at", 0, 50), WatermarkSpec("y", "at", 0, 50)]
    watermarks = Watermarks({spec.key: spec for spec in specs}, {"both": ("x/at", "y/at")})
    watermarks.restore({})
    watermarks.committed({"x/at": {"0": 30}, "y/at": {"0": 10}}, 100, {"x": {"0"}, "y": ()})
    watermarks.committed({"x/at": {"0": 40}}, 149, {"x": {"0"}, "y": ()})
    assert (watermarks.of_operators(149), watermarks.of_operators(150)) == ({"both": 10}, {"both": 40})
    watermarks.committed({"y/at": {"0": 20}}, 150, {"x": {"0"}, "y": ()})
    assert watermarks.of_operators(150) == {"both": 40}


def test_drained_input_has_come_to_its_end_for_good() -> None:
    watermarks = Watermarks({SPEC.key: SPEC}, {"one": (SPEC.key,)})
    watermarks.restore({})
    watermarks.drain()
    assert watermarks.of_operators(0) == {"one": END_US}
    again = Watermarks({SPEC.key: SPEC}, {"one": (SPEC.key,)})
    watermarks.committed({}, 1, {"x": {"0"}})
    again.restore(watermarks.times)
    assert (again.complete, again.complete_sources(), again.closed()) == (True, {"x"}, {"one": END_US})


def test_a_watermark_is_a_time_that_a_datetime_can_hold_and_the_end_only_once_input_is_complete() -> None:
    spec = WatermarkSpec("x", "at", 1_000_000)
    early, last = (SourceTime().after({"a": time_us}, 1, spec, {"a"}) for time_us in (FIRST_US, END_US + 1_000_000))
    assert early.watermark_at(1, spec) == FIRST_US
    assert last.watermark_at(1, spec) == END_US - 1
    behind = Watermarks({"x/at": spec}, {"op": {"x/at"}}, {"op": 5_000_000})
    behind.restore({"x/at": early})
    assert behind.of_operators(1) == {"op": FIRST_US}
