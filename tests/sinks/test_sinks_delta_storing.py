"""Rows in Delta's types: what does not fit is found before it is staged."""

import pyarrow as pa

import holdfast as hf
from holdfast.sinks.delta.storing import as_stored, unstorable
from holdfast.sinks.delta.table_schema import stored_schema


def test_times_in_a_coarser_unit_are_stored_in_microseconds() -> None:
    times = pa.array([-1, 1_999, None], pa.int64()).view(pa.timestamp("ms"))
    rows = pa.table({"t": times, "n": [1, 2, 3]})
    assert unstorable(rows.to_batches()[0]) == {}
    made = as_stored(rows)
    assert made.schema.equals(stored_schema(rows.schema))
    assert made.column("t").cast(pa.int64()).to_pylist() == [-1_000, 1_999_000, None]


def test_a_row_with_a_time_beyond_microseconds_is_refused_by_the_sink() -> None:
    times = pa.array([0, 2**62, None, -(2**62)], pa.int64()).view(pa.timestamp("s"))
    rows = pa.record_batch([times], names=["t"])
    refused = hf.DeltaSink("memory://table").refused(rows)
    assert list(refused) == [1, 3]
    assert "column 't' (timestamp[s]) has a value that Delta's timestamp[us]" in refused[1]
