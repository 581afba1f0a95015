"""The interface of a file format: infer a schema, find the size of a file, read a range of it.

Positions are rows in Parquet and Arrow files, and bytes in CSV and JSON lines. Reading the same range of the same
file always gives the same rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy
from holdfast.sources.wanted import WantedRows

PAYLOAD_CHARS_MAX = 65_536
"""Characters of a bad record that are reported. A higher value makes dead letters larger."""


@dataclass(frozen=True)
class FileShape:
    """The size of a file, for planning. The file's positions count units: rows or bytes.

    `group_ends` are the positions after each stored group of rows. A file with `whole=True` cannot be divided.
    """

    length: int
    rows_per_unit: float
    bytes_per_unit: float
    group_ends: list[int] = field(default_factory=list)
    whole: bool = False


class BadPiece(NamedTuple):
    """A row that was left out: its position in the file, the reason, and its text."""

    position: str
    reason: str
    payload: str


class Piece(NamedTuple):
    """Rows in order. `position` is an int if row i is at `position + i`."""

    position: int | str
    rows: pa.RecordBatch
    bad: list[BadPiece]
    newest: pa.Array | None = None
    """Event times that are at least as new as those of rows that were passed over; None: no row with any was."""


class FileFormat(ABC):
    """A file format. Stateless."""

    name: str
    suffixes: tuple[str, ...]
    compressible = False
    """True if complete files of this format may be compressed (`.csv.gz`)."""

    @abstractmethod
    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        """Return the schema of the file itself; without columns if the file has no row from which to infer it."""

    @abstractmethod
    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        """Return the size of a file. Deterministic for a file."""

    @abstractmethod
    def read(
        self, tree: FileTree, file: FileInfo, start: int, stop: int, schema: pa.Schema, policy: EvolutionPolicy
    ) -> Iterator[Piece]:
        """Yield the rows of a range; all of them are bad if the file's columns do not fit the schema and the policy.

        Raises `BadRecord` if the file cannot be read at all.
        """

    def read_columns(
        self,
        tree: FileTree,
        file: FileInfo,
        start: int,
        stop: int,
        schema: pa.Schema,
        policy: EvolutionPolicy,
        columns: Sequence[str],
        wanted: WantedRows | None = None,
    ) -> Iterator[Piece]:
        """Yield the rows of a range with these columns alone, in this order; otherwise as `read`.

        A format that knows bounds of stored groups of rows may pass over those that hold no `wanted` row.
        """
        for piece in self.read(tree, file, start, stop, schema, policy):
            yield piece._replace(rows=piece.rows.select(list(columns)))

    def check(self, schema: pa.Schema) -> None:
        """Raise `JobRefused` for a schema that files of this format cannot have."""
        return
