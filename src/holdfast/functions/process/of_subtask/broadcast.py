"""Broadcast state as a user declares it: the rows of a stream in every subtask of an operator, by key, to be read.

    class Limits(hf.ProcessFunction):
        rules = hf.BroadcastState()

        def process(self, row, ctx):
            rule = self.rules.get(row.kind)
            if rule is not None and row.amount > rule.limit:
                yield {"user": row.user, "limit": rule.limit}

    orders.key_by("user").process(Limits(), schema, broadcast={"rules": rules.key_by("kind")})

The methods here only say that no operator runs; the running states are in `subtask_broadcast.py`. This module also
refuses, at `start()`, streams that fit no declared state.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa

from holdfast.errors import HoldfastError, JobRefused
from holdfast.functions.operator import OperatorInput, TableSchema
from holdfast.functions.rows.columns import RESERVED_PREFIX
from holdfast.schema import CHANGE_TYPE


def broadcast_table(name: str) -> str:
    """Name the table of a broadcast state."""
    return f"{name}.broadcast"


class BroadcastState:
    """Rows of a stream that every subtask has, by key; a function only reads them.

    An attribute of a `ProcessFunction` or `BatchFunction`, filled by `process(broadcast={<attribute>: keyed_stream})`.
    A key is the value of the key column, or a tuple where `key_by` has several. A value is a named tuple of the other
    columns. Reading is allowed wherever a row or timer is processed, and not in `open`.
    """

    kind = "BroadcastState"

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        self._not_running()

    def contains(self, key: Any) -> bool:
        """Return True if the key has a value."""
        self._not_running()

    def keys(self) -> list[Any]:
        """Return all keys, ascending."""
        self._not_running()

    def values(self) -> list[Any]:
        """Return all values, in the order of their keys."""
        self._not_running()

    def items(self) -> list[tuple[Any, Any]]:
        """Return all pairs of key and value, in the order of keys."""
        self._not_running()

    def is_empty(self) -> bool:
        """Return True if there is no entry."""
        self._not_running()

    def rows(self) -> pa.RecordBatch:
        """Return all entries as Arrow: the key columns, then the other columns, in the order of keys."""
        self._not_running()

    def _not_running(self) -> NoReturn:
        raise HoldfastError(
            "a BroadcastState has its rows only while a row or timer of an operator is processed, and not in open()"
        )


def broadcast_schema(found: OperatorInput) -> TableSchema:
    """Return the schema of a broadcast state's table."""
    values = [field for field in found.schema if field.name not in (*found.key_columns, CHANGE_TYPE)]
    return TableSchema(found.key_schema, pa.schema(values))


def check_broadcasts(operator: str, function: object, inputs: Sequence[OperatorInput]) -> None:
    """Refuse, by `JobRefused`, broadcast streams that a function does not declare, or whose rows cannot be entries."""
    kind, declared, given = type(function).__name__, declared_broadcasts(function), [each.broadcast for each in inputs]
    for name in given:
        if name not in declared:
            raise JobRefused(
                f"operator {operator!r}: broadcast={{{name!r}: …}}, but {kind} has no attribute {name} = "
                f"hf.BroadcastState() (it has: {', '.join(declared) or 'none'}); declare it, or correct the name"
            )
    for name in declared:
        if name not in given:
            raise JobRefused(
                f"operator {operator!r}: {kind} declares the broadcast state {name!r}, but no stream fills it; give "
                f"process(…, broadcast={{{name!r}: stream.key_by(…)}}); behind a window there is none"
            )
    for found in inputs:
        _check_columns(operator, found)


def _check_columns(operator: str, found: OperatorInput) -> None:
    who = f"operator {operator!r}: broadcast {found.broadcast!r}"
    for field in found.schema:
        if found.schema.names.count(field.name) > 1 or field.name.startswith(RESERVED_PREFIX):
            raise JobRefused(
                f"{who}: column {field.name!r} is there twice, or begins with {RESERVED_PREFIX!r}; rename it"
            )
    for field in found.key_schema:
        if pa.types.is_floating(field.type):
            raise JobRefused(
                f"{who}: key column {field.name!r} is {field.type}: in Python a NaN is unequal to itself. Key by the "
                "text or the bits of the number"
            )


def declared_broadcasts(function: object) -> list[str]:
    """List the broadcast states of a function's class, base classes first."""
    found: dict[str, None] = {}
    for cls in reversed(type(function).__mro__):
        for name, value in vars(cls).items():
            found.pop(name, None)
            if isinstance(value, BroadcastState):
                found[name] = None
    return list(found)
