"""What processes lock on their machine's disk: free once they are dead, as the kernel would have it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from simulation_threads import runtime

from holdfast.recovery.local import LocalCopies
from holdfast.state.own_folder import OwnFolder


@contextmanager
def locks_end_with_processes() -> Iterator[None]:
    """While it is open, a simulated process that is killed lets go of its folders and copies."""
    make, close, open_copies = OwnFolder.__init__, OwnFolder.close, LocalCopies._open

    def made(self: OwnFolder, *arguments: Any) -> None:
        make(self, *arguments)
        _locks()[id(self)] = partial(os.close, self._lock)

    def closed(self: OwnFolder) -> None:
        if _locks().pop(id(self), None) is not None:
            close(self)

    def opened(self: LocalCopies) -> Any:
        file = open_copies(self)
        _locks()[id(file)] = file.close
        return file

    with (
        mock.patch.object(OwnFolder, "__init__", made),
        mock.patch.object(OwnFolder, "close", closed),
        mock.patch.object(LocalCopies, "_open", opened),
    ):
        yield


def _locks() -> dict[int, Any]:
    fiber = runtime().current
    assert fiber is not None
    return fiber.process.locks
