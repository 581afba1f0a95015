"""Delta merge of a group of changes: the last row per key counts.

Invariants: a merge is a single commit with the app transaction in it, even if it changes nothing. The merge is computed
from the version that was checked: another writer's commit in between makes it fail.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

from holdfast.equality import normalised_keys
from holdfast.errors import BadRecord
from holdfast.python_values import shown_rows
from holdfast.schema import CHANGE_TYPE, CHANGE_TYPES, PUTTING_CHANGES, REMOVING_CHANGES

_DELETED = "__holdfast_deleted"
_ROW = "__holdfast_row"


def data_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the table, without `_change_type`."""
    index = schema.get_field_index(CHANGE_TYPE)
    return schema if index < 0 else schema.remove(index)


def check_changes(rows: pa.Table, sink: str) -> None:
    """Refuse unknown change types before any of the rows is staged. Raises `BadRecord`."""
    if CHANGE_TYPE not in rows.schema.names:
        return
    allowed = CHANGE_TYPES
    unknown = pc.invert(pc.is_in(rows.column(CHANGE_TYPE), value_set=pa.array([*allowed, None])))
    if pc.any(unknown).as_py():
        index = pc.index(unknown, True).as_py()
        raise BadRecord(
            f"sink {sink!r}: row {shown_rows(rows.slice(index, 1))[0]} has {CHANGE_TYPE} "
            f"{rows.column(CHANGE_TYPE)[index].as_py()!r}; expected one of {', '.join(allowed)}"
        )


def changes_of(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Prepare staged rows for a merge: normalised keys, and a column that marks rows that go.

    The row before an update counts as a removal too: the later row after the update has precedence, unless its key
    differs.
    """
    rows = normalised_keys(rows, keys)
    if CHANGE_TYPE not in rows.schema.names:
        return rows.append_column(_DELETED, pa.array(np.zeros(rows.num_rows, np.bool_)))
    change = pc.fill_null(rows.column(CHANGE_TYPE), PUTTING_CHANGES[0])
    return rows.drop_columns([CHANGE_TYPE]).append_column(_DELETED, pc.is_in(change, pa.array(REMOVING_CHANGES)))


def last_per_key(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last change of each key, in the order of those rows. Null is a key like any other."""
    numbered = rows.select(list(keys)).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(list(keys), use_threads=False).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pc.take(last, pc.sort_indices(last)).combine_chunks())


CLEANUP_COMMITS = 100
"""Commits between two removals of expired entries of the log, for which delta-rs lists all of it several times. A
higher value keeps expired entries longer; a lower value makes commits to a long log slower."""


def after_commit(table: DeltaTable) -> PostCommitHookProperties:
    """Return the work that follows the table's next commit: a checkpoint as the table says, and sometimes, if the table
    allows it, the removal of expired entries of the log."""
    removes = (table.version() + 1) % CLEANUP_COMMITS == 0
    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=None if removes else False)


def merge(table: DeltaTable, changes: pa.Table, keys: Sequence[str], commit: CommitProperties) -> None:
    """Merge the changes from `last_per_key` as a single commit. Raises the errors of delta-rs."""
    columns = [name for name in changes.schema.names if name != _DELETED]
    deletes = bool(pc.any(changes.column(_DELETED)).as_py())
    if not deletes:
        changes = changes.drop_columns([_DELETED])
    merger = table.merge(
        changes,
        " AND ".join(_equal(key, changes.column(key)) for key in keys),
        source_alias="s",
        target_alias="t",
        # The rows are in memory anyway, and this way delta-rs skips files by their key range.
        streamed_exec=False,
        commit_properties=commit,
        post_commithook_properties=after_commit(table),
    )
    values = {_quoted(name): f"s.{_quoted(name)}" for name in columns}
    updates = {_quoted(name): f"s.{_quoted(name)}" for name in columns if name not in keys}
    kept = f"NOT s.{_quoted(_DELETED)}" if deletes else None
    if deletes:
        merger = merger.when_matched_delete(f"s.{_quoted(_DELETED)}")
    if updates:
        merger = merger.when_matched_update(updates)
    merger.when_not_matched_insert(values, kept).execute()


def _equal(key: str, changed: pa.ChunkedArray) -> str:
    """The null-safe comparison of a key column.

    If no change has a null, plain equality is used, since delta-rs skips files only by that form. Types whose
    statistics are not exact in every writer's files are excluded.
    """
    kind = changed.type
    exact = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)
    operator = "=" if exact and changed.null_count == 0 else "IS NOT DISTINCT FROM"
    return f"({_normalised(f't.{_quoted(key)}', kind)} {operator} s.{_quoted(key)})"


def _normalised(column: str, kind: pa.DataType) -> str:
    """SQL for the table's value, normalised like `equality.normalised`: other writers may have written -0.0 and any
    NaN."""
    if not pa.types.is_floating(kind):
        return column
    name = "REAL" if pa.types.is_float32(kind) else "DOUBLE"
    nan, zero = f"CAST('NaN' AS {name})", f"CAST(0 AS {name})"
    return f"(CASE WHEN isnan({column}) THEN {nan} WHEN abs({column}) = 0 THEN {zero} ELSE {column} END)"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
