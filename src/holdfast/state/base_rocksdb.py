"""The base store of `RocksDBState`: RocksDB in a folder of its own, by way of rocksdict, with raw bytes.

No write-ahead log: the changelog is the log. So the content of the folder after a crash belongs to no checkpoint, and
each store makes a fresh folder. The folder is deleted when the store is closed, or by a later store if its process
died. Keys come sorted by key group, which makes a multi-get touch few blocks. Does not know rows, nor which are dirty.
"""

import shutil
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from holdfast.printable import logger
from holdfast.state.local_disk import on_disk
from holdfast.state.own_folder import OwnFolder
from holdfast.state.rocksdb_memory import WRITE_BUFFER_BYTES_MAX, RocksDBMemory

log = logger(__name__)

FOLDER_PREFIX = "holdfast-state-"
WRITE_BUFFERS_MAX = 4
FILE_BYTES = 24 * 1024 * 1024
"""The size of a merged file. A materialization reads each file into memory, and RocksDB's own 64 MB are more than
malloc keeps once they are freed (`taskmanager/process_memory`); a larger file also occupies a store for longer when a
checkpoint comes."""
SETTLED_FILES_MAX = 1
"""Number of flushed files up to which merging counts as done: a flush may follow right after a merge."""
ACTIVE, IMMUTABLE, AT_LEVEL_0 = (
    "rocksdb.cur-size-active-mem-table",
    "rocksdb.num-immutable-mem-table",
    "rocksdb.num-files-at-level0",
)
BEHIND_FILES = 8
"""The number of unmerged files from which on RocksDB soon holds up a flush."""
MERGING = ("rocksdb.num-running-compactions", "rocksdb.compaction-pending")
SCAN_CACHE_BYTES = 8 * 1024 * 1024
"""Blocks that are kept while the files of a checkpoint are read in order: each is needed once."""
SYNC_BYTES = 1024 * 1024
"""Bytes after which a file is synced to the disk while it is being written. If the disk got all of it, 64 MB and more,
at the file's end, it would hold up the small objects of checkpoints for tens of milliseconds."""
BACKGROUND_JOBS = 3
"""Jobs that run at a time: a flush and two merges. A single merge falls behind where rows are overwritten as fast as
two processors can: files of 1.2 GB grew to 2.2 GB within minutes, all of which a restart reads."""
LOG_BYTES_MAX = 256 * 1024
"""Bound on the bytes of RocksDB's own log file; only the newest file is kept."""
BLOOM_BITS = 10
MEMTABLE_BLOOM_SHARE = 0.02
"""Share of a write buffer that its Bloom filter takes: about 12 bits for each row if rows are as small as can be. A
filter of five times that size does not fit the processor's cache."""
READ_KEYS = 256
"""Keys that are read at a time: the records found are still in the processor's cache when they are copied."""
SCAN_ROWS = 65_536


