"""Commands that show the state in a checkpoint: `operators`, `state`, `diff`. They write nothing to the storage."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli.common import (
    JsonOption,
    Options,
    SafeConsole,
    Storage,
    open_storage_of,
    print_json,
    progress,
    say,
    told,
)
from holdfast.errors import HoldfastError
from holdfast.python_values import payload_of, shown_rows
from holdfast.stored_state.difference import CHANGE, difference
from holdfast.stored_state.opened import LATEST, OpenedCheckpoint, open_checkpoint
from holdfast.stored_state.read import rows_of_key
from holdfast.stored_state.rows import StateScan, scan
from holdfast.stored_state.states import readable_states

ROWS_SHOWN = 50
"""Rows that are shown in a terminal. A higher value prints longer tables."""
ROW_KEYS = {
    "map": ("map_key",),
    "list": ("position",),
    "subtask list": ("position", "key_group"),
    "timers": ("timestamp", "kind"),
}
"""Columns that distinguish a row from others of the same key, by kind of state."""

OperatorArgument = Annotated[str | None, typer.Argument(help="Name of an operator.")]
Checkpoint = Annotated[str, typer.Option("--checkpoint", help="Number of a retained checkpoint's record, or latest.")]
StateOption = Annotated[str | None, typer.Option("--state", help="A map or list state, or timers; by default values.")]


def operators(
    storage: Storage, checkpoint: Checkpoint = LATEST, option: Options = None, json: JsonOption = False
) -> None:
    """List the operators of a checkpoint: key columns, states, rows and stored bytes."""
    with told():
        opened = open_checkpoint(open_storage_of(storage, option), _number(checkpoint))
        found = [_described(opened, operator, each.name) for operator, each in _states(opened)]
        if json:
            print_json({"checkpoint": opened.number, "operators": found})
        else:
            columns = ("operator", "key columns", "state", "kind", "rows", "stored bytes")
            rows = [[_text(each[name.replace(" ", "_")]) for name in columns] for each in found]
            _print_table(f"checkpoint {opened.number}, batch {opened.record.batch}", columns, rows, numbers_from=4)


def state(
    storage: Storage,
    operator: OperatorArgument = None,
    state: StateOption = None,
    checkpoint: Checkpoint = LATEST,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="COLUMN=VALUE", help="Only rows of this key; once per column.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Write all rows to this file: .parquet, .csv, .jsonl.")
    ] = None,
    option: Options = None,
    json: JsonOption = False,
) -> None:
    """Show the rows of an operator's state; without an operator's name, list the operators."""
    if operator is None:
        operators(storage, checkpoint, option, json)
        return
    with told():
        opened = open_checkpoint(open_storage_of(storage, option), _number(checkpoint))
        found = scan(opened, operator, state)
        rows = _read(found, opened, _pairs(key))
        if to is not None:
            _write(rows, to)
            say(f"{len(rows):,} rows of checkpoint {opened.number} were written to {to}")
        elif json:
            for row in shown_rows(rows):
                say(payload_of(row))
        else:
            _print_rows(f"{operator}, checkpoint {opened.number}", rows)


def diff(
    storage: Storage,
    older: Annotated[int, typer.Argument(help="Number of a retained checkpoint's record.")],
    newer: Annotated[int, typer.Argument(help="Number of a later checkpoint's record.")],
    operator: Annotated[str | None, typer.Option("--operator", help="Show the rows of this operator's state.")] = None,
    state: StateOption = None,
    option: Options = None,
    json: JsonOption = False,
) -> None:
    """Count the rows that were added, removed or changed between two checkpoints, per operator and state."""
    with told():
        store = open_storage_of(storage, option)
        old, new = open_checkpoint(store, older), open_checkpoint(store, newer)
        if operator is not None:
            _print_rows(f"{operator}, {older} to {newer}", _difference(old, new, operator, state).rows)
            return
        found = []
        for name, each in _states(new):
            counted = _difference(old, new, name, each.name)
            found.append(
                {
                    "operator": name,
                    "state": each.name,
                    "came": counted.came,
                    "went": counted.went,
                    "changed": counted.changed,
                }
            )
        if json:
            print_json({"older": older, "newer": newer, "operators": found})
        else:
            columns = ("operator", "state", "came", "went", "changed")
            rows = [[_text(each[name]) for name in columns] for each in found]
            _print_table(f"checkpoints {older} to {newer}", columns, rows, numbers_from=2)


def _states(opened: OpenedCheckpoint) -> list[tuple[str, Any]]:
    return [
        (operator, each)
        for operator, identity in opened.record.operators.items()
        for each in readable_states(identity.tables)
    ]


def _described(opened: OpenedCheckpoint, operator: str, state: str) -> dict[str, object]:
    found = scan(opened, operator, state)
    rows = [each.rows for each in found.handles]
    return {
        "operator": operator,
        "key_columns": ", ".join(found.key_columns),
        "state": state,
        "kind": found.state.kind,
        "rows": None if None in rows else sum(each for each in rows if each is not None),
        "stored_bytes": sum(each.stored_bytes() for each in found.handles),
    }


def _difference(old: OpenedCheckpoint, new: OpenedCheckpoint, operator: str, state: str | None) -> Any:
    found = scan(new, operator, state)
    after = _read(found, new, {})
    if operator in old.record.operators and found.state.table in old.record.operators[operator].tables:
        before = _read(scan(old, operator, state), old, {})
    else:
        before = after.slice(0, 0)
    return difference(before, after, [*found.key_columns, *ROW_KEYS.get(found.state.kind, ())])


def _read(found: StateScan, opened: OpenedCheckpoint, key: dict[str, str]) -> pa.Table:
    if key:
        return rows_of_key(found, key, found.read(found.range_of(key), opened.store))
    with progress() as bar:
        ranges = bar.track(found.ranges(), description=f"reading {found.operator}")
        return pa.Table.from_batches([found.read(each, opened.store) for each in ranges], found.schema)


def _write(rows: pa.Table, to: Path) -> None:
    """Write rows in the format that the file's name ends with."""
    match to.suffix:
        case ".parquet":
            pa.parquet.write_table(rows, to)
        case ".csv":
            pa.csv.write_csv(rows, to)
        case ".jsonl":
            lines = (payload_of(row) + "\n" for row in shown_rows(rows))
            to.write_text("".join(lines), encoding="utf-8")
        case _:
            raise HoldfastError(
                f"--to {to}: its format is not known; name a file that ends in .parquet, .csv or .jsonl"
            )


