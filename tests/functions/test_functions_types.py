"""Every type in every kind of state, by row and by batch, on every backend."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorInput
from holdfast.functions.process.declared import BatchFunction, Context, ProcessFunction, ProcessSpec
from holdfast.functions.process.shared.states import AggregatingState, ListState, MapState, ReducingState, ValueState
from holdfast.functions.process.shared.values import Codec
from holdfast.python_values import python_values
from holdfast.settings import HashMapState, RocksDBState
from holdfast.state.backends import tables_of
from holdfast.value_fits import Misfit

INPUT = pa.schema([("k", pa.int64())])
OUTPUT = pa.schema([("seen", pa.string())])
BACKENDS = {"hashmap": HashMapState(), "rocksdb": RocksDBState(), "cache": RocksDBState(cache_max_entries=1)}
DAY = datetime(2026, 2, 3, 4, 5, 6)

TYPES: list[tuple[pa.DataType | None, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127, 0]),
    (pa.int16(), [-(2**15), 2**15 - 1]),
    (pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.uint8(), [0, 255]),
    (pa.uint16(), [0, 2**16 - 1]),
    (pa.uint32(), [0, 2**32 - 1]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float16(), [0.5, -2.0, float("inf")]),
    (pa.float32(), [0.5, -1.25]),
    (pa.float64(), [0.1, -1e300, float("-inf")]),
    (pa.date32(), [date(2026, 1, 2), date(1900, 1, 1)]),
    (pa.date64(), [date(2026, 1, 2), date(1900, 1, 1)]),
    (pa.time32("s"), [time(0), time(23, 59, 59)]),
    (pa.time32("ms"), [time(1, 2, 3, 4000)]),
    (pa.time64("us"), [time(1, 2, 3, 4)]),
    (pa.time64("ns"), [time(1, 2, 3, 4)]),
    (pa.timestamp("s"), [DAY, datetime(1950, 1, 1)]),
    (pa.timestamp("ms"), [DAY.replace(microsecond=7000)]),
    (pa.timestamp("us"), [DAY.replace(microsecond=7)]),
    (pa.timestamp("us", tz="UTC"), [DAY.replace(tzinfo=UTC)]),
    (pa.timestamp("ns"), [DAY.replace(microsecond=7)]),
    (pa.duration("s"), [timedelta(days=-1), timedelta(0)]),
    (pa.duration("ms"), [timedelta(milliseconds=5)]),
    (pa.duration("us"), [timedelta(microseconds=-5)]),
    (pa.duration("ns"), [timedelta(microseconds=5)]),
    (pa.decimal128(20, 3), [Decimal("-1.500"), Decimal("12345678901234567.001")]),
    (pa.decimal256(50, 0), [Decimal(10**49)]),
    (pa.binary(3), [b"abc", b"\0\0\0"]),
    (pa.string(), ["", "naïve"]),
    (pa.large_string(), ["text"]),
    (pa.binary(), [b"", b"\xff"]),
    (pa.list_(pa.int32()), [[], [1, None]]),
    (pa.struct([("a", pa.int8()), ("b", pa.string())]), [{"a": 1, "b": None}]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []]),
    (None, [{"a": [1, 2.5, None, b"x"]}, "", 0, False, [[]]]),
]
IDS = [str(kind) for kind, _ in TYPES]


@pytest.fixture(params=["hashmap", *(pytest.param(name, marks=pytest.mark.long) for name in ("rocksdb", "cache"))])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTable:
    return tables_of(BACKENDS[request.param], str(tmp_path))


def as_read(kind: pa.DataType | None, values: list[Any]) -> list[Any]:
    """Return values as Arrow gives them back: equal, but perhaps of another class."""
    return values if kind is None else python_values(pa.array(values, kind))


def run(function: Any, keys: list[int], operator: Operator | None, tables: NewTable) -> tuple[Operator, list[str]]:
    """Run a batch on an operator that is new or restored from another."""
    made = ProcessSpec("types", OperatorInput(INPUT, ("k",)), function, OUTPUT).create(0, 128, tables)
    if operator is not None:
        for name, table in operator.tables.items():
            made.tables[name].apply(table.snapshot(), 0, 128)
            table.close()
    for table in made.tables.values():
        table.begin(1)
    rows = pa.record_batch([pa.array(keys, pa.int64())], schema=INPUT)
    result = made.process([(0, rows)], BatchContext(1, 0, "types", 0))
    for table in made.tables.values():
        table.commit()
    return made, [row["seen"] for batch in result.output for row in batch.to_pylist()]


def check_kept(function: Callable[[], Any], expected: list[str], tables: NewTable) -> None:
    """A key for each value: seen in the batch that writes them, and by an operator that was restored and only reads."""
    keys, operator = list(range(len(expected))), None
    for writes in (True, False):
        made = function()
        made.writes = writes
        operator, seen = run(made, keys, operator, tables)
        assert seen == expected
    assert operator is not None
    for table in operator.tables.values():
        table.close()


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=IDS)
def test_by_row_what_was_put_comes_back_also_nulls_and_defaults(
    kind: pa.DataType | None, values: list[Any], tables: NewTable
) -> None:
    both = as_read(kind, [*values, None])
    values = both[:-1]

    class Keep(ProcessFunction):
        writes = True
        value = ValueState(kind, default=values[0])
        reduced = ReducingState(lambda kept, added: added, kind)
        gathered = AggregatingState(lambda kept, added: added, values[0], type=kind)
        elements = ListState(kind)
        entries = MapState(pa.int64(), kind, default=values[0])

        def process(self, row: Any, ctx: Context) -> Iterator[dict[str, str]]:
            if self.writes:
                self.value.update(both[row.k])
                self.reduced.add(values[row.k % len(values)])
                self.gathered.add(both[row.k])
                self.elements.update(both)
                self.entries.put(row.k, both[row.k])
            seen = self.value.value(), self.reduced.get(), self.gathered.get(), self.elements.get()
            yield {"seen": repr((*seen, self.entries.items(), self.entries.get(99), self.entries.contains(row.k)))}

    expected = [
        repr(
            (
                values[0] if value is None else value,
                values[number % len(values)],
                value,
                both,
                [(number, value)],
                values[0],
                True,
            )
        )
        for number, value in enumerate(both)
    ]
    check_kept(Keep, expected, tables)


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=IDS)
def test_by_batch_what_was_put_comes_back_also_nulls_and_defaults(
    kind: pa.DataType | None, values: list[Any], tables: NewTable
) -> None:
    both = [*values, None] if kind is None else pa.array([*values, None], kind).to_pylist()
    values = both[:-1]

    class Keep(BatchFunction):
        writes = True
        value = ValueState(kind, default=values[0])
        elements = ListState(kind)
        entries = MapState(pa.string(), kind, default=values[0])

        def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Context) -> pa.RecordBatch:
            names = ["entry"] * len(both)
            if self.writes:
                put: Any = both if kind is None else pa.array(both, kind)
                self.value.update(put)
                self.elements.append(put, groups)
                self.elements.append([[value] for value in both])
                self.entries.put(names, put)
            others = self.entries.get(["none"] * len(both))
            found = [self.value.values(), self.elements.get(), self.entries.get(names), others]
            lists = [each if isinstance(each, list) else each.to_pylist() for each in found]
            seen = [repr(row) for row in zip(*lists, self.entries.contains(names).tolist(), strict=True)]
            return pa.record_batch([pa.array(seen)], schema=OUTPUT)

    expected = [repr((values[0] if value is None else value, [value, value], value, values[0], True)) for value in both]
    check_kept(Keep, expected, tables)


ZONES = [None, "UTC", "Europe/Berlin", "America/New_York", "+05:30"]
MOMENTS = [
    0,
    -1,
    86_399_999_999,
    1_774_745_999_999_999,
    1_774_746_000_000_000,
    -62_000_000_000_000_000,
    250_000_000_000_000_000,
]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ZONES)
def test_times_become_the_python_values_that_arrow_gives(zone: str | None, unit: str) -> None:
    some = MOMENTS if unit != "ns" else MOMENTS[:5]
    moments = pa.array([*some, None], pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
    times = moments.cast(pa.timestamp(unit, tz=zone))
    for array in (times, times.slice(2, 3), times.slice(0, 0), times.slice(len(some))):
        expected = array.cast(pa.timestamp("us", tz=zone)).to_pylist()
        assert python_values(array) == expected
        assert [getattr(value, "tzinfo", None) for value in python_values(array)] == [
            getattr(value, "tzinfo", None) for value in expected
        ]


def test_dates_become_the_python_values_that_arrow_gives() -> None:
    days = pa.array([0, -1, None, 2_000_000, -700_000], pa.int32()).cast(pa.date32())
    assert python_values(days) == days.to_pylist()


def test_states_without_a_type_take_times_and_dates() -> None:
    codec = Codec(None)
    assert codec.get is not None
    zoned = datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=ZoneInfo("Europe/Berlin"))
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999)
    for value in (zoned, DAY, DAY.date(), datetime(1, 1, 1), last, {"at": [DAY, zoned]}):
        assert codec.get(codec.put(value)) == value


MUTABLE: list[tuple[pa.DataType, Any]] = [
    (pa.list_(pa.string()), ["a", None]),
    (pa.list_(pa.list_(pa.int64())), [[1], None, []]),
    (pa.map_(pa.string(), pa.list_(pa.string())), {"a": ["b"], "c": None}),
    (pa.map_(pa.string(), pa.string()), {"a": "b"}),
    (pa.struct([("n", pa.int64()), ("l", pa.list_(pa.struct([("s", pa.string())])))]), {"n": 1, "l": [{"s": "x"}]}),
]


def containers(value: Any) -> Iterator[Any]:
    """The lists and dicts in a value, itself included."""
    if isinstance(value, list | dict):
        yield value
    if isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from containers(each)


@pytest.mark.parametrize(
    ("kind", "value"), MUTABLE, ids=lambda each: str(each) if isinstance(each, pa.DataType) else ""
)
def test_no_list_or_dict_of_a_kept_value_is_shared_with_a_user(kind: pa.DataType, value: Any) -> None:
    codec = Codec(kind)
    kept = codec.put(value)
    assert codec.get is not None
    given = codec.get(kept)
    assert given == kept == python_values(pa.array([value], kind))[0]
    shared = [map(id, containers(each)) for each in (value, kept, given)]
    assert len(set().union(*shared)) == sum(len(list(containers(each))) for each in (value, kept, given))
    assert codec.get(None) is None


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.int8()), [1, 128]),
        (pa.list_(pa.uint8()), [-1]),
        (pa.list_(pa.int64()), [True]),
        (pa.list_(pa.int64()), [1, "2"]),
        (pa.list_(pa.bool_()), [1]),
        (pa.list_(pa.string()), ["a", b"b"]),
        (pa.list_(pa.field("item", pa.string(), nullable=False)), ["a", None]),
        (pa.map_(pa.string(), pa.int8()), {"a": 128}),
        (pa.map_(pa.string(), pa.string()), {"a": 1}),
    ],
    ids=str,
)
def test_a_list_with_an_element_that_does_not_fit_is_refused(kind: pa.DataType, values: Any) -> None:
    with pytest.raises(Misfit):
        Codec(kind).put(values)


def within_itself() -> list[Any]:
    """A list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        [[1, "a", None], [2.5, b"b", True]],
        [DAY.replace(tzinfo=UTC), 1],
        [[DAY.replace(tzinfo=UTC), 1], [DAY, 2], [date(2026, 1, 2)]],
        [[], [DAY]],
        [[[DAY]], {"a": [[date(2026, 1, 2)]]}],
    ],
    ids=str,
)
def test_untyped_values_are_read_as_they_were_put_at_any_depth(value: Any) -> None:
    codec = Codec(None)
    assert codec.get is not None
    assert codec.get(codec.put(value)) == value


@pytest.mark.parametrize(
    "value",
    [[Decimal(1)], [[1], [{2}]], [[1, DAY.replace(tzinfo=UTC), timedelta(1)]], [[2**70]], within_itself()],
    ids=["decimal", "set", "duration", "large", "within itself"],
)
def test_values_that_msgpack_would_change_are_refused_at_any_depth(value: Any) -> None:
    with pytest.raises(Misfit):
        Codec(None).put(value)
