"""Columns of tables: PostgreSQL's types as Arrow types, and values as text as Arrow arrays.

A type that Arrow and Spark cannot represent exactly becomes text in PostgreSQL's form: arrays, enums, intervals,
`time`, JSON, `numeric` without a precision. All values come as text, from `pgoutput` and from COPY alike, under session
settings that fix their form (`session.py`).
"""

from collections.abc import Callable
from decimal import Decimal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.casts import cast_in_range
from holdfast.errors import JobRefused
from holdfast.schema import CHANGE_TYPE
from holdfast.sources.postgres.kernels import gather
from holdfast.sources.schema_fit import fits

Ints = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

_PLAIN: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),  # oid
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}
_NUMERIC = 1700
LSN, XID, COMMIT_TIME = "_lsn", "_xid", "_commit_time"
FACTS = [
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(LSN, pa.int64(), nullable=False),
    pa.field(XID, pa.int64(), nullable=False),
    pa.field(COMMIT_TIME, pa.timestamp("us", tz="UTC"), nullable=False),
]
"""Columns that describe the change to which each row belongs."""


class PublishedColumn(msgspec.Struct, frozen=True):
    """A published column: name, type and type modifier as in PostgreSQL's catalog.

    `key`: part of the primary key. `as_text`: text by choice, whatever the type is.
    """

    name: str
    type_oid: int
    modifier: int
    key: bool = False
    as_text: bool = False

    @property
    def arrow(self) -> pa.DataType:
        return pa.string() if self.as_text else arrow_type(self.type_oid, self.modifier)


class TableColumns(msgspec.Struct, frozen=True):
    """A table with its published columns, in the table's order.

    `oid`: the id of the table, which distinguishes it from another table of the same name (0: unknown). `row_filter`:
    the publication's condition on rows, in SQL ("": none). `is_partitioned`: its rows are those of its partitions.
    """

    name: str
    columns: tuple[PublishedColumn, ...]
    oid: int = 0
    row_filter: str = ""
    is_partitioned: bool = False

    @property
    def keys(self) -> list[str]:
        """Return the names of the columns of the primary key."""
        return [each.name for each in self.columns if each.key]

    def schema(self) -> pa.Schema:
        """Return the schema of the table's stream."""
        return pa.schema([*(pa.field(each.name, each.arrow) for each in self.columns), *FACTS])


def arrow_type(oid: int, modifier: int) -> pa.DataType:
    """Return the Arrow type of a PostgreSQL type; text if no type shows all values exactly."""
    if oid == _NUMERIC and modifier >= 4:
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        if precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    return _PLAIN.get(oid, pa.string())


def text_array(data: ByteArray, starts: Ints, lengths: Ints) -> pa.Array:
    """Return values as strings; negative lengths are nulls."""
    count = len(starts)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    if offsets[-1] >= 2**31:
        raise ValueError(f"a column of {offsets[-1]} bytes in a piece; pieces are made smaller than 2 GB")
    out = np.empty(int(offsets[-1]), np.uint8)
    valid = np.zeros((count + 7) // 8, np.uint8)
    gather(data, starts, lengths, offsets, out, valid)
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.StringArray.from_buffers(count, buffers[1], buffers[2], buffers[0])


def typed(table: str, column: PublishedColumn, text: pa.Array) -> pa.Array:
    """Convert values from text. Raises `JobRefused`, naming the column, if a value has no place in the Arrow type."""
    made = column.arrow
    try:
        return _made(text, made)
    except (pa.ArrowInvalid, ValueError) as error:
        value = _first_refused(text, made)
        raise JobRefused(
            f"table {table}, column {column.name!r}: the value {value!r} does not fit {made}. To have the column as "
            f"text: PostgresCdcSource(text_columns=['{table}.{column.name}'])"
        ) from error


def _made(text: pa.Array, made: pa.DataType) -> pa.Array:
    return _CASTS.get(made.id, _cast)(text, made)


def _first_refused(text: pa.Array, made: pa.DataType) -> str:
    """Return the first value that does not fit a type, among values not all of which fit."""
    while len(text) > 1:
        half = text.slice(0, len(text) // 2)
        try:
            _made(half, made)
        except (pa.ArrowInvalid, ValueError):
            text = half
        else:
            text = text.slice(len(half))
    return str(text[0])


def _cast(text: pa.Array, made: pa.DataType) -> pa.Array:
    return text if made == pa.string() else pc.cast(text, made)


def _booleans(text: pa.Array, made: pa.DataType) -> pa.Array:
    return pc.starts_with(text, "t")


def _binary(text: pa.Array, made: pa.DataType) -> pa.Array:
    return pa.array([None if each is None else bytes.fromhex(each[2:]) for each in text.to_pylist()], made)


_CASTS: dict[int, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    pa.bool_().id: _booleans,
    pa.binary().id: _binary,
}


def fitted(rows: pa.Table, table: TableColumns) -> pa.Table:
    """Return stored rows with the columns that the table has now: those that were added since are null.

    Raises `JobRefused` if a column now has another type, in which PostgreSQL might show a stored value otherwise.
    """
    arrays = []
    for field in table.schema():
        found = rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        made = found if found.type == field.type else _changed(found.combine_chunks(), field.type)
        if made is None:
            raise JobRefused(
                f"table {table.name}, column {field.name!r}: changes that are stored have it as {found.type}, and the "
                f"table as {field.type} now, in which these changes cannot be told exactly. Give the column its old "
                "type (or its old place in text_columns=), or start on a new storage, with a snapshot"
            )
        arrays.append(made)
    return pa.table(arrays, schema=table.schema())


def _changed(found: pa.Array, now: pa.DataType) -> pa.Array | None:
    """Return stored values in the type that their column has now, as PostgreSQL would have sent them; None if that is
    not known for each of them."""
    if pa.types.is_string(now):
        return _as_text(found)
    try:
        if pa.types.is_string(found.type) and not pa.types.is_decimal(now):
            return _made(found, now)
        if fits(found.type, now) or (_is_exact(now) and (_is_exact(found.type) or pa.types.is_string(found.type))):
            values, outside = cast_in_range(found, now)
            return values if outside is None else None
    except (pa.ArrowException, ValueError):
        return None
    return None


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _as_text(values: pa.Array) -> pa.Array | None:
    """Return values in PostgreSQL's form, which is not known for floats: it depends on the server's version."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return pc.if_else(values, "t", "f")
    if pa.types.is_integer(kind) or pa.types.is_date(kind):
        return pc.cast(values, pa.string())
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring_regex(pc.cast(values, pa.string()), r"(\.[0-9]*?)0*(Z?)$", r"\1\2")
        return pc.replace_substring(pc.replace_substring_regex(text, r"\.(Z?)$", r"\1"), "Z", "+00")
    shown = format_binary if pa.types.is_binary(kind) else format_decimal if pa.types.is_decimal(kind) else None
    if shown is None:
        return None
    return pa.array([None if each is None else shown(each) for each in values.to_pylist()], pa.string())


def format_binary(value: bytes) -> str:
    return "\\x" + value.hex()


def format_decimal(value: Decimal) -> str:
    return format(value, "f")
