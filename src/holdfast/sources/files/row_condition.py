"""The condition of a source of files: rows for which it is not true are no rows of the source."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused, SettingsError
from holdfast.expressions.declared import SqlExpression
from holdfast.expressions.failing import in_parts
from holdfast.expressions.nodes import ExpressionRefused, SqlSettings
from holdfast.sources.files.columnar import bad_pieces
from holdfast.sources.files.file_format import BadPiece, Piece
from holdfast.sources.wanted import WantedRows

ReadPieces = Callable[[Sequence[str], WantedRows | None], Iterator[Piece]]
"""Reads columns of a part of a file, perhaps without rows that are not wanted."""


@dataclass(frozen=True, eq=False)
class RowCondition:
    """A condition as declared. `bound`: over the rows of the source, once their schema is known."""

    declared: SqlExpression
    bound: Any = None
    schema: pa.Schema | None = None

    def __post_init__(self) -> None:
        if isinstance(self.declared, pc.Expression):
            raise SettingsError(
                f"FileSource(where={self.declared}): expected a text in Spark's SQL or a Column of PySpark; use "
                ".where(…) behind read() for an expression of PyArrow"
            )

    def under(self, settings: SqlSettings) -> "RowCondition":
        return replace(self, declared=replace(self.declared, settings=settings), bound=None)

    def over(self, schema: pa.Schema) -> "RowCondition":
        """Return the condition over rows of a schema. Raises `JobRefused`."""
        try:
            bound = self.declared.bound(schema)
        except ExpressionRefused as error:
            raise JobRefused(f"{self}: {error}") from error
        if not pa.types.is_boolean(bound.type):
            raise JobRefused(f"{self}: the condition is of type {bound.type}; expected a boolean")
        return replace(self, bound=bound, schema=schema)

    def pieces(self, read: ReadPieces, names: list[str], wanted: WantedRows | None) -> Iterator[Piece]:
        """Yield the rows for which the condition is true, with these columns; rows for which it fails are bad."""
        asked = [*names, *(name for name in self.bound.reads if name not in names)]
        for piece in read(asked, self._wanted(wanted)):
            parts, failed = in_parts(piece.rows, lambda rows: rows.filter(self.bound(rows)))
            bad = [*piece.bad, *self._failures(piece, failed)]
            kept = pa.Table.from_batches(parts, piece.rows.schema).select(names).combine_chunks()
            rows = kept.to_batches()[0] if kept.num_rows else piece.rows.select(names).slice(0, 0)
            position = piece.position if rows.num_rows == piece.rows.num_rows else str(piece.position)
            yield Piece(position, rows, bad)

    def _wanted(self, wanted: WantedRows | None) -> WantedRows:
        """Return the rows that are wanted by this condition, and by the readers of its rows where no time is asked for:
        the newest time of rows that are passed over may be that of a row that is none of the source."""
        from holdfast.expressions.conditions import all_true  # the parser, which most readers do without

        assert self.schema is not None, "a source knows its schema before it is read"
        tree = self.bound.tree
        if wanted is not None and wanted.time is None:
            tree = all_true([tree, wanted.condition])
        return WantedRows(tree, self.schema, self.declared.settings)

    def _failures(self, piece: Piece, failed: dict[int, str]) -> list[BadPiece]:
        made = []
        for number, reason in failed.items():
            place = piece.position + number if isinstance(piece.position, int) else piece.position
            made += bad_pieces(place, piece.rows.slice(number, 1), [f"{self} failed: {reason}"])
        return made

    def __str__(self) -> str:
        return f"FileSource(where={self.declared})"
