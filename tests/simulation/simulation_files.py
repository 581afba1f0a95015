"""Files of processes on their machine's disk: locks are free and databases closed once they are dead, as the kernel
would have it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from simulation_threads import runtime

from holdfast.recovery.local import LocalCopies
from holdfast.state.base_rocksdb import RocksDBBase
from holdfast.state.own_folder import OwnFolder


@contextmanager
def files_end_with_processes() -> Iterator[None]:
    """Let a simulated process that is killed let go of its folders, databases and copies, within the context."""
    make, close, open_copies = OwnFolder.__init__, OwnFolder.close, LocalCopies._open
    make_base = RocksDBBase.__init__

    def made(self: OwnFolder, *arguments: Any) -> None:
        make(self, *arguments)
        _held()[id(self)] = partial(os.close, self._lock)

    def closed(self: OwnFolder) -> None:
        if _held().pop(id(self), None) is not None:
            close(self)

    def made_base(self: RocksDBBase, *arguments: Any) -> None:
        make_base(self, *arguments)
        _held()[id(self)] = partial(_close_database, self)

    def opened(self: LocalCopies) -> Any:
        file = open_copies(self)
        _held()[id(file)] = file.close
        return file

    with (
        mock.patch.object(OwnFolder, "__init__", made),
        mock.patch.object(OwnFolder, "close", closed),
        mock.patch.object(RocksDBBase, "__init__", made_base),
        mock.patch.object(LocalCopies, "_open", opened),
    ):
        yield


def _close_database(base: RocksDBBase) -> None:
    """Left open, it writes out its memory whenever it happens to be collected: by then into a folder that is no
    more, for which RocksDB waits a second, once for each, with the interpreter's lock held."""
    db, base._db = base._db, None
    if db is not None:
        db.close()


def _held() -> dict[int, Any]:
    fiber = runtime().current
    assert fiber is not None
    return fiber.process.held
