"""The source of files: Parquet, CSV, JSON lines or Arrow, in a folder, a glob or an object store.

New files are picked up while the job runs. A file is immutable once discovered. This module holds the settings and
the reads of tasks; `file_enumerator` discovers and plans, `formats` read files, and `trees` give access to them.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import HoldfastError, JobRefused, SettingsError, StorageError
from holdfast.expressions.declared import SPARK_4, declared
from holdfast.expressions.nodes import SqlSettings
from holdfast.hidden import hide_url
from holdfast.printable import logger
from holdfast.quantities import Size, size_bytes
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import BadRow, Enumerator, EnumeratorContext, Source, SourceBatch, SplitRead
from holdfast.sources.files.csv_format import CsvOptions
from holdfast.sources.files.dividing import ReadDetail
from holdfast.sources.files.file_enumerator import FileEnumerator, utc
from holdfast.sources.files.file_format import FileFormat
from holdfast.sources.files.formats import formats, has_suffix
from holdfast.sources.files.hive import folder_values
from holdfast.sources.files.lines import RECORD_BYTES_MAX
from holdfast.sources.files.open_tree import open_tree
from holdfast.sources.files.patterns import is_glob
from holdfast.sources.files.row_condition import RowCondition
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, spark_friendly
from holdfast.sources.wanted import WantedRows
from holdfast.storage.store import ObjectStore

log = logger(__name__)

STARTING = ("earliest", "latest")
PARTITIONINGS = (None, "hive")
RECORD_BYTES_LIMIT = 1 << 30
"""Highest bound on a record: Arrow counts the bytes of a column of texts in 31 bits."""
POLICIES = {"on_new_column": ("fail", "ignore"), "on_missing_column": ("fail", "null")}


class FileSource(Source):
    """The rows of all files that match, each file once.

    Parameters
    ----------
    path
        A file, a folder (with all below it), or a glob (`*`, `**`, `?`, `[…]`, `{a,b}`); a local path or the URL of
        an object store. Names that start with `_` or `.` are skipped, and so are empty files. A file must appear as a
        whole: write it elsewhere, then move it.
    format
        `parquet`, `csv`, `json` (lines) or `arrow`. Without it, the format is taken from the file names. In a folder,
        only files with the format's suffix are read; with a glob, all files that match it.
    schema
        A `pyarrow.Schema`, a Spark `StructType` or a DDL string. Without it, the schema of the first file with a row.
    name
        Identifies the source's positions when the job is started again.
    starting
        The beginning if there is no checkpoint: `earliest` reads all files, `latest` only files that appear after the
        start, a `datetime` (in UTC if it has no zone) also files that were modified since then.
    on_new_column
        The reaction to a file with a column that the schema has not: `fail`, or `ignore` the column.
    on_missing_column
        The reaction to a file that lacks a column: `fail`, or read `null`. (A field that a JSON object lacks is
        always null.)
    storage_options
        Settings of the object store; they are never stored or logged.
    delimiter, quote, header, multiline, null_values
        How CSV files are written. `multiline=True` allows line breaks in quoted values; each file is then one read.

    where
        A condition in Spark's SQL, or a `Column` of PySpark: rows for which it is not true are no rows of the source,
        for the watermark neither. Groups of rows of Parquet files, and folders of `partitioning`, that hold no such row
        are not read. A row for which it fails is a bad row.
    partitioning
        `hive` reads columns from the names of folders (`day=2026-01-31/`), as Spark and `ParquetSink` write them; their
        types are those of the schema, or STRING without one. Without it, a column in a folder's name is not read.
    max_record_bytes
        The bound on a line of JSON, or a record of CSV: bytes, or a string such as `"64MB"`. A longer record is a bad
        row, of which the beginning is kept. A higher value reads longer records, and needs several times as much memory
        in a task for each of them.

    Raises
    ------
    SettingsError
        A parameter has a value that is not allowed; the error names it.
    """

    kind = "file"

    def __init__(
        self,
        path: str,
        *,
        format: str | None = None,
        schema: Any = None,
        name: str | None = None,
        starting: str | datetime = "earliest",
        on_new_column: str = "fail",
        on_missing_column: str = "fail",
        storage_options: Mapping[str, str] | None = None,
        delimiter: str = ",",
        quote: str = '"',
        header: bool = True,
        multiline: bool = False,
        null_values: tuple[str, ...] = ("",),
        where: Any = None,
        partitioning: str | None = None,
        max_record_bytes: Size = RECORD_BYTES_MAX,
    ) -> None:
        self.name = name
        self._path = path
        self._format_name = format
        self._schema = None if schema is None else to_arrow_schema(schema)
        self._starting = utc(starting) if isinstance(starting, datetime) else starting
        self._policy = EvolutionPolicy(on_new_column, on_missing_column)
        self._csv = CsvOptions(delimiter, quote, header, multiline, tuple(null_values))
        self._partitioning = partitioning
        self._record_bytes_max = size_bytes(max_record_bytes, "FileSource: max_record_bytes")
        self._storage_options = dict(storage_options or {})
        self._where = None if where is None else RowCondition(declared(where, SPARK_4, "FileSource(where=…)"))
        self._opened: FileTree | None = None
        self._checked = False
        self._check_settings()

    def schema(self) -> pa.Schema:
        """Return the declared schema, or the schema of the first file with a row.

        The first call looks at the folder; its result is kept, so that tasks use the same.
        """
        if self._schema is None or not self._checked:
            try:
                self._schema = self._resolved()
            except StorageError as error:
                raise JobRefused(f"{self!r}: {error}") from error
            self._checked = True
            if self._where is not None:
                self._where = self._where.over(self._schema)
        return self._schema

    def with_expressions(self, settings: SqlSettings) -> "FileSource":
        if self._where is None:
            return self
        made = copy(self)
        made._where = self._where.under(settings)
        if self._schema is not None:
            made._where.over(self._schema)
        return made

    @property
    def passes_over(self) -> bool:
        return self._format_name == "parquet" or self._partitioning is not None

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        form = self._format()
        self._format_name = form.name
        return FileEnumerator(self._tree(form, context.store), form, self._starting, context)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        return self._read(read, None, None)

    def read_columns(self, read: SplitRead, columns: Sequence[str]) -> Iterator[SourceBatch]:
        return self._read(read, columns, None)

    def read_output(
        self, output: str, read: SplitRead, store: ObjectStore, columns: Sequence[str] | None
    ) -> Iterator[SourceBatch]:
        return self._read(read, columns, None, store)

    def read_wanted(
        self, read: SplitRead, store: ObjectStore, columns: Sequence[str] | None, wanted: WantedRows
    ) -> Iterator[SourceBatch]:
        return self._read(read, columns, wanted, store)

    def _read(
        self,
        read: SplitRead,
        columns: Sequence[str] | None,
        wanted: WantedRows | None,
        store: ObjectStore | None = None,
    ) -> Iterator[SourceBatch]:
        if self._schema is None or self._format_name is None:
            raise HoldfastError(f"{self!r}: schema() must have been called on the driver before tasks read")
        form = self._format()
        detail = msgspec.msgpack.decode(read.detail, type=ReadDetail)
        file = FileInfo(read.split, detail.size, detail.modified_us)
        start, stop = msgspec.convert(read.start, int), msgspec.convert(read.stop, int)
        source = self.name or self.kind
        part = (self._tree(form, store), file, start, stop, self._schema, self._policy)
        names = list(self._schema.names if columns is None else columns)
        if self._where is not None:
            pieces = self._where.pieces(lambda *asked: form.read_columns(*part, *asked), names, wanted)
        elif columns is None and wanted is None:
            pieces = form.read(*part)
        else:
            pieces = form.read_columns(*part, names, wanted)
        for piece in pieces:
            bad = [BadRow(source, read.split, row.position, row.reason, row.payload) for row in piece.bad]
            yield SourceBatch(piece.rows, piece.position, bad, piece.newest)

    def __repr__(self) -> str:
        return f"FileSource({hide_url(repr(self._path))}, name={self.name!r})"

    def _tree(self, form: FileFormat, store: ObjectStore | None = None) -> FileTree:
        """Return the tree, which is opened once in each process. Its requests are counted with those of `store`."""
        if self._opened is None:
            any_name = is_glob(self._path)
            self._opened = open_tree(self._path, self._storage_options, lambda path: any_name or has_suffix(path, form))
        if store is not None:
            self._opened.count_with(store)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def _format(self) -> FileFormat:
        """Return the given format, or the format that the path's or else the files' suffixes say."""
        known = formats(self._csv, self._record_bytes_max, self._partitioning)
        if self._format_name is not None:
            return known[self._format_name]
        by_path = [form for form in known.values() if has_suffix(self._path, form)]
        if by_path:
            return by_path[0]
        paths = [file.path for file in open_tree(self._path, self._storage_options, lambda path: True).list()]
        found = [form for form in known.values() if any(has_suffix(path, form) for path in paths)]
        if len(found) == 1:
            return found[0]
        problem = f"files of the formats {[form.name for form in found]}" if found else "no file with a known suffix"
        raise JobRefused(f"{self!r}: found {problem}: give format= as one of {', '.join(known)}")

    def _resolved(self) -> pa.Schema:
        form = self._format()
        self._format_name = form.name
        schema = self._inferred(form) if self._schema is None else self._schema
        form.check(schema)
        self._tree(form).check()
        return schema

    def _inferred(self, form: FileFormat) -> pa.Schema:
        tree = self._tree(form)
        files = sorted(tree.list(), key=lambda file: (file.modified_us, file.path))
        for file in files:
            if found := list(form.infer(tree, file)):
                self._warn_of_folders(file)
                return pa.schema([pa.field(column.name, spark_friendly(column.type)) for column in found])
        problem = "no file has a row yet" if files else "no file matches yet"
        raise JobRefused(f"{self!r}: {problem}, so the schema cannot be inferred: give schema=")

    def _warn_of_folders(self, file: FileInfo) -> None:
        """Say that columns in the names of folders are left out: an inferred schema has them only if they are read."""
        left_out = list(folder_values(file.path, self._tree(self._format()).root, ()))
        if left_out and self._partitioning is None:
            log.warning(
                "%r: columns %s are in the names of folders (%s) and are not read: use partitioning='hive' to read "
                "them, or give schema= without them",
                self,
                left_out,
                file.path,
            )

    def _check_settings(self) -> None:
        known = formats(self._csv, self._record_bytes_max, None)
        if self._format_name is not None and self._format_name not in known:
            raise SettingsError(f"FileSource: format={self._format_name!r}: expected one of {', '.join(known)}")
        if not isinstance(self._starting, datetime) and self._starting not in STARTING:
            raise SettingsError(f"FileSource: starting={self._starting!r}: expected one of {STARTING} or a datetime")
        for setting, allowed in POLICIES.items():
            if getattr(self._policy, setting) not in allowed:
                raise SettingsError(
                    f"FileSource: {setting}={getattr(self._policy, setting)!r}: expected one of {allowed}"
                )
        if self._partitioning not in PARTITIONINGS:
            raise SettingsError(f"FileSource: partitioning={self._partitioning!r}: expected one of {PARTITIONINGS}")
        if not 1 <= self._record_bytes_max <= RECORD_BYTES_LIMIT:
            raise SettingsError(
                f"FileSource: max_record_bytes={self._record_bytes_max}: expected 1 to {RECORD_BYTES_LIMIT} (1GB)"
            )
        for setting in ("delimiter", "quote"):
            if len(getattr(self._csv, setting).encode()) != 1:
                raise SettingsError(
                    f"FileSource: {setting}={getattr(self._csv, setting)!r}: expected one ASCII character"
                )
        if not self._csv.header and self._schema is None:
            raise SettingsError("FileSource: header=False needs schema=, which names the columns in their order")
