"""The tables of a job's operators, made by its state backend."""

from functools import partial

import pyarrow as pa

from holdfast.settings import RocksDBState, StateBackend
from holdfast.state.base_rocksdb import RocksDBBase
from holdfast.state.rocksdb_memory import RocksDBMemory
from holdfast.state.table import StateTable


def new_table(
    backend: StateBackend,
    local_dir: str | None,
    key_schema: pa.Schema,
    value_schema: pa.Schema,
    max_parallelism: int,
    memory: RocksDBMemory | None = None,
) -> StateTable:
    """An empty table. Rows that are not in memory lie in a fresh folder below `local_dir` until the table is closed.

    `memory`: the memory that RocksDB shares with other tables; None: memory of its own.
    """
    if not isinstance(backend, RocksDBState):
        return StateTable(key_schema, value_schema, max_parallelism)
    return StateTable(
        key_schema,
        value_schema,
        max_parallelism,
        base=RocksDBBase(local_dir, memory),
        cache_max_entries=backend.cache_max_entries,
    )


def tables_of(
    backend: StateBackend, local_dir: str | None, memory: RocksDBMemory | None = None
) -> "partial[StateTable]":
    """Return `new_table` with the backend, the folder and the memory filled in."""
    return partial(new_table, backend, local_dir, memory=memory)
