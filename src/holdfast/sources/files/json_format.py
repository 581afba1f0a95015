"""JSON lines: a JSON object in each line."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused
from holdfast.json_rows.nesting import TOO_DEEP, is_too_deep
from holdfast.json_rows.reader import BadJson, JsonReader
from holdfast.json_rows.values import unfit_columns
from holdfast.sources.files import lines
from holdfast.sources.files.text_format import (
    BlockParser,
    ParsedBlock,
    TextFormat,
    TextHead,
    TextRecord,
    bad_text,
    records_of,
)
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, in_folder, is_in_folder, new_columns

BLANKS = list(b" \t\r\n\v\f")


class JsonFormat(TextFormat):
    """JSON lines."""

    name = "json"
    suffixes = (".json", ".jsonl", ".ndjson")

    def __init__(self, record_bytes_max: int = lines.RECORD_BYTES_MAX) -> None:
        self.record_bytes_max = record_bytes_max

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        decoder = msgspec.json.Decoder(dict[str, Any])
        data = self.first_bytes(tree, file).removeprefix(lines.BYTE_ORDER_MARK)
        records = [record.data for record in records_of(data) if not record.data.isspace()]
        if any(is_too_deep(record) for record in records):
            raise JobRefused(f"{file.path}: the schema cannot be inferred: a line {TOO_DEEP}: give schema=")
        try:
            rows = [decoder.decode(record) for record in records]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise JobRefused(f"{file.path}: the schema cannot be inferred: {error}: give schema=") from error
        return inferred_schema(file.path, rows)

    def check(self, schema: pa.Schema) -> None:
        if (reason := unfit_columns(schema)) is not None:
            raise JobRefused(f"schema: {reason}: declare the column as STRING")

    def head(self, tree: FileTree, file: FileInfo, start: int) -> TextHead | None:
        if start > 0:
            return TextHead(None, 0)
        if self.indivisible(file):
            data = self.beginning(tree, file, len(lines.BYTE_ORDER_MARK))
        else:
            data = tree.read_range(file, 0, min(len(lines.BYTE_ORDER_MARK), file.size))
        return TextHead(None, len(lines.BYTE_ORDER_MARK) if data.startswith(lines.BYTE_ORDER_MARK) else 0)

    def parser(
        self, file: FileInfo, head: TextHead, schema: pa.Schema, policy: EvolutionPolicy, read_as: pa.Schema
    ) -> BlockParser:
        in_folders = [name for name in schema.names if is_in_folder(name, file.path)]
        # PyArrow's reader refuses new fields only beside all of the known ones.
        is_strict = policy.on_new_column == "fail" or in_folders
        return JsonParser(schema if is_strict else read_as, policy, in_folders)


class JsonParser(BlockParser):
    """Parses blocks of JSON lines. `in_folders`: columns in the names of the file's folders, which each row must have
    too."""

    def __init__(self, schema: pa.Schema, policy: EvolutionPolicy, in_folders: Sequence[str]) -> None:
        self._in_folders = in_folders
        refused = (lambda names: new_columns(names, schema)) if policy.on_new_column == "fail" else None
        self._reader = JsonReader(schema, refused=refused, known=policy.elsewhere)

    def parse(self, data: bytes) -> ParsedBlock:
        starts, records = lines_of(data)
        rows, bad = self._reader.read(records)
        for column in self._in_folders:
            rows, bad = _without_nulls(rows, bad, len(records), column)
        return ParsedBlock(
            rows, [bad_text(TextRecord(int(starts[n]), records[n].as_py()), reason) for n, reason in bad]
        )


def _without_nulls(
    rows: pa.RecordBatch, bad: list[BadJson], count: int, column: str
) -> tuple[pa.RecordBatch, list[BadJson]]:
    """Make bad records of the rows without a value of a column: they would be null although a folder has a value."""
    if not rows.column(column).null_count:
        return rows, bad
    is_null = rows.column(column).is_null()
    numbers = np.setdiff1d(np.arange(count), np.array([each.place for each in bad], np.int64))
    found = [BadJson(int(number), in_folder(column)) for number in numbers[np.asarray(is_null)]]
    return rows.filter(pc.invert(is_null)), sorted([*bad, *found])


def lines_of(data: bytes) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the lines of a block that are not blank: their offsets, and their bytes."""
    starts, ends = lines.line_ranges(data)
    visible = np.ones(len(starts), bool)
    for number in np.flatnonzero(np.isin(np.frombuffer(data, np.uint8)[starts], BLANKS)).tolist():
        visible[number] = not data[starts[number] : ends[number]].isspace()
    starts, ends = starts[visible], ends[visible]
    offsets = np.union1d(starts, ends).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), max(0, len(offsets) - 1), buffers)
    if len(pieces) == len(starts):
        return starts, pieces
    return starts, pieces.filter(pa.array(np.isin(offsets[:-1], starts)))


def inferred_schema(path: str, rows: list[dict[str, Any]]) -> pa.Schema:
    """Return the types of the rows' values, in the order in which the columns appear."""
    fields = []
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            fields.append(pa.field(name, pa.array([row.get(name) for row in rows]).type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise JobRefused(f"{path}: column {name!r} has values of several types ({error}): give schema=") from error
    return pa.schema(fields)
