"""Rows of maps and lists that a user gives, in the form in which their tables store them. Pure.

    map:   keys, map_key, value   ──►  <state>.entries: (keys, map_key) → value, position
                                       <state>.order:   (keys, position) → map_key
    list:  keys, position, value  ──►  <state>.elements: (keys, position) → value
    list of the subtask: position, value  ──►  <state>.list: (seat, position) → value, shared among all key groups

The number of entries of each key is a column of the operator's own table. `functions/process/shared/entries.py`
describes this layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused
from holdfast.state.seats import SEAT, key_group_of, seats_of
from holdfast.stored_state.states import ReadableState

POSITION, MAP_KEY, VALUE, TIME = "__position", "__map_key", "__value", "__time"
ROW = "__row"
SUBTASK_LIST = "subtask list"
SHOWN = {"map": ("map_key", "value"), "list": ("position", "value"), SUBTASK_LIST: ("position", "value")}
"""The columns of a state's rows besides the key columns, by kind of state."""


@dataclass(frozen=True)
class LaidOut:
    """The rows of each table of a state, and the number of entries of each key (`SIZE` beside the key columns)."""

    tables: Mapping[str, pa.Table]
    sizes: pa.Table


SIZE = "__size"


def lay_out(who: str, state: ReadableState, given: pa.Table, keys: list[str]) -> LaidOut:
    """Turn the rows of a map or list into rows of its tables. `who` begins the message of `JobRefused` for rows that do
    not fit."""
    _check_columns(who, given, keys, SHOWN[state.kind])
    if state.kind == "list":
        ascending: list[tuple[str, str]] = [("position", "ascending")]
        given = given.sort_by(ascending)
    ordered, sizes = _by_key(given, keys)
    counts = sizes.column(SIZE).to_numpy()
    positions = np.arange(len(ordered)) - np.repeat(np.cumsum(counts) - counts, counts)
    own = {name: ordered.column(name) for name in keys}
    if state.kind == "list":
        if not np.array_equal(pc.fill_null(ordered.column("position"), -1).to_numpy(), positions):
            raise JobRefused(f"{who}: the positions of each key's elements must be 0, 1, 2, … without a gap")
        return LaidOut(
            {f"{state.name}.elements": pa.table({**own, POSITION: positions, VALUE: ordered["value"]})}, sizes
        )
    if ordered.column("map_key").null_count:
        raise JobRefused(f"{who}: column 'map_key' has nulls; leave these rows out")
    entries = pa.table({**own, MAP_KEY: ordered["map_key"], VALUE: ordered["value"], POSITION: positions})
    order = pa.table({**own, POSITION: positions, VALUE: ordered["map_key"]})
    return LaidOut({f"{state.name}.entries": entries, f"{state.name}.order": order}, sizes)


def lay_out_shares(who: str, state: ReadableState, given: pa.Table, max_parallelism: int) -> pa.Table:
    """Turn the rows of a list of the subtask into rows of its table, in the order of positions, for any parallelism.

    In rows that were read from two subtasks the same position may occur twice, so new positions are given.
    """
    _check_columns(who, given, [], SHOWN[state.kind])
    if given.column("position").null_count:
        raise JobRefused(f"{who}: column 'position' has nulls; give each entry its place in the list")
    ascending: list[tuple[str, str]] = [("position", "ascending")]
    values = given.sort_by(ascending).column("value")
    places, seats = range(len(values)), seats_of(max_parallelism)
    owned = [seats[key_group_of(place, range(max_parallelism))] for place in places]
    return pa.table({SEAT: pa.array(owned, pa.int64()), POSITION: pa.array(places, pa.int64()), VALUE: values})


def with_sizes(values: pa.Table, laid: Mapping[str, LaidOut], containers: list[str], keys: list[str]) -> pa.Table:
    """Return the rows of the operator's own table: the given values, and the sizes of all maps and lists.

    A key that has only entries gets a row too, since its sizes are stored there.
    """
    for state in containers:
        size = f"{state}.size"
        if state in laid:
            sizes = laid[state].sizes.rename_columns([*keys, size])
            values = values.join(sizes, keys, join_type="full outer")
            values = values.set_column(values.column_names.index(size), size, pc.fill_null(values[size], 0))
        else:
            values = values.append_column(size, pa.array(np.zeros(len(values), np.int64)))
    return values


def _check_columns(who: str, given: pa.Table, keys: list[str], more: tuple[str, ...]) -> None:
    expected = [*keys, *more]
    if sorted(given.column_names) != sorted(expected):
        raise JobRefused(f"{who}: its columns are {', '.join(given.column_names)}; expected {', '.join(expected)}")
    nulls = [name for name in keys if given.column(name).null_count]
    if nulls:
        raise JobRefused(f"{who}: key column {nulls[0]!r} has nulls; leave these rows out")


def _by_key(given: pa.Table, keys: list[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows grouped by key, in their order within each key, and the number of rows of each key."""
    numbered = given.append_column(ROW, pa.array(np.arange(len(given))))
    grouped = numbered.group_by(keys, use_threads=False).aggregate([(ROW, "list")])
    rows = grouped.column(f"{ROW}_list").combine_chunks()
    counts = pc.fill_null(pc.list_value_length(rows), 0).cast(pa.int64())
    return given.take(rows.flatten()), grouped.select(keys).append_column(SIZE, counts)
