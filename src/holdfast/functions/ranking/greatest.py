"""The checks of a declaration that orders rows by a column."""

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError


def check_top(n: int, by: str) -> None:
    """Check all that needs no schema; raises `SettingsError`."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise SettingsError(f"top({n!r}): allowed is a whole number of rows from 1")
    if not isinstance(by, str) or not by:
        raise SettingsError(f"top(by={by!r}): expected the name of a column")


def check_order(operator: str, by: str, schema: pa.Schema) -> None:
    """Refuse a column by which rows can't be ordered."""
    place = schema.get_field_index(by)
    if place < 0:
        raise JobRefused(
            f"operator {operator!r}: top(by={by!r}): there is no such column in its input ({', '.join(schema.names)})"
        )
    kind = schema.field(place).type
    if pa.types.is_nested(kind):
        raise JobRefused(f"operator {operator!r}: top(by={by!r}) has type {kind}, which has no order")
