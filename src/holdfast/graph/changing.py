"""Steps that declare a stream of changes or an append stream, and the kind of a stream after its steps. Pure.

A stream's kind (`schema.StreamKind`) begins at its source or operator. A step keeps it as long as the column
`_change_type` is there; a step that makes this column makes a stream of changes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused, SettingsError
from holdfast.schema import CHANGE_TYPE, CHANGE_TYPES, StreamKind

PUT, REMOVE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"


@dataclass(frozen=True, eq=False)
class AsChanges:
    """`Stream.as_changes`: makes the column `_change_type`, of another column or with `insert` in each row."""

    column: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.column is not None and (not isinstance(self.column, str) or not self.column):
            raise SettingsError(f"as_changes({self.column!r}): expected the name of a column, or nothing")
        if self.column is None and self.kinds:
            raise SettingsError("as_changes(kinds=…) needs the column whose values it names")
        _check_kinds(str(self.column), self.kinds)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.column is None:
            if CHANGE_TYPE in rows.schema.names:
                return rows
            return rows.append_column(CHANGE_TYPE, pa.array([PUT] * rows.num_rows, pa.string()))
        given = pc.fill_null(pc.cast(rows.column(self.column), pa.string()), "null")
        if self.kinds:
            # A value that is not in `kinds` stays, so that the operator refuses its row and names the value.
            place = pc.index_in(given, value_set=pa.array(list(self.kinds), pa.string()))
            given = pc.coalesce(pc.take(pa.array(list(self.kinds.values()), pa.string()), place), given)
        return rows.drop_columns([self.column]).append_column(CHANGE_TYPE, given)

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that come out. Raises `JobRefused`."""
        if self.column is None:
            return schema if CHANGE_TYPE in schema.names else schema.append(pa.field(CHANGE_TYPE, pa.string()))
        place = schema.get_field_index(self.column)
        if place < 0 or not pa.types.is_string(schema.field(place).type):
            found = "there is no such column" if place < 0 else f"it has type {schema.field(place).type}"
            raise JobRefused(f"{self}: {found} in its input ({', '.join(schema.names)}); expected a column of texts")
        if CHANGE_TYPE in schema.names and self.column != CHANGE_TYPE:
            raise JobRefused(f"{self}: its input has a column {CHANGE_TYPE!r} already; leave either out before")
        return schema.remove(place).append(pa.field(CHANGE_TYPE, pa.string()))

    def __str__(self) -> str:
        return f"as_changes({'' if self.column is None else repr(self.column)})"


DEBEZIUM = {"c": PUT, "r": PUT, "u": AFTER, "d": REMOVE}
"""The values of `op` in a message of Debezium, and their change types."""


