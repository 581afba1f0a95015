"""States and aggregates that come, go, widen or are refused, over real restarts, with every backend."""

from decimal import Decimal

import pyarrow as pa
import pytest
from job_kit import new_job, new_storage, newest, pairs, script, tuples

import holdfast as hf
from holdfast.testing import run
from sampling import some

ROWS = pairs((1, 10), (2, 20), (1, 5))
BACKENDS = [
    pytest.param(hf.HashMapState(), id="hashmap"),
    pytest.param(hf.RocksDBState(), id="rocksdb", marks=pytest.mark.long),
    pytest.param(hf.RocksDBState(cache_max_entries=1), id="cache"),
]
OUT = "k BIGINT, seen STRING"


@pytest.fixture(params=BACKENDS)
def state(request):
    return request.param


class Say(hf.ProcessFunction):
    """Each state that the class has takes the row's value; then all are read."""

    def process(self, row, ctx):
        seen = {}
        for name in sorted(vars(type(self))):
            state = getattr(self, name)
            if isinstance(state, hf.ValueState):
                state.update(self.shaped(state.type, row.v))
                seen[name] = state.value()
            elif isinstance(state, hf.ReducingState | hf.AggregatingState):
                state.add(row.v)
                seen[name] = state.get()
            elif isinstance(state, hf.ListState):
                state.add(self.shaped(state.type, row.v))
                seen[name] = state.get()
            elif isinstance(state, hf.MapState):
                state.put(self.shaped(state.key_type, row.v), self.shaped(state.type, row.v))
                seen[name] = dict(state.items())
        yield row.k, repr(seen)

    def shaped(self, kind, value):
        if kind == pa.string():
            return str(value)
        if kind == pa.binary():
            return bytes([value % 256])
        return Decimal(value) if kind is not None and pa.types.is_decimal(kind) else value


def job(storage, state, states, *batches, sink=None):
    made = new_job(
        storage,
        state=state,
        checkpoint=hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(log_handles_max=1)),
    )
    function = type("Declared", (Say,), dict(states))()
    stream = made.read(script(*batches, name="script")).key_by("k").process(function, OUT, name="f")
    stream.write(sink or hf.MemorySink(name="out"))
    return made


def goes_on(state, before, after, rows=ROWS):
    """Return the output for a further row of key 1, after a restart with other states; and after a second restart."""
    storage, sink = new_storage(), hf.MemorySink(name="out")
    run(job(storage, state, before, rows, sink=sink))
    run(job(storage, state, after, rows, pairs((1, 1)), sink=sink))
    run(job(storage, state, after, rows, pairs((1, 1)), pairs((1, 2)), sink=sink))
    return [eval(seen, {"Decimal": Decimal}) for _, seen in tuples(sink)[len(rows) :]]


def refused(state, before, after, match):
    storage = new_storage()
    run(job(storage, state, before, ROWS))
    with pytest.raises(hf.JobRefused, match=match):
        run(job(storage, state, after, ROWS, pairs((1, 1))))


ALL = {
    "a": hf.ValueState(pa.int64()),
    "b": hf.ReducingState(max, pa.int64()),
    "c": hf.AggregatingState(lambda acc, v: [*acc, v], []),
    "d": hf.ListState(pa.int64()),
    "e": hf.MapState(pa.int64(), pa.int64()),
}


def test_every_kind_of_state_can_be_added_and_starts_with_nothing(state):
    first, second = goes_on(state, {"old": hf.ValueState(pa.int64())}, {"old": hf.ValueState(pa.int64())} | ALL)
    assert first == {"a": 1, "b": 1, "c": [1], "d": [1], "e": {1: 1}, "old": 1}
    assert second == {"a": 2, "b": 2, "c": [1, 2], "d": [1, 2], "e": {1: 1, 2: 2}, "old": 2}


def test_every_kind_of_state_can_be_removed_and_is_forgotten(state):
    kept = {"old": hf.ListState(pa.int64())}
    storage, sink = new_storage(), hf.MemorySink(name="out")
    run(job(storage, state, kept | ALL, ROWS, sink=sink))
    run(job(storage, state, kept, ROWS, pairs((1, 1)), sink=sink))
    assert tuples(sink)[-1] == (1, "{'old': [10, 5, 1]}")
    run(job(storage, state, kept | ALL, ROWS, pairs((1, 1)), pairs((1, 2)), sink=sink))
    assert eval(tuples(sink)[-1][1]) == {"a": 2, "b": 2, "c": [2], "d": [2], "e": {2: 2}, "old": [10, 5, 1, 2]}


WIDER = [
    (pa.int8(), pa.int64()),
    (pa.uint16(), pa.uint32()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(9, 2), pa.decimal128(18, 4)),
]


