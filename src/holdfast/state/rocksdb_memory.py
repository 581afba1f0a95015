"""The memory that the RocksDB tables of a TaskManager share: one cache of blocks, and one bound on write buffers.

    a half of the memory for state ─┬─ a third: blocks that were read, of all tables, the least recently used leave
                                    └─ two thirds: write buffers of all tables; past it, tables write theirs out

So the memory follows from the setting, whatever the number of tables. The other half is left for the rows that batches
touch, for caches of rows and for undo.
"""

import threading

from rocksdict import Cache, WriteBufferManager

ROCKSDB_SHARE = 2
"""Divisor: RocksDB takes 1/2 of the memory for state. With a lower value, tables write out less often, and leave less
memory for the rows of batches."""
BLOCKS_SHARE = 3
"""Divisor: the cache of blocks takes 1/3 of RocksDB's memory. With a lower value, more reads find their blocks in
memory."""
WRITE_BUFFER_BYTES_MAX = 24 * 1024 * 1024
"""Bound on the size of a write buffer, and so of a flushed file. Up to four of these lie unmerged when a
materialization links the files, and a restart reads them as well: tables of 1.2 GB take 50 MB less than with buffers of
32 MB at 10,000 rows of 1 kB a second. With 16 MB a table of small rows without a cache took 7 % longer."""
WRITE_BUFFER_BYTES_MIN = 64 * 1024
"""The smallest write buffer that RocksDB accepts."""
ALONE_BYTES = 512 * 1024 * 1024
"""Memory for state of a table that is made without a TaskManager."""


class RocksDBMemory:
    """Memory for RocksDB, of `state_bytes` for state in all, shared by `tables` tables or more. Thread-safe."""

    def __init__(self, state_bytes: int = ALONE_BYTES, tables: int = 1) -> None:
        own = state_bytes // ROCKSDB_SHARE
        self.blocks = Cache(own // BLOCKS_SHARE)
        self._buffer_bytes = own - own // BLOCKS_SHARE
        # Writers never stall: a stalled writer would wait for buffers of tables to which nobody writes.
        self.buffers = WriteBufferManager(self._buffer_bytes, False)
        self._tables = max(1, tables)
        self._opened = 0
        self._lock = threading.Lock()

    def open(self) -> int:
        """Note another table; return the size of its write buffers: one buffer of each table takes half of the
        bound."""
        with self._lock:
            self._opened += 1
            fair = self._buffer_bytes // (2 * max(self._tables, self._opened))
        return max(WRITE_BUFFER_BYTES_MIN, min(WRITE_BUFFER_BYTES_MAX, fair))

    def close(self) -> None:
        """Note that a table is gone."""
        with self._lock:
            self._opened -= 1

    @property
    def block_bytes(self) -> int:
        """A table's part of the cached blocks."""
        return int(self.blocks.get_usage()) // max(1, self._opened)
