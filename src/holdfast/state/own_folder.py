"""A folder that belongs to a process: while the process lives it is locked, after its death anyone may delete it.

    made under a hidden name ──► locked ──► renamed to its own name ──► deleted by `close`
                                                └─ its process is dead: no lock any more, deleted by the next process

So no folder with the prefix is ever without a lock while its process lives. The lock is the kernel's (`flock`, on the
folder itself): it ends with the process, however that ends. Files in the folder of a dead process are of no use.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class OwnFolder:
    """A new, empty folder `path` below `parent`, whose name begins with `prefix`; its owner alone may enter it.

    Parameters
    ----------
    parent
        Made if need be; None: the process's temporary folder.
    """

    def __init__(self, prefix: str, parent: str | None) -> None:
        if parent is not None:
            Path(parent).mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(prefix, parent)
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=parent))
        self._lock = os.open(made, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name[1:]))

    def close(self) -> None:
        """Delete it with all that is in it. Once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(prefix: str, parent: str | None) -> None:
    """Delete the folders with that prefix whose processes are dead."""
    for folder in sorted(Path(parent or tempfile.gettempdir()).glob(f"{prefix}*")):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # no folder, or deleted meanwhile
            continue
        try:
            if os.fstat(lock).st_uid != os.geteuid():  # with whatever another user put into it
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # its process lives
            continue
        finally:
            os.close(lock)
