"""Warming of a TaskManager before it registers, so that its first batch costs no more than later batches.

The first use of compiled kernels takes half a second of processor time in a new process. Each operator's tables take a
transaction of two made-up rows, and operators that call no user's function process them. All of it is thrown away. A
failure of warming never fails the process: without warming, the first batch only takes longer.
"""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from holdfast.functions.operator import BatchContext, OperatorSpec
from holdfast.graph.program import Program
from holdfast.ids import FIRST_BATCH, BatchNumber
from holdfast.printable import logger
from holdfast.state.table import StateTable
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

_log = logger(__name__)

ROWS = 2
KEY_GROUPS = 128
UNDONE, KEPT = BatchNumber(1), BatchNumber(2)


def warm(program: Program, store: ObjectStore) -> None:
    """Load the kernels that the program's operators need, and open the connection to the store."""
    try:
        store.get(names.job())
    except Exception as error:
        _log.info("the store was not reached while warming: %s", error)
    for name, spec in program.operators.items():
        try:
            _warm_tables(spec)
            if spec.calls_no_user:
                _warm_operator(name, spec)
        except Exception as error:
            _log.info("operator %r stays cold: %s", name, error)


def warm_kernels() -> None:
    """Load the kernels of tables with usual keys, without a program or a store: before a process forks others."""
    for key in (pa.int64(), pa.string()):
        _warm_table(pa.schema([("key", key)]), pa.schema([("count", pa.int64()), ("value", pa.binary())]))


def _warm_tables(spec: OperatorSpec) -> None:
    for keys, values in spec.table_schemas().values():
        _warm_table(keys, values)


def _warm_table(keys: pa.Schema, values: pa.Schema) -> None:
    """Restore, look up, change, commit and undo rows of a table."""
    stored = _stored_rows(StateTable(keys, values, KEY_GROUPS), keys, values)
    table = StateTable(keys, values, KEY_GROUPS)
    table.apply(stored, 0, KEY_GROUPS)
    for end in (table.commit, table.undo):
        table.begin(FIRST_BATCH)
        table.lookup(made_up_rows(keys))
        table.changes()
        end()
    table.close()


def _stored_rows(table: StateTable, keys: pa.Schema, values: pa.Schema) -> pa.RecordBatch:
    rows = made_up_rows(pa.schema([*keys, *values]))
    columns = {"__key_group": pa.array([0] * ROWS, pa.int32()), "__deleted": pa.array([False] * ROWS)}
    columns |= {name: rows.column(name) for name in rows.schema.names}
    stored = table.stored_schema()
    table.close()
    return pa.RecordBatch.from_arrays([columns[name] for name in stored.names], schema=stored)


def _warm_operator(name: str, spec: OperatorSpec) -> None:
    """Process a batch that is undone, then the same rows in a batch that is committed."""
    operator = spec.create(0, KEY_GROUPS)
    inputs = [(number, made_up_rows(each.schema)) for number, each in enumerate(spec.inputs)]
    try:
        for number, is_kept in ((UNDONE, False), (KEPT, True)):
            for table in operator.tables.values():
                table.begin(number)
            operator.process(inputs, BatchContext(number, 0, name, 0))
            for table in operator.tables.values():
                table.defer_changes()
                table.commit() if is_kept else table.undo()
                table.collect(number)
        for table in operator.tables.values():
            table.rewind(UNDONE)
    finally:
        operator.close()
        for table in operator.tables.values():
            table.close()


def made_up_rows(schema: pa.Schema, count: int = ROWS) -> pa.RecordBatch:
    """Make rows of a schema, all equal."""
    return pa.RecordBatch.from_arrays([_column(each.type, count) for each in schema], schema=schema)


def _column(kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with a repeated value of the type; nulls if no value of the type is known here."""
    for value in (0, 0.0, "", b"", False, Decimal(0), datetime.fromtimestamp(0, UTC), date(1970, 1, 1)):
        try:
            return pa.array([value] * count, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return pa.nulls(count, kind)
