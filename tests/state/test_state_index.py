import dataclasses
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import StateTooLarge
from holdfast.state import index_kernels, key_index
from holdfast.state.index import FixedIndex, IntegerIndex, VariableIndex, columns_of_stored, new_index
from holdfast.state.key_index import KeyIndex
from holdfast.state.keys import Keys, encode_keys

COMPILING = settings(deadline=None, max_examples=8)
"""The first example may compile kernels."""

TEXT = pa.schema([("k", pa.string())])
INTEGER = pa.schema([("k", pa.int64())])
PAIR = pa.schema([("k", pa.int64()), ("n", pa.int16())])
DECIMAL = pa.schema([("k", pa.decimal128(20, 2))])
Pair = tuple[int | None, int | None]
MASK = (1 << 64) - 1
LARGE_KEYS = 2048
"""An index with room for so many is not thought to fit into the processor's cache."""


def unmix(output: int) -> int:
    """The int64 key whose mixed tag is `output`: SplitMix64's finaliser, inverted."""
    z = output ^ (output >> 31) ^ (output >> 62)
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK
    z = z ^ (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK
    z = z ^ (z >> 30) ^ (z >> 60)
    key = (z - 0x9E3779B97F4A7C15) & MASK
    return key - (1 << 64) if key >> 63 else key


def integer_keys(values: list[int]) -> Keys:
    return encode_keys(pa.record_batch({"k": pa.array(values, pa.int64())}), ["k"])


def text_keys(values: list[str], constant_hash: int | None = None) -> Keys:
    return of_one_hash(encode_keys(pa.record_batch({"k": pa.array(values, pa.string())}), ["k"]), constant_hash)


def of_one_hash(keys: Keys, constant_hash: int | None) -> Keys:
    if constant_hash is None:
        return keys
    collided = dataclasses.replace(keys)
    collided.__dict__["hashes"] = np.full(len(keys), constant_hash, np.uint64)
    return collided


def pair_keys(values: list[Pair], constant_hash: int | None = None) -> Keys:
    arrays = [pa.array([value[i] for value in values], field.type) for i, field in enumerate(PAIR)]
    return of_one_hash(encode_keys(pa.record_batch(arrays, schema=PAIR), PAIR.names), constant_hash)


def decimal_keys(values: list[Decimal]) -> Keys:
    return encode_keys(pa.record_batch([pa.array(values, DECIMAL.field(0).type)], schema=DECIMAL), ["k"])


def rows_of(numbers: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    """Rows whose keys differ where the numbers do."""
    columns = [numbers] if len(schema) == 1 else [numbers // 1000, numbers % 1000]
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_in(index: KeyIndex, slots: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch(index.columns(slots), schema=index.key_schema)


def keys_in(index: KeyIndex, slots: np.ndarray) -> list[object]:
    columns = [pa.array(column).to_pylist() for column in index.columns(slots)]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


of_each_kind = pytest.mark.parametrize("schema", [INTEGER, TEXT, PAIR], ids=["integers", "texts", "pairs"])
"""Each kind of index once."""
PAIRS: list[Pair] = [(i % 12 or None, i // 12 or None) for i in range(60)]
TEXTS = [f"{i}" * (i % 12) + f"x{i}" for i in range(60)]
KEYS_THAT_COLLIDE = {
    "integers": ([unmix(i) for i in range(60)], INTEGER, integer_keys),
    "integers at the end": ([unmix(MASK - i) for i in range(60)], INTEGER, integer_keys),
    "texts of one hash": (TEXTS, TEXT, lambda v: text_keys(v, 12345)),
    "texts of one hash at the end": (TEXTS, TEXT, lambda v: text_keys(v, unmix(MASK) & MASK)),
    "pairs of one hash": (PAIRS, PAIR, lambda v: pair_keys(v, 12345)),
    "pairs": (PAIRS, PAIR, pair_keys),
    "decimals": ([Decimal(i) / 4 for i in range(60)], DECIMAL, decimal_keys),
    "texts": ([f"key {i}" for i in range(60)], TEXT, text_keys),
    "integers that spread": (list(range(60)), INTEGER, integer_keys),
}


def test_the_colliding_integers_do_collide() -> None:
    """Otherwise the tests below would prove nothing."""
    tags = encode_keys(pa.record_batch({"k": pa.array([unmix(i) for i in range(60)])}), ["k"]).hashes
    assert set((tags >> np.uint64(32)).tolist()) == {0}


@pytest.fixture
def small_and_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of a few entries, which are poured an entry or two at a time."""
    for name, value in {"ENTRIES_LEAST": 4, "LOADS_MAX": (), "SWEEP_LEAST": 1, "PROBE_ROWS": 2}.items():
        monkeypatch.setattr(key_index, name, value)


@pytest.mark.usefixtures("small_and_slow")
@pytest.mark.parametrize("kind", KEYS_THAT_COLLIDE)
@settings(COMPILING, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_keys_are_found_wherever_they_are_while_entries_are_poured(kind: str, data: st.DataObject) -> None:
    check_against_a_dict(kind, data)


@pytest.mark.parametrize("kind", KEYS_THAT_COLLIDE)
@COMPILING
@given(data=st.data())
def test_index_agrees_with_a_dict_through_inserts_and_removals(kind: str, data: st.DataObject) -> None:
    check_against_a_dict(kind, data)


@pytest.mark.parametrize("kind", KEYS_THAT_COLLIDE)
@COMPILING
@given(data=st.data())
def test_index_agrees_with_a_dict_where_entries_are_fetched_ahead(kind: str, data: st.DataObject) -> None:
    check_against_a_dict(kind, data, reserved=LARGE_KEYS, rows_max=120)


def check_against_a_dict(kind: str, data: st.DataObject, reserved: int = 0, rows_max: int = 40) -> None:
    universe, schema, encode = KEYS_THAT_COLLIDE[kind]
    index, model = new_index(schema), dict[object, int]()
    stamps = dict[object, int]()
    if reserved:
        index.reserve(reserved)
        assert len(index._entries) >= index_kernels._PREFETCH_FROM
    for stamp in range(1, data.draw(st.integers(1, 8)) + 1):
        chosen = data.draw(st.lists(st.sampled_from(universe), max_size=rows_max))
        first = data.draw(st.integers(0, stamp))
        asked = data.draw(st.lists(st.sampled_from(universe), max_size=rows_max))
        slots, fresh, unseen = index.lookup(encode(asked), stamp, first, inserts=False)
        known = [key for key in dict.fromkeys(asked) if key in model]
        assert slots.tolist() == [model.get(key, -1) for key in asked]
        assert keys_in(index, fresh) == known and len(index) == len(model)
        assert keys_in(index, unseen) == [key for key in known if stamps.get(key, 0) < first]
        stamps |= dict.fromkeys(known, stamp)
        slots, fresh, unseen = index.lookup(encode(chosen), stamp, first)
        distinct = [key for key in dict.fromkeys(chosen) if key not in known]
        assert keys_in(index, slots) == chosen
        assert keys_in(index, fresh) == distinct
        assert keys_in(index, unseen) == [key for key in distinct if stamps.get(key, 0) < first]
        stamps |= dict.fromkeys(chosen, stamp)
        for key, slot in zip(chosen, slots.tolist(), strict=True):
            assert model.setdefault(key, slot) == slot
        assert len(set(model.values())) == len(model) == len(index)
        gone = data.draw(st.lists(st.sampled_from(sorted(model, key=str)), unique=True)) if model else []
        index.remove(np.array([model.pop(key) for key in gone], np.int32))
        stamps = {key: each for key, each in stamps.items() if key in model}
        assert len(index) == len(model)


@pytest.mark.parametrize("kind", KEYS_THAT_COLLIDE)
def test_compacting_keeps_exactly_the_live_keys(kind: str) -> None:
    universe, schema, encode = KEYS_THAT_COLLIDE[kind]
    index = new_index(schema)
    slots, *_ = index.lookup(encode(universe), 1)
    index.remove(slots[::2])
    index.compact(slots[1::2])
    again, fresh, _ = index.lookup(encode(universe[1::2]), 2)
    assert again.tolist() == list(range(len(universe) // 2))
    assert len(fresh) == len(universe) // 2
    assert keys_in(index, again) == universe[1::2]


@of_each_kind
def test_index_grows_through_one_large_lookup(schema: pa.Schema) -> None:
    keys = np.random.default_rng(1).integers(0, 200_000, 300_000)
    rows = rows_of(keys, schema)
    index = new_index(schema)
    slots, fresh, _ = index.lookup(encode_keys(rows, schema.names), 1)
    _, expected = np.unique(keys, return_index=True)
    assert np.array_equal(fresh, slots[np.sort(expected)])
    assert rows_in(index, slots).equals(rows)


def test_what_was_poured_goes_back_to_the_system() -> None:
    index = IntegerIndex(INTEGER)
    given_back = 0
    for start in range(0, 600_000, 20_000):
        index.lookup(Keys(np.arange(start, start + 20_000)), 1)
        given_back = max(given_back, index._given_back)
    slots, fresh, _ = index.lookup(Keys(np.arange(600_000)), 1)
    assert (slots == np.arange(600_000)).all() and len(fresh) == 0
    assert given_back >= 4 << 20 or sys.platform != "linux"


def test_pages_that_were_poured_and_are_in_use_again_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys whose home is at the table's end, and not yet poured, may come to its begin, which is."""
    page_bytes, taken = 1 << 15, []

    def pages(array: np.ndarray, start: int, stop: int) -> tuple[int, int]:
        first = -(-start // page_bytes) * page_bytes if start > 64 else 0
        return first, max(first, stop // page_bytes * page_bytes)

    def take(array: np.ndarray, first: int, last: int) -> bool:
        array.view(np.uint8)[first:last] = 0
        taken.append(first)
        return True

    monkeypatch.setattr(key_index, "whole_pages", pages)
    monkeypatch.setattr(key_index, "give_back", take)
    monkeypatch.setattr(key_index, "SWEEP_LEAST", 256)
    monkeypatch.setattr(key_index, "SWEEP_PER_ROW", 0)
    index = IntegerIndex(INTEGER)
    count = 0
    while not len(index._old) > 4 * page_bytes // 8:
        index.lookup(Keys(np.arange(count, count + 100)), 1)
        count += 100
    taken.clear()
    at_the_end = Keys(np.array([unmix(MASK - i) for i in range(60)]))
    index.lookup(at_the_end, 1)
    slots = index.lookup(at_the_end, 1)[0]
    while len(index._old):
        index.lookup(Keys(np.arange(1)), 1)
    assert taken and 0 not in taken
    assert index.lookup(at_the_end, 1)[0].tolist() == slots.tolist()
    assert len(index) == count + 60


@of_each_kind
def test_removals_from_a_large_index_leave_the_other_keys_where_they_are(schema: pa.Schema) -> None:
    """Large enough that its entries are fetched ahead; some of them are still to be poured."""
    random = np.random.default_rng(2)
    index = new_index(schema)
    rows = rows_of(np.arange(60_000), schema)
    keys = encode_keys(rows, schema.names)
    index.lookup(encode_keys(rows.slice(0, 45_000), schema.names), 1)
    slots, *_ = index.lookup(keys, 1)
    assert len(index._old)
    for stamp in range(2, 6):
        gone = random.random(60_000) < 0.5
        index.remove(slots[gone])
        again, fresh, _ = index.lookup(keys, stamp)
        assert len(fresh) == len(index) == 60_000
        assert np.array_equal(again[~gone], slots[~gone])
        assert np.array_equal(np.sort(again[gone]), np.sort(slots[gone]))
        assert rows_in(index, again).equals(rows)
        slots = again


@of_each_kind
def test_an_index_grows_at_once_for_the_rows_that_a_look_up_still_has(schema: pa.Schema) -> None:
    index, poured = new_index(schema), []
    pour = index._pour
    index._pour = lambda capacity: (poured.append(capacity), pour(capacity))  # type: ignore[assignment, func-returns-value, method-assign]
    rows = rows_of(np.arange(60_000), schema)
    slots, *_ = index.lookup(encode_keys(rows, schema.names), 1)
    assert len(poured) == 1
    assert np.array_equal(slots, np.arange(60_000))
    index.lookup(encode_keys(rows, schema.names), 2)
    assert len(poured) == 1


@of_each_kind
def test_a_few_keys_more_than_those_of_a_large_look_up_have_room_but_not_where_it_is_the_first(
    schema: pa.Schema,
) -> None:
    index = new_index(schema)
    index.lookup(encode_keys(rows_of(np.arange(150_000), schema), schema.names), 1)
    assert index.slot_capacity == 150_000
    index.lookup(encode_keys(rows_of(np.arange(150_000, 300_000), schema), schema.names), 2)
    capacity = index.slot_capacity
    index.lookup(encode_keys(rows_of(np.arange(300_000, 310_000), schema), schema.names), 3)
    assert index.slot_capacity == capacity


@of_each_kind
def test_stored_keys_come_in_order_of_groups_and_in_pieces(schema: pa.Schema) -> None:
    rows = rows_of(np.random.default_rng(3).integers(-(1 << 62), 1 << 62, 1000), schema)
    index = new_index(schema)
    slots, *_ = index.lookup(encode_keys(rows, schema.names), 1)
    order, stored = index.stored_keys(slots, 600)
    keys = stored[:]
    assert [key for start in range(0, 1000, 300) for key in stored[start : start + 300]] == keys
    assert [key[:10] for key in keys] == sorted(key[:10] for key in keys)
    groups, columns = columns_of_stored(keys, schema)
    assert np.array_equal(groups, index.key_groups(slots[order], 600))
    assert rows.take(pa.array(order)).equals(pa.record_batch(columns, schema=schema))
    assert index.stored_keys(slots[:0], 600)[1][:] == []


def test_a_slot_is_fresh_once_for_each_stamp() -> None:
    index = IntegerIndex(INTEGER)
    assert len(index.lookup(integer_keys([5, 5, 6]), 1)[1]) == 2
    assert len(index.lookup(integer_keys([5]), 1)[1]) == 0
    assert len(index.lookup(integer_keys([5]), 2)[1]) == 1
    index.clear_stamps()
    assert len(index.lookup(integer_keys([5, 6]), 2)[1]) == 2


@of_each_kind
def test_endless_inserts_and_removals_do_not_grow_the_index(schema: pa.Schema) -> None:
    index = new_index(schema)
    sizes = []
    for round_ in range(200):
        rows = rows_of(np.arange(500) + 500 * round_, schema)
        slots, *_ = index.lookup(encode_keys(rows, schema.names), round_ + 1)
        index.remove(slots)
        sizes.append(index.memory_bytes)
    assert len(index) == 0
    assert sizes[-1] <= 2 * sizes[3]


def test_keys_of_any_length_live_in_the_arena() -> None:
    texts = ["", "a" * 100_000, "b", "c" * 31, "c" * 32, "é" * 33]
    index = VariableIndex(TEXT)
    slots, *_ = index.lookup(text_keys(texts), 1)
    assert keys_in(index, slots) == texts
    assert index.lookup(text_keys(texts), 2)[0].tolist() == slots.tolist()


def test_keys_around_the_length_of_a_cell_survive_growth_removals_and_compactions() -> None:
    index = VariableIndex(TEXT)
    texts = [f"{i:05d}" + "k" * (i % 40) for i in range(6_000)]
    found: dict[str, int] = {}
    for stamp, start in enumerate(range(0, 6_000, 1_000), 1):
        some = texts[start : start + 1_000]
        found |= dict(zip(some, index.lookup(text_keys(some), stamp)[0].tolist(), strict=True))
        gone = some[::3]
        index.remove(np.array([found.pop(text) for text in gone], np.int32))
        assert index._cells.ctypes.data % 32 == 0
    assert keys_in(index, np.array(list(found.values()), np.int32)) == list(found)
    kept = np.array(list(found.values())[::2], np.int32)
    index.remove(np.array(list(found.values())[1::2], np.int32))
    index.compact(kept)
    slots = np.arange(len(kept), dtype=np.int32)
    assert keys_in(index, slots) == list(found)[::2]
    assert index.lookup(text_keys(list(found)[::2]), 9)[0].tolist() == slots.tolist()


def test_keys_of_fixed_width_take_their_bytes_and_no_more() -> None:
    pairs: list[Pair] = [(i, i % 100) for i in range(3000)]
    index = new_index(PAIR)
    assert isinstance(index, FixedIndex)
    index.lookup(pair_keys(pairs), 1)
    assert len(index._arena) == index.slot_capacity * (1 + 8 + 1 + 2)


@pytest.mark.parametrize(
    "values",
    [pa.array([None, -1, 2**62, None, 0], pa.int64()), pa.array([True, None, False, None, True])],
    ids=["integers", "booleans"],
)
def test_a_null_in_a_key_of_fixed_width_is_a_value_like_others(values: pa.Array) -> None:
    rows = pa.record_batch([values, pa.array([1, 2, 3, None, None], pa.int64())], names=["k", "n"])
    keys = encode_keys(rows, rows.schema.names)
    index = new_index(rows.schema)
    slots, *_ = index.lookup(keys, 1)
    assert index.lookup(keys, 2)[0].tolist() == slots.tolist() == [0, 1, 2, 3, 4]
    assert pa.record_batch(index.columns(slots[::-1]), schema=rows.schema).equals(rows.take(pa.array([4, 3, 2, 1, 0])))
    order, stored = index.stored_keys(slots, 600)
    columns = columns_of_stored(stored[:], rows.schema)[1]
    assert pa.record_batch(columns, schema=rows.schema).equals(rows.take(pa.array(order)))


def test_keys_of_fixed_width_come_back_the_same_before_and_after_the_first_null_among_them() -> None:
    kinds = [pa.int64(), pa.bool_(), pa.int16(), pa.decimal128(20, 3), pa.timestamp("us", "UTC"), pa.binary(3)]
    schema = pa.schema([pa.field(f"k{place}", kind) for place, kind in enumerate(kinds)])
    rows = [(i, i % 3 == 0, i, Decimal(i) / 8, 1_000 * i, b"%03d" % i) for i in range(100)]
    plain = pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)], schema=schema
    )
    index = new_index(schema)
    slots, *_ = index.lookup(encode_keys(plain, schema.names), 1)
    for _ in range(2):
        assert pa.record_batch(index.columns(slots[::-1]), schema=schema).equals(
            plain.take(pa.array(range(99, -1, -1)))
        )
        assert index.keys(slots).hashes.tolist() == encode_keys(plain, schema.names).hashes.tolist()
        index.lookup(
            encode_keys(pa.record_batch([pa.nulls(1, kind) for kind in kinds], schema=schema), schema.names), 2
        )


def test_an_arena_grows_where_it_lies_after_a_compaction() -> None:
    pairs = pa.record_batch([pa.array(range(900_000), pa.int64()), pa.array([1] * 900_000, pa.int16())], schema=PAIR)
    index = new_index(PAIR)
    assert isinstance(index, FixedIndex)
    slots, *_ = index.lookup(encode_keys(pairs, PAIR.names), 1)
    index.remove(slots[800_000:])
    index.compact(slots[:800_000])
    assert index._arena.flags.owndata and len(index._arena) >= 8 << 20
    again, fresh, _ = index.lookup(encode_keys(pairs, PAIR.names), 2)
    assert again.tolist() == list(range(900_000)) and len(fresh) == 900_000
    assert index._arena.flags.owndata


def test_an_index_that_has_given_all_slot_numbers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "SLOTS_MAX", 100)
    index = new_index(INTEGER)
    index.lookup(integer_keys(list(range(100))), 1)
    with pytest.raises(StateTooLarge, match="has 100 rows in memory"):
        index.lookup(integer_keys([100]), 2)
    slots, *_ = index.lookup(integer_keys(list(range(100))), 3)
    assert keys_in(index, slots) == list(range(100))
