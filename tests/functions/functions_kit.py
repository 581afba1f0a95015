"""Helpers that tests of functions share."""

from holdfast.functions.operator import Operator


def end(operator: Operator, *, undo: bool = False) -> None:
    """The batch in flight is committed, or undone."""
    for table in operator.tables.values():
        if undo:
            table.undo()
        else:
            table.changes()
            table.commit()