@dataclass(frozen=True, eq=False)
class FromEnvelopes:
    """`Stream.as_changes(…, before=…, after=…)`: makes the rows of changes of messages, each with the row before it and
    the row after it, as structs. The other columns go: rows are taken back by all of their values."""

    column: str
    before: str
    after: str
    kinds: Mapping[str, str]

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) and name for name in (self.column, self.before, self.after)):
            raise SettingsError(
                f"{self}: expected the names of three columns: of the kind of change, and of the rows before and after"
            )
        _check_kinds(self.column, self.kinds)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        from holdfast.expressions.nodes import failed_where  # most jobs need none of it

        before, after = rows.column(self.before), rows.column(self.after)
        given = pc.fill_null(pc.cast(rows.column(self.column), pa.string()), "null")
        place = pc.index_in(given, value_set=pa.array(list(self.kinds), pa.string()))
        failed_where(place.is_null(), f"{self.column} is {{}}; expected one of {', '.join(self.kinds)}", given)
        change = pa.array(list(self.kinds.values()), pa.string()).take(place)
        update = pc.is_in(change, value_set=pa.array([BEFORE, AFTER]))
        goes, comes = pc.or_(update, pc.equal(change, REMOVE)), pc.or_(update, pc.equal(change, PUT))
        needs = f"{self.column} is {{}}, whose messages need the complete row {{}}, and it is null"
        failed_where(pc.and_(goes, before.is_null()), needs, given, pa.scalar(self.before))
        failed_where(pc.and_(comes, after.is_null()), needs, given, pa.scalar(self.after))
        gone, come = (pc.indices_nonzero(each).cast(pa.int64()) for each in (goes, comes))
        order = pc.sort_indices(pa.concat_arrays([pc.multiply(gone, 2), pc.add(pc.multiply(come, 2), 1)]))
        places = pa.concat_arrays([gone, pc.add(come, len(given))]).take(order)
        kinds = pa.concat_arrays([pc.if_else(update, BEFORE, REMOVE), pc.if_else(update, AFTER, PUT)])
        kind = pa.struct([field.with_nullable(True) for field in before.type])
        columns = pa.concat_arrays([before.cast(kind), after.cast(kind)]).take(places).flatten()
        made = [*columns, kinds.take(places)]
        return pa.RecordBatch.from_arrays(made, schema=self.schema_of(rows.schema))

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that come out. Raises `JobRefused`."""
        for name in (self.column, self.before, self.after):
            if name not in schema.names:
                raise JobRefused(f"{self}: there is no column {name!r} in its input ({', '.join(schema.names)})")
        kind, before, after = (schema.field(name).type for name in (self.column, self.before, self.after))
        if not pa.types.is_string(kind):
            raise JobRefused(f"{self}: column {self.column!r} has type {kind}; expected a column of texts")
        structs = pa.types.is_struct(before) and pa.types.is_struct(after)
        if not structs or [(each.name, each.type) for each in before] != [(each.name, each.type) for each in after]:
            raise JobRefused(
                f"{self}: {self.before!r} has type {before}, and {self.after!r} type {after}; expected two structs "
                "with the same fields: the columns of the table"
            )
        if CHANGE_TYPE in [field.name for field in before]:
            raise JobRefused(f"{self}: the rows have a column {CHANGE_TYPE!r} already")
        return pa.schema([*(field.with_nullable(True) for field in before), pa.field(CHANGE_TYPE, pa.string())])

    def __str__(self) -> str:
        return f"as_changes({self.column!r}, before={self.before!r}, after={self.after!r})"


def _check_kinds(column: str, kinds: Mapping[str, str]) -> None:
    unknown = [kind for kind in kinds.values() if kind not in CHANGE_TYPES]
    if unknown:
        raise SettingsError(
            f"as_changes({column!r}, …) names the change type {unknown[0]!r}; allowed are {', '.join(CHANGE_TYPES)}"
        )


@dataclass(frozen=True, eq=False)
class AsAppend:
    """`Stream.as_append`: each change counts as a row like any other."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that come out."""
        return schema

    def __str__(self) -> str:
        return "as_append()"


def kind_behind(step: object, kind: StreamKind, before: pa.Schema, after: pa.Schema) -> StreamKind:
    """Return the kind of a stream after a step. Raises `JobRefused`."""
    place = after.get_field_index(CHANGE_TYPE)
    if isinstance(step, AsAppend) or place < 0:
        return "append"
    if isinstance(step, AsChanges | FromEnvelopes) or CHANGE_TYPE not in before.names:
        if not pa.types.is_string(after.field(place).type):
            raise JobRefused(f"{step}: column {CHANGE_TYPE!r} is {after.field(place).type}; expected string")
        return "upserts" if kind == "upserts" else "changes"
    return kind


def common_kind(kinds: Iterable[StreamKind]) -> StreamKind:
    """Return the kind of the union of streams. Raises `JobRefused`."""
    first, *others = dict.fromkeys(kinds)
    if others:
        raise JobRefused(
            f"a union of a stream of kind {first!r} with a stream of kind {others[0]!r}: rows that count for ever "
            "become changes by .as_changes(), and changes become rows that count for ever by .as_append()"
        )
    return first


def kept_changes(rows: pa.RecordBatch, kept: pa.Array, kind: StreamKind) -> pa.RecordBatch:
    """Keep some of the rows of a stream of changes.

    An update becomes a delete if only its row before is kept, and an insert if only its row after is kept. Halves of an
    update that are not neighbours within `rows` become a delete and an insert, which mean the same. In a stream of
    upserts, a row after that is not kept becomes a delete, since an earlier row of its key may have been kept.
    """
    change = rows.column(CHANGE_TYPE)
    kept = pc.fill_null(kept, False)
    if kind == "upserts":
        leaves = pc.and_(pc.invert(kept), pc.equal(change, AFTER))
        change = pc.if_else(pc.fill_null(leaves, False), REMOVE, change)
        kept = pc.or_(kept, pc.fill_null(leaves, False))
    else:
        is_before, is_after = (pc.fill_null(pc.equal(change, each), False).to_numpy(False) for each in (BEFORE, AFTER))
        stays = kept.to_numpy(False)
        whole = is_before[:-1] & is_after[1:] & stays[:-1] & stays[1:]
        of_before, of_after = is_before.copy(), is_after.copy()
        of_before[:-1] &= ~whole
        of_after[1:] &= ~whole
        if (of_before & stays).any() or (of_after & stays).any():
            change = pc.if_else(pa.array(of_before), REMOVE, pc.if_else(pa.array(of_after), PUT, change))
    if change is not rows.column(CHANGE_TYPE):
        rows = rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), rows.schema.field(CHANGE_TYPE), change)
    return rows.filter(kept)
