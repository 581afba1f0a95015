"""The source of a PostgreSQL database's changes, by logical replication: the settings, and the reads of tasks."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError, StorageError
from holdfast.quantities import Duration, Size, duration_s, size_bytes
from holdfast.schema import StreamKind
from holdfast.sources.base import Enumerator, EnumeratorContext, Source, SourceBatch, SourceOutput, SplitRead
from holdfast.sources.postgres.catalog import Catalog
from holdfast.sources.postgres.cdc_enumerator import PostgresEnumerator
from holdfast.sources.postgres.columns import TableColumns, fitted
from holdfast.sources.postgres.decoding import Settings
from holdfast.sources.postgres.pgoutput import SEQUENCE
from holdfast.sources.postgres.server import Server
from holdfast.sources.spooled.segments import read_part
from holdfast.sources.spooled.spool import SegmentReadDetail
from holdfast.sources.truncations import parted, parted_schema
from holdfast.storage.store import ObjectStore

Snapshot = Literal["initial", "chunked", "never"]
CdcIsolation = Literal["transaction", "row"]
Before = Literal["full", "key"]
Truncation = Literal["fail", "ignore", "delete"]
NewColumn = Literal["fail", "ignore"]


class PostgresCdcSource(Source):
    """The changes of tables of a PostgreSQL database, in the order of their commits.

    `table("public.orders")` is a stream for `Job.read`: the table's columns, then `_change_type` (insert,
    update_preimage, update_postimage, delete), `_lsn` and `_commit_time` of the transaction's commit, and `_xid` (0 in
    a snapshot). A change of the primary key is a delete and an insert. All tables share one position, and no checkpoint
    divides a transaction.

    Parameters
    ----------
    dsn
        As libpq reads it, `"host=… dbname=… user=…"`; never stored or logged.
    slot, publication
        The replication slot, which is created at the first start, and the publication, which must exist.
    tables
        The tables, as `schema.table`.
    snapshot
        `initial`: the rows that are there at the first start come first, as inserts, and no checkpoint is taken until
        all of them are processed. `chunked`: they come in ranges of the primary key, between the changes, and
        checkpoints go on. `never`: changes only.
    isolation
        `transaction`, or `row`: checkpoints may divide transactions.
    before
        `full`: each table must have REPLICA IDENTITY FULL, so that updates and deletes tell the whole row before.
        `key`: updates give no preimage, deletes are null outside of the key, and large values that an update left as
        they were are read from the table, as they are by then.
    truncate
        `fail`; `ignore` truncations; or `delete`: the job knows each table's rows, in keyed state that costs as much as
        the table, and deletes them when the table is truncated.
    on_new_column
        `fail`, or `ignore` columns that are added while the query runs.
    text_columns
        Columns, as `column` or `schema.table.column`, to have as text whatever their type is.
    chunk_rows
        Rows of a chunk. A higher value reads faster, and holds more in the driver's memory.
    spool_bytes_max
        Bound on the stored changes that no checkpoint is past; above it nothing is read from the server. A transaction
        or a snapshot that began is read to its end.
    slot_warning_bytes
        WAL kept by the server for the slot, from which on the log warns.
    outage_timeout
        Time for which the server may be away before the query fails.

    Raises
    ------
    SettingsError
        A parameter has a value that is not allowed; the error names it.
    """

    kind = "postgres"

    def __init__(
        self,
        dsn: str,
        slot: str,
        publication: str,
        tables: Sequence[str],
        *,
        snapshot: Snapshot = "initial",
        isolation: CdcIsolation = "transaction",
        before: Before = "full",
        truncate: Truncation = "fail",
        on_new_column: NewColumn = "fail",
        text_columns: Sequence[str] = (),
        chunk_rows: int = 10_000,
        spool_bytes_max: Size = "8GB",
        slot_warning_bytes: Size = "1GB",
        outage_timeout: Duration = "10min",
        name: str | None = None,
    ) -> None:
        self.name = name
        self._dsn = dsn
        self._slot = slot
        self._publication = publication
        self._names = tuple(tables)
        self._snapshot = snapshot
        self._isolation = isolation
        self._before = before
        self._truncate = truncate
        self._on_new_column = on_new_column
        self._text_columns = tuple(text_columns)
        self._chunk_rows = chunk_rows
        self._spool_bytes_max = size_bytes(spool_bytes_max, "spool_bytes_max")
        self._slot_warning_bytes = size_bytes(slot_warning_bytes, "slot_warning_bytes")
        self._outage_timeout_s = duration_s(outage_timeout, "outage_timeout")
        self._tables: dict[str, TableColumns] | None = None
        self._check_settings()

    def table(self, name: str) -> SourceOutput:
        """Return the stream of the table `name`, for `Job.read`."""
        if name not in self._names:
            raise SettingsError(f"table({name!r}): expected one of the source's tables: {', '.join(self._names)}")
        return SourceOutput(self, name, tells_truncations=self._truncate == "delete")

    @property
    def has_outputs(self) -> bool:
        return True

    def stream_kind(self, schema: pa.Schema) -> StreamKind:
        """Return the kind of each `schema`: `upserts` for `before="key"`, where nothing tells the whole row before."""
        return "changes" if self._before == "full" else "upserts"

    def schema(self) -> pa.Schema:
        raise self._no_main_stream()

    def outputs(self) -> dict[str, pa.Schema]:
        """Check the server, and return the schemas of all tables. The first result is kept, so that tasks use it."""
        if self._tables is None:
            catalog = self._catalog()
            try:
                catalog.check(self._names, self._slot, full_rows=self._before == "full")
                self._tables = {name: catalog.table(name, self._text_columns) for name in self._names}
            except StorageError as error:
                raise JobRefused(str(error)) from error
        schemas = {name: table.schema() for name, table in self._tables.items()}
        return {name: parted_schema(each) for name, each in schemas.items()} if self._truncate == "delete" else schemas

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        self.outputs()
        assert self._tables is not None
        settings = Settings(
            slot=self._slot,
            publication=self._publication,
            tables=self._tables,
            snapshot=self._snapshot,
            full_rows=self._before == "full",
            truncate=self._truncate,
            on_new_column=self._on_new_column,
            chunk_rows=self._chunk_rows,
            spool_bytes_max=self._spool_bytes_max,
            slot_warning_bytes=self._slot_warning_bytes,
            outage_timeout_s=self._outage_timeout_s,
        )
        return PostgresEnumerator(self._server(), self._catalog(), settings, self._isolation == "row", context)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        raise self._no_main_stream()

    def read_output(
        self, output: str, read: SplitRead, store: ObjectStore, columns: Sequence[str] | None
    ) -> Iterator[SourceBatch]:
        detail = msgspec.msgpack.decode(read.detail, type=SegmentReadDetail)
        part = detail.parts.get(output)
        if part is None:
            return
        rows = read_part(store, detail.name, output, part)
        numbers = rows.column(SEQUENCE).to_numpy()
        bounds = msgspec.convert([read.start, read.stop], list[int])
        first, stop = (int(np.searchsorted(numbers, bound)) for bound in bounds)
        assert self._tables is not None, "outputs() was called on the driver"
        table = self._tables[output]
        wanted = fitted(rows.slice(first, stop - first), table)
        if self._truncate == "delete":
            wanted = parted(wanted, table.keys)
        for batch in (wanted if columns is None else wanted.select(list(columns))).to_batches():
            yield SourceBatch(batch, f"{read.start} to {read.stop} of {detail.name}")

    def __repr__(self) -> str:
        return f"PostgresCdcSource(slot={self._slot!r}, tables={list(self._names)}, name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dsn": ""}

    def _no_main_stream(self) -> JobRefused:
        return JobRefused(f"{self!r}: it has a stream for each table; read a table: read(source.table(name))")

    def _server(self) -> Server:
        return Server(self._dsn, repr(self))

    def _catalog(self) -> Catalog:
        return Catalog(self._server(), repr(self), self._publication, self._truncate)

    def _check_settings(self) -> None:
        choices = {
            "snapshot": (self._snapshot, Snapshot),
            "isolation": (self._isolation, CdcIsolation),
            "before": (self._before, Before),
            "truncate": (self._truncate, Truncation),
            "on_new_column": (self._on_new_column, NewColumn),
        }
        for setting, (value, allowed) in choices.items():
            if value not in get_args(allowed):
                raise SettingsError(
                    f"PostgresCdcSource({setting}={value!r}): expected one of {', '.join(get_args(allowed))}"
                )
        if not self._names or isinstance(self._names, str) or any(each.count(".") != 1 for each in self._names):
            raise SettingsError(
                f"PostgresCdcSource(tables={list(self._names)}): expected names of tables with their schema, as in "
                "['public.orders']"
            )
        if not re.fullmatch("[a-z0-9_]{1,63}", self._slot):
            raise SettingsError(
                f"PostgresCdcSource(slot={self._slot!r}): expected lower-case letters, digits and underscores, up to 63"
            )
        if not isinstance(self._chunk_rows, int) or self._chunk_rows < 1:
            raise SettingsError(f"PostgresCdcSource(chunk_rows={self._chunk_rows!r}): expected a whole number from 1")
