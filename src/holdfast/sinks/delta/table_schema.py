"""Types that Delta can hold, and differences between an existing table and a stream. Pure: reads a loaded table, does
no I/O.

Every difference is named, so that a user corrects them all at once. Table features that a writer of plain data files
cannot honour are refused, not ignored: constraints, invariants, generated columns, column mapping, unknown features.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from holdfast.schema import CHANGE_TYPE

HARMLESS_FEATURES = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
    }
)
"""Writer features that do not matter for added files, or whose use by the table is checked below."""

CHANGE_FEED_COLUMNS = (CHANGE_TYPE, "_commit_version", "_commit_timestamp")

_COLUMN_RULES = {
    "delta.generationExpression": "is a generated column",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
}
_SIMPLE = (
    (pa.types.is_boolean, "boolean", pa.bool_()),
    (pa.types.is_int8, "byte", pa.int8()),
    (pa.types.is_int16, "short", pa.int16()),
    (pa.types.is_uint8, "short", pa.int16()),
    (pa.types.is_int32, "integer", pa.int32()),
    (pa.types.is_uint16, "integer", pa.int32()),
    (pa.types.is_int64, "long", pa.int64()),
    (pa.types.is_uint32, "long", pa.int64()),
    (pa.types.is_float16, "float", pa.float32()),
    (pa.types.is_float32, "float", pa.float32()),
    (pa.types.is_float64, "double", pa.float64()),
    (pa.types.is_string, "string", pa.string()),
    (pa.types.is_large_string, "string", pa.string()),
    (pa.types.is_string_view, "string", pa.string()),
    (pa.types.is_binary, "binary", pa.binary()),
    (pa.types.is_large_binary, "binary", pa.binary()),
    (pa.types.is_binary_view, "binary", pa.binary()),
    (pa.types.is_fixed_size_binary, "binary", pa.binary()),
    (pa.types.is_date32, "date", pa.date32()),
)


class DeltaType(NamedTuple):
    """A type by Delta's name, and the Arrow type in which it is written."""

    name: str
    arrow: pa.DataType


class Unsupported(ValueError):
    """Raised for an Arrow type whose values do not all fit a type of Delta."""


def delta_type(kind: pa.DataType) -> DeltaType:
    """Delta's type that holds every value of an Arrow type exactly.

    Raises
    ------
    Unsupported
        There is none; the message names the remedy.
    """
    if pa.types.is_dictionary(kind):
        return delta_type(kind.value_type)
    for matches, name, arrow in _SIMPLE:
        if matches(kind):
            return DeltaType(name, arrow)
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return DeltaType(f"decimal({kind.precision},{kind.scale})", pa.decimal128(kind.precision, kind.scale))
    if pa.types.is_timestamp(kind):
        return _timestamp(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = delta_type(kind.value_type)
        return DeltaType(f"array<{element.name}>", pa.list_(pa.field("element", element.arrow)))
    if pa.types.is_struct(kind):
        fields = [(field.name, delta_type(field.type)) for field in kind]
        names = ",".join(f"{name}:{inner.name}" for name, inner in fields)
        return DeltaType(f"struct<{names}>", pa.struct([pa.field(name, inner.arrow) for name, inner in fields]))
    if pa.types.is_map(kind):
        key, value = delta_type(kind.key_type), delta_type(kind.item_type)
        return DeltaType(f"map<{key.name},{value.name}>", pa.map_(key.arrow, value.arrow))
    raise Unsupported(f"{kind} has no counterpart in Delta; cast it in a transform")


def _timestamp(kind: pa.TimestampType) -> DeltaType:
    if kind.unit == "ns":
        raise Unsupported(f"{kind} is finer than Delta's microseconds; cast it in a transform")
    if kind.tz is None:
        return DeltaType("timestamp_ntz", pa.timestamp("us"))
    return DeltaType("timestamp", pa.timestamp("us", "UTC"))


def unsupported(schema: pa.Schema) -> list[str]:
    """Columns that Delta cannot hold, each with the reason; names that differ only in case."""
    found = []
    seen: dict[str, str] = {}
    for field in schema:
        try:
            delta_type(field.type)
        except Unsupported as error:
            found.append(f"column {field.name!r}: {error}")
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name or schema.names.count(field.name) > 1:
            found.append(f"column {field.name!r}: Delta does not tell it from {other!r}; rename one")
        bad = sorted(set(field.name) & set(" ,;{}()\n\t="))
        if bad:
            found.append(f"column {field.name!r}: Delta allows no {''.join(bad)!r} in names; rename it in a transform")
    return found


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which rows are written: Delta's types, every column nullable, as Spark creates tables."""
    return pa.schema([pa.field(field.name, delta_type(field.type).arrow) for field in schema])


def type_names(table: DeltaTable) -> dict[str, str]:
    """Delta's type names of a table's columns."""
    return {field["name"]: _json_name(field["type"]) for field in _fields(table)}


def _fields(table: DeltaTable) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def _json_name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_json_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_json_name(kind['keyType'])},{_json_name(kind['valueType'])}>"
    fields = [f"{field['name']}:{_json_name(field['type'])}" for field in kind["fields"]]
    return f"struct<{','.join(fields)}>"


