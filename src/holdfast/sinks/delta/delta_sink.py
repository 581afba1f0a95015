"""Sink into a Delta table, exactly once: the Delta commit that completes a group carries an app transaction.

    append   tasks write Parquet into the table's folder ──► publish names the files in a single commit,
             or stage small pieces as Arrow              ──► publish gathers them into a file first
    upsert   tasks stage Arrow in the job's storage ──► publish merges the last row per key in a single commit, or in
                                                        several where they do not fit into memory together

Invariants: the app transaction's id is job id + sink, its version the group's number. The check (is the number already
there?) and the commit use the same table handle, because delta-rs refuses a repeated transaction only to a handle that
has not seen it. On a conflict the table is loaded and checked again; otherwise the handle stays for the next group
(`held_table`). A group is published with the mode, keys and partition columns that were declared when it was staged.
The sink deletes nothing in the table's folder: appended files that are never committed are left to VACUUM.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from holdfast.errors import JobRefused, PublishFailed, SettingsError, StorageError
from holdfast.failpoints import hit
from holdfast.hidden import chained
from holdfast.schema import CHANGE_TYPE
from holdfast.sinks.base import PublishContext, Sink, SinkContext, StageContext
from holdfast.sinks.delta.commits import Append, Applications, NumberedOutput, Upsert
from holdfast.sinks.delta.held_table import HeldTable
from holdfast.sinks.delta.merging import check_changes, data_schema
from holdfast.sinks.delta.storing import as_stored, unstorable
from holdfast.sinks.delta.table_files import write_files
from holdfast.sinks.delta.table_schema import differences, missing_columns, stored_schema, unsupported
from holdfast.sinks.partitions import empty_partitions_to_null, partition_differences, unwritable
from holdfast.sinks.staging import (
    SMALL_BYTES_MAX,
    StagedDeltaFile,
    discard_rows,
    encode,
    pieces,
    portions,
    probe,
    stage_rows,
    stage_table,
)
from holdfast.storage.counted import counted
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store
from holdfast.storage.urls import path_of, split_url

CONFLICTS_MAX = 20
"""Bound on consecutive conflicts with other writers after which a call of `publish` gives up; it is called again
later."""

Mode = Literal["append", "upsert"]
SchemaMode = Literal["fail", "merge"]


class DeltaLayout(msgspec.Struct, frozen=True):
    """Settings that decide how a group is published."""

    mode: Mode
    keys: tuple[str, ...]
    partition_by: tuple[str, ...]


@dataclass(repr=False)
class DeltaSink(Sink):
    """Writes to the Delta table at `url`, which is created if missing.

    Parameters
    ----------
    mode
        `"append"` adds every row; `"upsert"` keeps a single row per key and applies `_change_type`.
    keys
        The key columns of an upsert; by default the `key_by` columns of the stream.
    partition_by
        The table's partition columns.
    schema_mode
        `"merge"` adds new columns of the stream to the table, nullable; `"fail"` refuses them.
    storage_options
        Given to obstore and delta-rs; never stored or shown.
    """

    url: str
    mode: Mode = "append"
    keys: Sequence[str] | None = None
    partition_by: Sequence[str] = ()
    schema_mode: SchemaMode = "fail"
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    _held: HeldTable = field(default_factory=HeldTable, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, allowed in (("mode", get_args(Mode)), ("schema_mode", get_args(SchemaMode))):
            if getattr(self, name) not in allowed:
                raise SettingsError(f"DeltaSink({name}={getattr(self, name)!r}): expected one of {', '.join(allowed)}")
        if isinstance(self.partition_by, str) or isinstance(self.keys, str):
            raise SettingsError("DeltaSink(keys=…, partition_by=…): expected sequences of column names, found a string")
        if self.keys is not None and self.mode == "append":
            raise SettingsError('DeltaSink(keys=…): only mode="upsert" has keys')
        self.partition_by = tuple(self.partition_by)
        self.keys = None if self.keys is None else tuple(self.keys)

    @property
    def kind(self) -> str:
        return "delta"

    @property
    def target(self) -> tuple[str, Mapping[str, str]]:
        return self.url, self.storage_options

    def prepare(self, schema: pa.Schema, context: SinkContext) -> None:
        columns = self._columns(schema)
        refused = f"sink {context.sink!r} cannot write to {self.url}: "
        found = unsupported(columns) + partition_differences(columns, self.partition_by)
        if self.mode == "upsert":
            found += _key_differences(columns, schema, self._keys(context.key_columns))
        if found:
            raise JobRefused(refused + "; ".join(found))
        try:
            table = self._load_or_create(stored_schema(columns), context)
            may_add, upsert = self.schema_mode == "merge", self.mode == "upsert"
            found = differences(table, columns, self.partition_by, upsert=upsert, may_add=may_add)
            if found:
                raise JobRefused(refused + "the table exists and does not fit: " + "; ".join(found))
            self._add_columns(table, stored_schema(columns))
        except (DeltaError, OSError, StorageError) as error:
            raise JobRefused(f"{refused}{error}") from chained(error)

    def last_number(self, context: SinkContext) -> int:
        try:
            return Applications(_app(context.job_id, context.sink), 0).last_number(self._load())
        except DeltaError as error:
            raise StorageError(f"{self.url}: {error}") from chained(error)

    def refused(self, rows: pa.RecordBatch) -> dict[int, str]:
        # Delta-rs escapes names of folders when it merges or compacts.
        return {**unstorable(rows), **unwritable(rows, self.partition_by, escapes_unicode=True)}

    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        if self.mode == "upsert":
            return stage_rows((self._changes(rows, context.sink) for rows in pieces(batches)), context)
        store = self._store(context)
        staged: list[bytes] = []
        for piece in pieces(batches):
            rows = as_stored(piece)
            if rows.nbytes <= SMALL_BYTES_MAX:
                staged.append(encode(stage_table(rows, context, len(staged))))
            else:
                staged += [encode(one) for one in write_files(rows, self.partition_by, store, context.owner)]
                hit("sink.staged")
        return staged

    def layout(self, context: PublishContext) -> bytes:
        layout = DeltaLayout(self.mode, self._keys(context.key_columns), tuple(self.partition_by))
        return msgspec.msgpack.encode(layout)

    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        if not any(True for _ in committables):
            return
        layout = msgspec.msgpack.decode(context.layout or self.layout(context), type=DeltaLayout)
        group = self._group(layout, committables, context)
        applications = Applications(_app(context.job_id, context.sink), number)
        conflicts = 0
        try:
            table = self._held.take(partial(self._store, context), self._load)
            while not applications.is_published(table):
                self._require_fit(table, layout, context)
                hit("sink.delta.loaded")
                conflict = group.commit(table, applications)
                if conflict is None:
                    hit("sink.delta.committed")
                    table.update_incremental()
                    conflicts = 0
                    continue
                conflicts += 1
                if conflicts == CONFLICTS_MAX:
                    raise StorageError(
                        f"sink {context.sink!r}: {self.url} refused {CONFLICTS_MAX} commits in a row, because others "
                        f"came in between; will be tried again. The last refusal: {conflict}"
                    ) from conflict
                table = self._load()
            self._held.hold(table, self._store(context))
        except DeltaError as error:
            raise _translated(error, context.sink, self.url) from chained(error)

    def discard(self, committables: Iterable[bytes], context: PublishContext) -> None:
        for portion in portions(committables, StagedDeltaFile, context.owner):
            discard_rows(portion.rows, context)

    def _group(self, layout: DeltaLayout, committables: Iterable[bytes], context: PublishContext) -> NumberedOutput:
        if layout.mode == "append":
            return Append(context, layout.partition_by, committables, self._store(context))
        return Upsert(context, layout.partition_by, committables, layout.keys)

    def _require_fit(self, table: DeltaTable, layout: DeltaLayout, context: PublishContext) -> None:
        upsert = layout.mode == "upsert"
        columns = data_schema(context.schema) if upsert else context.schema
        found = differences(table, columns, layout.partition_by, upsert=upsert, may_add=False)
        if found:
            raise PublishFailed(
                f"sink {context.sink!r} cannot write to {self.url} any more, the table was changed: " + "; ".join(found)
            )

    def _changes(self, rows: pa.Table, sink: str) -> pa.Table:
        check_changes(rows, sink)
        return empty_partitions_to_null(as_stored(rows), self.partition_by)

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        return data_schema(schema) if self.mode == "upsert" else schema

    def _keys(self, defaults: Sequence[str]) -> tuple[str, ...]:
        return tuple(defaults) if self.keys is None else tuple(self.keys)

    def _store(self, context: SinkContext | StageContext | PublishContext) -> ObjectStore:
        opened = open_store(self.url, self.storage_options, private=False, whose="DeltaSink url")
        return counted(RetryingStore(opened), context.store)

    @property
    def _has_lock(self) -> bool:
        """True if delta-rs keeps writers apart by a locking provider instead of put-if-absent."""
        options = {name.lower() for name in (*self.storage_options, *os.environ)}
        return "aws_s3_locking_provider" in options

    @property
    def _delta_url(self) -> str:
        parts = split_url(self.url, "target")
        return path_of(parts) if parts.scheme == "file" else self.url

    def _load(self) -> DeltaTable:
        return DeltaTable(self._delta_url, storage_options=dict(self.storage_options))

    def _load_or_create(self, columns: pa.Schema, context: SinkContext) -> DeltaTable:
        probe(self._store(context), "_holdfast_staging", exclusive=not self._has_lock)
        try:
            return self._load()
        except TableNotFoundError:
            DeltaTable.create(
                self._delta_url,
                Schema.from_arrow(columns),
                mode="ignore",
                partition_by=list(self.partition_by),
                storage_options=dict(self.storage_options),
            )
            return self._load()

    def _add_columns(self, table: DeltaTable, columns: pa.Schema) -> None:
        for _ in range(CONFLICTS_MAX):
            missing = missing_columns(table, columns)
            if not missing:
                return
            try:
                table.alter.add_columns(list(Schema.from_arrow(pa.schema(missing)).fields))
                return
            except CommitFailedError:
                table = self._load()
        raise StorageError(f"{CONFLICTS_MAX} commits of other writers came in between while columns were added")


def _app(job_id: str, sink: str) -> str:
    """Id of the app transactions of a job's sink."""
    return f"{job_id}/{sink}"


def _key_differences(columns: pa.Schema, schema: pa.Schema, keys: Sequence[str]) -> list[str]:
    if not keys:
        return ["an upsert needs key columns: pass keys=(…), or write a stream after key_by"]
    found = [f"key column {key!r} is not in the stream" for key in keys if key not in columns.names]
    found += [
        f"key column {key!r} is {columns.field(key).type}, and nested values cannot be keys"
        for key in keys
        if key in columns.names and pa.types.is_nested(columns.field(key).type)
    ]
    change = schema.get_field_index(CHANGE_TYPE)
    if change >= 0 and not pa.types.is_string(schema.field(change).type):
        found.append(f"column {CHANGE_TYPE!r} is {schema.field(change).type}, expected string")
    return found


def _translated(error: DeltaError, sink: str, url: str) -> Exception:
    """Translate an error of delta-rs, which reports some I/O errors of a merge as errors of the table; only the text
    differs."""
    text = str(error).strip()
    if "Object Store error" in text or "Generic S3 error" in text:
        return StorageError(f"sink {sink!r}: {url}: {text}")
    return PublishFailed(f"sink {sink!r}: {url} does not accept the staged rows: {type(error).__name__}: {text}")
