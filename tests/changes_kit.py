"""A table that changes at random, as batches of a stream of changes, and the same table for DuckDB."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

import duckdb_kit

Row = dict[str, Any]
WORDS = ("", "a", "ab", "b", "ä", "zz")


class ChangingTable:
    """Rows without a key, some of them equal; `change` draws a batch of changes and applies it."""

    def __init__(self, seed: int, schema: pa.Schema, keys: int = 4) -> None:
        self.random = random.Random(seed)
        self.schema = schema
        self._keys = keys
        self.rows: list[Row] = []

    def change(self, size: int) -> list[Row]:
        """Draw about `size` changes: inserts, updates of keys and values, deletes, copies; now and then all rows go."""
        made: list[Row] = []
        draw = self.random
        if draw.random() < 0.1:
            made += [{**row, "_change_type": "delete"} for row in self.rows]
            self.rows = []
        for _ in range(size):
            what = draw.random()
            if what < 0.4 or not self.rows:
                row = dict(draw.choice(self.rows)) if self.rows and draw.random() < 0.3 else self._row()
                self.rows.append(row)
                made.append({**row, "_change_type": draw.choice(["insert", None])})
            elif what < 0.75:
                place = draw.randrange(len(self.rows))
                made.append({**self.rows[place], "_change_type": "update_preimage"})
                changed = dict(self.rows[place])
                for name in draw.sample(self.schema.names, draw.randint(1, len(self.schema))):
                    changed[name] = self._value(name)
                self.rows[place] = changed
                made.append({**changed, "_change_type": "update_postimage"})
            else:
                made.append({**self.rows.pop(draw.randrange(len(self.rows))), "_change_type": "delete"})
        return made

    def batch(self, changes: list[Row]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(changes, self.schema.append(pa.field("_change_type", pa.string())))

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a query over the table `t`, in an order of their own."""
        t = pa.Table.from_pylist(self.rows, self.schema)
        with duckdb_kit.connection() as connection:
            connection.register("t", t)
            return in_order(connection.execute(text).fetchall())

    def _row(self) -> Row:
        return {name: self._value(name) for name in self.schema.names}

    def _value(self, name: str) -> Any:
        kind, draw = self.schema.field(name).type, self.random
        if name.startswith("k"):
            return draw.randrange(self._keys)
        if pa.types.is_timestamp(kind):
            return datetime.fromtimestamp(draw.randrange(60), UTC)
        if draw.random() < 0.15:
            return None
        if pa.types.is_integer(kind):
            return draw.choice([draw.randint(-5, 5), draw.randint(-(2**40), 2**40)])
        if pa.types.is_floating(kind):
            return draw.choice([0.1, 1e16, -3.5, draw.uniform(-1e6, 1e6), draw.randint(-3, 3) / 4])
        if pa.types.is_decimal(kind):
            return draw.randint(-(10**9), 10**9) * pa.scalar("0.01").cast(kind).as_py()
        return draw.choice(WORDS)


def in_order(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


class Told:
    """The rows that a stream of changes, or of upserts by its first columns, has told so far."""

    def __init__(self, upserts: bool = False, keys: int = 1) -> None:
        self._upserts = upserts
        self._keys = keys
        self.rows: dict[tuple[Any, ...], int] = {}
        self.by_key: dict[Any, tuple[Any, ...]] = {}

    def take(self, told: Iterator[Row] | list[Row]) -> None:
        """Apply changes. Each has to fit: no row goes that is not there."""
        for row in told:
            values = tuple(tuple(v) if isinstance(v, list) else v for n, v in row.items() if n != "_change_type")
            kind = row["_change_type"]
            if self._upserts:
                assert kind != "update_preimage"
                key = values[: self._keys]
                assert (kind == "insert") == (key not in self.by_key), row
                if kind == "delete":
                    assert self.by_key.pop(key) == values
                else:
                    self.by_key[key] = values
                continue
            weight = -1 if kind in ("delete", "update_preimage") else 1
            self.rows[values] = self.rows.get(values, 0) + weight
            assert self.rows[values] >= 0, row
            if not self.rows[values]:
                del self.rows[values]

    def now(self) -> list[tuple[Any, ...]]:
        if self._upserts:
            return in_order(self.by_key.values())
        return in_order(row for row, count in self.rows.items() for _ in range(count))