class RocksDBBase:
    """See `residency.BaseStore`.

    Parameters
    ----------
    local_dir
        The folder in which its folder is made; None: the process's temporary folder.
    memory
        The memory that it shares with other tables; None: memory of its own.
    """

    def __init__(self, local_dir: str | None = None, memory: RocksDBMemory | None = None) -> None:
        self._own = OwnFolder(FOLDER_PREFIX, local_dir)
        self.folder = self._own.path
        self.is_empty = True
        self._memory = memory or RocksDBMemory()
        self._buffer_bytes = self._memory.open()
        with on_disk(self.folder):
            self._db: Any = Rdict(str(self.folder / "db"), self._options())
        self._checkpoints = 0
        self._closing = threading.Lock()
        self._held_bytes = 0
        """Bytes in the buffer when `flush_ahead` was last called: more than now if the buffer was full since."""
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True
        # Keys come sorted: the search for a key starts where the last key went. Only unordered writes heed it.
        self._unlogged.memtable_insert_hint_per_batch = True

    @property
    def memory_bytes(self) -> int:
        if self._db is None:
            return 0
        tables = self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        return int(tables) + self._memory.block_bytes

    @property
    def settled(self) -> bool:
        if self._db is None:
            return False
        unmerged = int(self._db.property_value(AT_LEVEL_0) or 0) > SETTLED_FILES_MAX
        return not (unmerged or any(self._db.property_int_value(each) for each in MERGING))

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        with on_disk(self.folder):
            for start in range(0, len(keys), READ_KEYS):
                found += self._db.get(keys[start : start + READ_KEYS])
        return found

    def write(self, keys: list[bytes], records: list[bytes], deleted: list[bytes]) -> None:
        batch = WriteBatch(raw_mode=True)
        deque(map(batch.put, keys, records), maxlen=0)
        deque(map(batch.delete, deleted), maxlen=0)
        with on_disk(self.folder):
            self._db.write(batch, self._unlogged)
        self.is_empty = False

    def scan(self, start: bytes = b"", rows_max: int = SCAN_ROWS) -> Iterator[tuple[list[bytes], list[bytes]]]:
        yield from _chunks(self._db.items(from_key=start, read_opt=ReadOptions()), rows_max)

    def flush(self) -> None:
        """Write out the records in memory; unlike `checkpoint`, which would do so too, it lets other threads run
        meanwhile."""
        with on_disk(self.folder):
            self._db.flush()

    def flush_ahead(self) -> None:
        with self._closing:
            if self._db is None:
                return
            held, waiting = (int(self._db.property_int_value(each) or 0) for each in (ACTIVE, IMMUTABLE))
            grown, self._held_bytes = held - self._held_bytes, held
            keeps_up = not waiting and int(self._db.property_value(AT_LEVEL_0) or 0) < BEHIND_FILES
            if keeps_up and grown > 0 and held + grown > self._buffer_bytes:
                self._db.flush(wait=False)
                self._held_bytes = 0

    def checkpoint(self) -> Path:
        """Write out the rows in memory and link the files: nothing is copied."""
        self._checkpoints += 1
        folder = self.folder / f"checkpoint-{self._checkpoints}"
        with on_disk(self.folder):
            Checkpoint(self._db).create_checkpoint(str(folder))
        return folder

    def adopt(self, folder: Path) -> None:
        place = self.folder / "db"
        self._db.close()
        shutil.rmtree(place)
        shutil.move(folder, place)
        self._db = Rdict(str(place), self._options())
        self.is_empty = False

    def close(self) -> None:
        with self._closing:
            db, self._db = self._db, None
        if db is None:
            return
        self._memory.close()
        try:
            db.close()
        except Exception as error:  # closing first writes out the rows in memory; a full disk has no room for them
            log.warning("%s: RocksDB could not write its last rows, which nobody needs: %s", self.folder, error)
        self._own.close()

    def _options(self) -> Any:
        options = _options(self._memory.blocks, self._buffer_bytes)
        options.set_write_buffer_manager(self._memory.buffers)
        return options


def scan_folder(folder: Path, start: bytes, stop: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys in `[start, stop)` and their records, in order, some at a time, from the files of a checkpoint."""
    db: Any = Rdict(str(folder), _options(Cache(SCAN_CACHE_BYTES)), access_type=AccessType.read_only())
    try:
        yield from _chunks(takewhile(lambda item: item[0] < stop, db.items(from_key=start)))
    finally:
        db.close()


def _chunks(
    items: Iterable[tuple[bytes, bytes]], rows_max: int = SCAN_ROWS
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    left = iter(items)
    while some := list(islice(left, rows_max)):
        keys, records = zip(*some, strict=True)
        yield list(keys), list(records)


def _options(blocks: Any, buffer_bytes: int = WRITE_BUFFER_BYTES_MAX) -> Any:
    table = BlockBasedOptions()
    table.set_block_cache(blocks)
    table.set_bloom_filter(BLOOM_BITS, False)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.none())
    options.set_bottommost_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(buffer_bytes)
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    options.set_target_file_size_base(FILE_BYTES)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_SHARE)
    # A reader could see part of a write in progress, but there is none: reads, writes and checkpoints of a table
    # exclude each other.
    options.set_unordered_write(True)
    options.set_bytes_per_sync(SYNC_BYTES)
    options.set_max_background_jobs(BACKGROUND_JOBS)
    options.set_keep_log_file_num(1)
    # Nobody reads RocksDB's own log here. It is bounded, since even empty tables write megabytes in hours.
    options.set_max_log_file_size(LOG_BYTES_MAX)
    options.set_stats_dump_period_sec(0)
    # Blocks are read out of the system's page cache, which saves a copy: 3.6 instead of 6 µs for a row of 1 kB.
    options.set_allow_mmap_reads(True)
    return options