def _print_rows(title: str, rows: pa.Table) -> None:
    """Print rows: to a terminal the first rows as a table, and to another program all rows as CSV."""
    names = sorted(rows.column_names, key=lambda name: name != CHANGE)
    if not sys.stdout.isatty():
        writer = csv.DictWriter(sys.stdout, names)
        writer.writeheader()
        writer.writerows(shown_rows(rows))
        return
    shown = shown_rows(rows.slice(0, ROWS_SHOWN))
    _print_table(title, names, [[_text(row[name]) for name in names] for row in shown], numbers_from=None)
    if len(rows) > ROWS_SHOWN:
        say(f"{len(rows):,} rows; the first {ROWS_SHOWN} are shown. --key chooses, --to writes all of them")


def _print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for column in [] if numbers_from is None else table.columns[numbers_from:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    SafeConsole(highlight=False).print(table)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for each in given or []:
        column, equals, value = each.partition("=")
        if not column or not equals:
            raise typer.BadParameter("expected COLUMN=VALUE", param_hint="--key")
        pairs[column] = value
    return pairs


def _number(checkpoint: str) -> int | str:
    if checkpoint == LATEST:
        return LATEST
    if not checkpoint.isdigit():
        raise typer.BadParameter(f"expected a record's number, or {LATEST}", param_hint="--checkpoint")
    return int(checkpoint)