@pytest.mark.parametrize(("narrow", "wide"), some(WIDER, 0, 1), ids=[f"{a} to {b}" for a, b in WIDER])
def test_values_elements_and_entries_widen(state, narrow, wide):
    def states(kind):
        return {
            "least": hf.ReducingState(min, kind),
            "list": hf.ListState(kind),
            "map": hf.MapState(pa.int64(), kind),
        }

    before, after = states(narrow), states(wide)
    if pa.types.is_decimal(narrow):
        del before["least"], after["least"]
    first, second = goes_on(state, before, after)
    assert first["list"] == [10, 5, 1] and second["list"] == [10, 5, 1, 2]
    assert second["map"] == {10: 10, 5: 5, 1: 1, 2: 2}
    assert second.get("least", 1) == 1


REFUSED = [
    (hf.ValueState(pa.int64()), hf.ValueState(pa.int32()), "'f', state 's': stored as int64, declared as int32"),
    (hf.ValueState(pa.int64()), hf.ValueState(pa.float64()), "'f', state 's': stored as int64, declared as double"),
    (hf.ValueState(pa.int64()), hf.ValueState(pa.string()), "'f', state 's': stored as int64, declared as string"),
    (hf.ValueState(), hf.ValueState(pa.binary()), "state 's': stored as any msgpack-able object, declared as binary"),
    (hf.ValueState(pa.binary()), hf.ValueState(), "state 's': stored as binary, declared as any msgpack-able object"),
    (hf.ListState(pa.int64()), hf.ListState(pa.int8()), "state 's': elements stored as int64, declared as int8"),
    (hf.ListState(pa.binary()), hf.ListState(), "'s': elements stored as binary, declared as any msgpack-able object"),
    (
        hf.MapState(pa.int64(), pa.int64()),
        hf.MapState(pa.int64(), pa.string()),
        "'f', state 's': values stored as int64, declared as string",
    ),
    (
        hf.MapState(pa.int64(), pa.int64()),
        hf.MapState(pa.string(), pa.int64()),
        "'f', state 's': map keys stored as int64, declared as string",
    ),
    (hf.ValueState(pa.int64()), hf.ListState(pa.int64()), "'f', state 's': stored as a value, declared as a list"),
    (hf.ListState(pa.int64()), hf.MapState(pa.int64()), "'f', state 's': stored as a list, declared as a map"),
    (hf.MapState(pa.int64()), hf.ValueState(pa.int64()), "'f', state 's': stored as a map, declared as a value"),
]


@pytest.mark.parametrize(("before", "after", "match"), REFUSED, ids=[match for _, _, match in REFUSED])
def test_any_other_change_is_refused_naming_operator_state_and_both_types(before, after, match):
    refused(hf.HashMapState(), {"s": before}, {"s": after}, match)


def test_a_time_to_live_and_a_timer_can_be_added_to_what_is_there(state):
    def states(ttl):
        return {"list": hf.ListState(pa.int64(), ttl=ttl), "value": hf.ValueState(pa.int64(), ttl=ttl)}

    def on_timer(self, timestamp, ctx):
        raise AssertionError("no timer was registered")

    first, second = goes_on(state, states(None), states("1h") | {"on_timer": on_timer})
    assert first == {"list": [10, 5, 1], "value": 1} and second == {"list": [10, 5, 1, 2], "value": 2}
    first, second = goes_on(state, states("1h"), states(None))
    assert first == {"list": [10, 5, 1], "value": 1} and second == {"list": [10, 5, 1, 2], "value": 2}


def test_aggregates_come_and_go_and_their_results_stay(state):
    storage, sink = new_storage(), hf.MemorySink(name="out")

    def counted(*batches, **aggregates):
        made = new_job(
            storage,
            state=state,
            checkpoint=hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(log_handles_max=1)),
        )
        keyed = made.read(script(*batches, name="script")).key_by("k")
        keyed.aggregate(**aggregates, name="per-key").map_batches(as_text, "k BIGINT, seen STRING").write(sink)
        return made

    run(counted(ROWS, total=hf.sum("v")))
    run(counted(ROWS, pairs((1, 1)), total=hf.sum("v"), n=hf.count(), worst=hf.max("v"), mean=hf.mean("v")))
    assert newest(sink.rows(), "k")[1]["seen"] == "{'total': 16, 'n': 1, 'worst': 1, 'mean': 1.0}"
    run(counted(ROWS, pairs((1, 1)), pairs((1, 2)), worst=hf.max("v")))
    assert newest(sink.rows(), "k")[1]["seen"] == "{'worst': 2}"
    run(counted(ROWS, pairs((1, 1)), pairs((1, 2)), pairs((1, 3)), worst=hf.max("v"), total=hf.sum("v")))
    assert newest(sink.rows(), "k")[1]["seen"] == "{'worst': 3, 'total': 3}"


def as_text(batch):
    rows = [{name: value for name, value in row.items() if name != "k"} for row in batch.to_pylist()]
    return pa.record_batch([batch["k"], pa.array(list(map(repr, rows)), pa.string())], names=["k", "seen"])