def missing_columns(table: DeltaTable, schema: pa.Schema) -> list[pa.Field]:
    """Columns of the stream that the table lacks, by their exact names."""
    present = type_names(table)
    return [field for field in schema if field.name not in present]


def differences(
    table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str], *, upsert: bool, may_add: bool
) -> list[str]:
    """Everything that keeps rows of `schema` from going into this table; empty if the table fits."""
    return [
        *_table_differences(table, partition_by, upsert),
        *_column_differences(table, schema),
        *_missing_differences(table, schema, may_add),
    ]


def _table_differences(table: DeltaTable, partition_by: Sequence[str], upsert: bool) -> list[str]:
    found = []
    metadata, protocol = table.metadata(), table.protocol()
    settings = metadata.configuration
    if list(metadata.partition_columns) != list(partition_by):
        found.append(
            f"the table is partitioned by {tuple(metadata.partition_columns)}, the sink by {tuple(partition_by)}: pass "
            f"partition_by={tuple(metadata.partition_columns)}"
        )
    mapping = settings.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        found.append(f"the table uses column mapping (mode {mapping}), expected none")
    for key, expression in settings.items():
        if key.startswith("delta.constraints."):
            found.append(f"constraint {key.removeprefix('delta.constraints.')!r} ({expression}) would not be checked")
    if "delta.setTransactionRetentionDuration" in settings:
        found.append(
            "delta.setTransactionRetentionDuration lets the table forget which groups were published; unset it"
        )
    if upsert and settings.get("delta.appendOnly") == "true":
        found.append("the table is append-only (delta.appendOnly), which an upsert cannot honour")
    features = set(protocol.writer_features or ())
    unknown = sorted(features - HARMLESS_FEATURES)
    if unknown:
        found.append(f"the table uses features that this writer does not know: {', '.join(unknown)}")
    if upsert and "deletionVectors" in features and settings.get("delta.enableDeletionVectors") == "true":
        found.append("the table uses deletion vectors, which a merge here cannot honour; disable them and purge")
    return found


def _column_differences(table: DeltaTable, schema: pa.Schema) -> list[str]:
    found = []
    if table.metadata().configuration.get("delta.enableChangeDataFeed") == "true":
        taken = [name for name in CHANGE_FEED_COLUMNS if name in schema.names]
        found += [f"column {name!r} is reserved by the table's change data feed; rename it" for name in taken]
    present = type_names(table)
    for field in _fields(table):
        name, text = field["name"], json.dumps(field)
        found += [f"column {name!r} {meaning} ({rule})" for rule, meaning in _COLUMN_RULES.items() if rule in text]
        in_stream = schema.get_field_index(name) >= 0
        if not field["nullable"] and (not in_stream or schema.field(name).nullable):
            what = "allows them" if in_stream else "does not have the column"
            found.append(f"column {name!r}: the table forbids nulls, the stream {what}")
        if not in_stream and "CURRENT_DEFAULT" in text:
            found.append(f"column {name!r} has a default that would not be applied; add the column to the stream")
    for field in schema:
        if field.name in present and present[field.name] != delta_type(field.type).name:
            found.append(
                f"column {field.name!r}: the table has {present[field.name]}, the stream {delta_type(field.type).name} "
                f"({field.type})"
            )
    return found


def _missing_differences(table: DeltaTable, schema: pa.Schema, may_add: bool) -> list[str]:
    lowered = {name.lower(): name for name in type_names(table)}
    found = []
    for field in missing_columns(table, schema):
        other = lowered.get(field.name.lower())
        if other is not None:
            found.append(f"column {field.name!r}: the table has {other!r}; rename it in a transform")
        elif not may_add:
            found.append(
                f"column {field.name!r} ({delta_type(field.type).name}) is not in the table: add it there, or pass "
                'schema_mode="merge"'
            )
    return found
