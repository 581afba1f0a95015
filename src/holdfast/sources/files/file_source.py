"""A source of files: Parquet, CSV, JSON lines or Arrow, in a folder, a glob or an object store.

New files are picked up while the job runs. A file is immutable once discovered. What this module does
not own: discovery and planning (`discovery`), formats (`formats`), access (`trees`).
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import HoldfastError, JobRefused, SettingsError
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import BadRow, Enumerator, EnumeratorContext, Source, SourceBatch, SplitRead
from holdfast.sources.files.discovery import FileEnumerator, ReadDetail, utc
from holdfast.sources.files.formats import Format, formats, has_suffix
from holdfast.sources.files.text import CsvOptions
from holdfast.sources.files.trees import FileInfo, FileTree, is_glob, open_tree
from holdfast.sources.schema_fit import EvolutionPolicy, spark_friendly

STARTING = ("earliest", "latest")
POLICIES = {"on_new_column": ("fail", "ignore"), "on_missing_column": ("fail", "null")}


class FileSource(Source):
    """The rows of all files that match, each file once.

    Parameters
    ----------
    path
        A file, a folder (with all below it), or a glob (`*`, `**`, `?`, `[…]`, `{a,b}`); a local path or the URL of
        an object store. Names that start with `_` or `.` and empty files are not seen. A file must appear
        as a whole: write it elsewhere, then move it.
    format
        `parquet`, `csv`, `json` (lines) or `arrow`; taken from the file names where it is not given. In a folder
        only files with that format's suffix are read; a glob decides for itself.
    schema
        A `pyarrow.Schema`, a Spark `StructType` or a DDL string; inferred from the first file where it is not given.
    name
        Identifies the source's positions when the job is started again.
    starting
        Without a checkpoint: `earliest` reads all files, `latest` only those that appear after the start, a
        `datetime` (UTC where it has no zone) those modified since and those that appear after the start.
    on_new_column
        A file has a column that the schema has not: `fail`, or `ignore` it.
    on_missing_column
        A file lacks a column: `fail`, or `null`. (A field that a JSON object lacks is always null.)
    storage_options
        For the object store; never stored or logged.
    delimiter, quote, header, multiline, null_values
        How CSV files are written. `multiline=True` where quoted values hold line breaks: each file is then one read.

    Raises
    ------
    SettingsError
        A parameter is not allowed; names it.
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
    ) -> None:
        self.name = name
        self._path = path
        self._format_name = format
        self._schema = None if schema is None else to_arrow_schema(schema)
        self._starting = utc(starting) if isinstance(starting, datetime) else starting
        self._policy = EvolutionPolicy(on_new_column, on_missing_column)
        self._csv = CsvOptions(delimiter, quote, header, multiline, tuple(null_values))
        self._storage_options = dict(storage_options or {})
        self._opened: FileTree | None = None
        self._check_settings()

    def schema(self) -> pa.Schema:
        """The declared schema, or that of the first file; kept, so that tasks use the same."""
        form = self._format()
        self._format_name = form.name
        if self._schema is None:
            self._schema = self._inferred()
        form.check(self._schema)
        return self._schema

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        form = self._format()
        self._format_name = form.name
        return FileEnumerator(self._tree(form), form, self._starting, context)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        if self._schema is None or self._format_name is None:
            raise HoldfastError(f"{self!r}: schema() must have been called on the driver before tasks read")
        form = self._format()
        detail = msgspec.msgpack.decode(read.detail, type=ReadDetail)
        file = FileInfo(read.split, detail.size, detail.modified_us)
        start, stop = msgspec.convert(read.start, int), msgspec.convert(read.stop, int)
        source = self.name or self.kind
        for piece in form.read(self._tree(form), file, start, stop, self._schema, self._policy):
            bad = [BadRow(source, read.split, one.position, one.reason, one.payload) for one in piece.bad]
            yield SourceBatch(piece.rows, piece.position, bad)

    def __repr__(self) -> str:
        return f"FileSource({self._path!r}, name={self.name!r})"

    def _tree(self, form: Format) -> FileTree:
        """Opened once in each process."""
        if self._opened is None:
            any_name = is_glob(self._path)
            self._opened = open_tree(self._path, self._storage_options, lambda path: any_name or has_suffix(path, form))
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def _format(self) -> Format:
        """The format given, or the one that the path's or else the files' names say."""
        known = formats(self._csv)
        if self._format_name is not None:
            return known[self._format_name]
        by_path = [form for form in known.values() if has_suffix(self._path, form)]
        if by_path:
            return by_path[0]
        paths = [file.path for file in open_tree(self._path, self._storage_options, lambda path: True).list()]
        found = [form for form in known.values() if any(has_suffix(path, form) for path in paths)]
        if len(found) == 1:
            return found[0]
        what = f"files of the formats {[form.name for form in found]}" if found else "no file with a known suffix"
        raise JobRefused(f"{self!r}: found {what}: give format= as one of {', '.join(known)}")

    def _inferred(self) -> pa.Schema:
        form = self._format()
        tree = self._tree(form)
        files = sorted(tree.list(), key=lambda file: (file.modified_us, file.path))
        if not files:
            raise JobRefused(f"{self!r}: no file matches yet, so the schema cannot be inferred: give schema=")
        found = form.infer(tree, files[0])
        return pa.schema([pa.field(column.name, spark_friendly(column.type)) for column in found])

    def _check_settings(self) -> None:
        known = formats(self._csv)
        if self._format_name is not None and self._format_name not in known:
            raise SettingsError(f"FileSource: format={self._format_name!r}: expected one of {', '.join(known)}")
        if not isinstance(self._starting, datetime) and self._starting not in STARTING:
            raise SettingsError(f"FileSource: starting={self._starting!r}: expected one of {STARTING} or a datetime")
        for setting, allowed in POLICIES.items():
            if getattr(self._policy, setting) not in allowed:
                raise SettingsError(
                    f"FileSource: {setting}={getattr(self._policy, setting)!r}: expected one of {allowed}"
                )
        for setting in ("delimiter", "quote"):
            if len(getattr(self._csv, setting).encode()) != 1:
                raise SettingsError(
                    f"FileSource: {setting}={getattr(self._csv, setting)!r}: expected one ASCII character"
                )
        if not self._csv.header and self._schema is None:
            raise SettingsError("FileSource: header=False needs schema=, which names the columns in their order")
