"""The fit of rows to the schema of a source, and the policy for files whose columns change.

Pure. A file may lack a column (`on_missing_column`), have another column (`on_new_column`), or hold a type of which
every value is also a value of the declared type. Any other difference is refused with file, column and types.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.casts import cast_in_range
from holdfast.errors import BadRecord

INTEGER_BITS = {
    pa.int8(): 8,
    pa.int16(): 16,
    pa.int32(): 32,
    pa.int64(): 64,
}
UNSIGNED_BITS = {pa.uint8(): 8, pa.uint16(): 16, pa.uint32(): 32, pa.uint64(): 64}


@dataclass(frozen=True)
class EvolutionPolicy:
    """The reaction to a file with other columns than the schema.

    A new column is refused (`fail`) or left out (`ignore`); a missing column is refused or read as `null`.
    """

    on_new_column: str = "fail"
    on_missing_column: str = "fail"
    elsewhere: frozenset[str] = frozenset()
    """Columns whose values are outside of the file, in the names of its folders; they are never new."""


def columns_problem(found: Sequence[str], schema: pa.Schema, policy: EvolutionPolicy, path: str) -> str | None:
    """Return the reason why the policy refuses a file with these columns; None if it does not."""
    doubled = sorted({name for name in found if list(found).count(name) > 1})
    if doubled:
        return f"the file has two columns {doubled[0]!r} or more: rename them"
    new = [name for name in found if name not in schema.names and name not in policy.elsewhere]
    if new and policy.on_new_column == "fail":
        return f"the file {new_columns(new, schema)}"
    for field in schema:
        if field.name in found:
            continue
        if is_in_folder(field.name, path):
            return in_folder(field.name)
        if policy.on_missing_column == "fail":
            return (
                f"the file has no column {field.name!r} ({field.type}), only {list(found)}: use "
                "on_missing_column='null' to read nulls"
            )
        if not field.nullable:
            return f"the file has no column {field.name!r}, which schema= declares as never null"
    return None


def is_in_folder(column: str, path: str) -> bool:
    """True if the name of a folder of the file gives a value of the column."""
    return f"/{column}=" in path


def in_folder(column: str) -> str:
    """Say that a file lacks a column that its folder has."""
    return f"column {column!r} is in the name of the file's folder, not in the file: use partitioning='hive'"


def new_columns(new: Sequence[str], schema: pa.Schema) -> str:
    """Say that a file or a row has columns that the schema has not, and which setting takes it."""
    return (
        f"has new columns {list(new)}, expected {schema.names}: add them to schema=, or use on_new_column='ignore' to "
        "leave them out"
    )


def types_problem(found: pa.Schema, schema: pa.Schema) -> str | None:
    """Return which columns have a type in the file that does not fit; None if all fit."""
    pairs = [(field.name, found.field(field.name).type, field.type) for field in schema if field.name in found.names]
    wrong = [(name, type_, wanted) for name, type_, wanted in pairs if not fits(type_, wanted)]
    if not wrong:
        return None
    problems = "; ".join(f"column {name!r} is {type_}, expected {wanted}" for name, type_, wanted in wrong)
    advice = "write the file with the expected types, or change schema="
    if all(pa.types.is_timestamp(type_) and pa.types.is_timestamp(wanted) for _, type_, wanted in wrong):
        advice += " (TIMESTAMP_NTZ for times without a zone, TIMESTAMP for times with a zone)"
    return f"{problems}: {advice}"


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every value of the found type is a value of the wanted type.

    A finer timestamp fits too: it is rounded down to the wanted unit.
    """
    if found == wanted or pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return fits(found.value_type, wanted)
    if found in INTEGER_BITS or found in UNSIGNED_BITS:
        return _integer_fits(found, wanted)
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        whole, wanted_whole = found.precision - found.scale, wanted.precision - wanted.scale
        return bool(found.scale <= wanted.scale and whole <= wanted_whole)
    if _is_list(found) and _is_list(wanted):
        return fits(found.value_type, wanted.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        return [field.name for field in found] == [field.name for field in wanted] and all(
            fits(one.type, other.type) for one, other in zip(found, wanted, strict=True)
        )
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return fits(found.key_type, wanted.key_type) and fits(found.item_type, wanted.item_type)
    return (_is_text(found) and _is_text(wanted)) or (_is_bytes(found) and _is_bytes(wanted))


def _integer_fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    bits = INTEGER_BITS.get(found) or UNSIGNED_BITS[found]
    signed = found in INTEGER_BITS
    if wanted in INTEGER_BITS:
        return INTEGER_BITS[wanted] >= bits + (0 if signed else 1)
    if wanted in UNSIGNED_BITS:
        return not signed and UNSIGNED_BITS[wanted] >= bits
    return bool(pa.types.is_float64(wanted) and bits <= 32)


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_binary_view(type_)
    )


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch as `conformed` does. Raises `BadRecord` for the first value that a column cannot hold."""
    rows, bad = conformed(batch, schema)
    if bad:
        number = min(bad)
        raise BadRecord(f"row {number} of {batch.num_rows}: {bad[number]}")
    return rows


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return the batch with exactly the columns of the schema, in its order; columns that it lacks are null.

    Also return the rows with a value that a column cannot hold, each with the reason; such a value becomes null. The
    caller has checked that names and types fit.
    """
    columns = []
    bad: dict[int, str] = {}
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column, outside = cast_in_range(batch.column(index), field.type)
        columns.append(column)
        if outside is not None:
            reason = f"column {field.name!r} ({batch.column(index).type}) has a value that {field.type} cannot hold"
            bad = dict.fromkeys(np.flatnonzero(outside).tolist(), reason) | bad
    return pa.RecordBatch.from_arrays(columns, schema=schema), bad


def forbidden_nulls(batch: pa.RecordBatch) -> tuple[np.ndarray, str] | None:
    """Return a mask of the rows with a null that the schema forbids, and the first column with a forbidden null.

    Returns None if no row has a forbidden null.
    """
    mask = np.zeros(batch.num_rows, dtype=bool)
    first = ""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            mask |= column.is_null().to_numpy(zero_copy_only=False)
            first = first or field.name
    return (mask, first) if first else None


def spark_friendly(type_: pa.DataType) -> pa.DataType:
    """Return the type of Spark SQL for a column of an inferred schema; types without a counterpart stay."""
    if pa.types.is_dictionary(type_):
        return spark_friendly(type_.value_type)
    if pa.types.is_null(type_) or pa.types.is_time(type_) or _is_text(type_):
        return pa.string()
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    return type_
