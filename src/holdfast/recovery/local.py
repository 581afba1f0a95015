"""Local recovery: copies of stored objects on the machine's own disk, for the next restore there.

    <local_dir>/holdfast-copies-<user>/<job id>/tm-<task manager>/
        in-use                                              locked by each process that uses the folder
        <area>.<epoch>.<incarnation>.<uuid>.<bytes>.<crc>.object    a whole object
        <area>.<epoch>.<incarnation>.<uuid>.<bytes>.<crc>.head      the beginning of an object, whose rest is
        <area>.<epoch>.<incarnation>.<uuid>.<bytes>.<crc>.body      a link to a file that never changes
        .part-<uuid>                                        a copy being written, or a dropped one to be written over

Names of objects are used once and their content never changes, so job id and name identify the content. Length and
CRC-32 are those of the whole object, checked before each use. A copy that does not fit is deleted, and the store is
read instead. A TaskManager writes to its own folder, and also reads the folders of the job's other TaskManagers, which
have its key groups after a rescale. Copies survive their process, even after a kill -9. They are deleted by four rules:
`keep_only` drops copies that are not needed; above `bytes_max` the oldest are dropped; a folder is deleted when its
TaskManager ends in good order; an unused folder is deleted after `LEFTOVER_S_MAX`. Any copy may vanish at any time,
which only costs a download. It does not know handles, nor when to restore.
"""

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

from holdfast.printable import logger
from holdfast.recovery.spares import SpareFiles
from holdfast.storage import checksum, names

_log = logger(__name__)

LEFTOVER_S_MAX = 24 * 3600.0
"""Seconds without a write after which a folder of copies that no process uses is deleted."""
READ_BYTES = 4 * 1024 * 1024
WRITE_BYTES = 256 * 1024
"""Bytes that a single call writes. During a call with 5 MB, the system once kept a processor from all other threads for
9 ms while a checkpoint's record waited. A higher value makes fewer and longer calls."""
IN_USE = "in-use"
_IN_USE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
OBJECT, HEAD, BODY = ".object", ".head", ".body"
UNFINISHED = ".part-"


@dataclass(frozen=True)
class Copy:
    """An object that was found: completely in `head`, or with its rest in the file `body`. `start`: `head` has only a
    part of the object, from that byte on."""

    head: bytes | memoryview
    length: int
    body: Path | None = None
    start: int = 0

    def data(self) -> bytes | memoryview:
        return self.head if self.body is None else bytes(self.head) + self.body.read_bytes()

    def part(self, offset: int, length: int) -> memoryview:
        """Return `length` bytes of the object from `offset` on, or fewer if it ends earlier."""
        return memoryview(self.data())[offset - self.start : offset - self.start + length]


@dataclass(frozen=True)
class _Entry:
    """The facts that a copy's file name holds."""

    folder: Path
    stem: str
    length: int
    crc: int
    linked: bool

    def paths(self) -> list[Path]:
        """The files of the copy; the last file makes it complete, and is deleted first."""
        suffixes = (HEAD, BODY) if self.linked else (OBJECT,)
        return [self.folder / f"{self.stem}{suffix}" for suffix in suffixes]


class LocalCopies:
    """The copies of a TaskManager. Thread-safe. Implements `uploads.uploader.Copies`.

    Parameters
    ----------
    local_dir
        The folder below which copies are kept; None: the temporary folder of the machine.
    job_id, task_manager
        The owner of the copies. Folders of other jobs are only searched for leftovers.
    bytes_max
        Bound on the bytes of this TaskManager's copies.

    Raises
    ------
    OSError
        The folder cannot be made, or belongs to another user, or `job_id` is no job id.
    """

    def __init__(self, local_dir: str | None, job_id: str, task_manager: int, bytes_max: int) -> None:
        if not names.is_id(job_id):
            raise PermissionError(f"the job id {job_id!r} is no job id, and names no folder")
        self._root = Path(local_dir or tempfile.gettempdir()) / f"holdfast-copies-{os.geteuid()}"
        self._job = self._root / job_id
        self._folder = self._job / f"tm-{task_manager}"
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._others: dict[str, _Entry] = {}
        self._bytes = 0
        self._spares = SpareFiles()
        self._failed = False
        self._deletions = ThreadPoolExecutor(1, "holdfast-copies")
        """The thread of `keep_only`. To delete a checkpoint's files took up to 370 ms, for which the next cut would
        wait."""
        self._in_use = self._open()
        _sweep(self._root)

    @property
    def _closed(self) -> bool:
        return self._bytes_max < 0

    @property
    def size_bytes(self) -> int:
        """Bytes of this TaskManager's own copies."""
        with self._lock:
            return self._bytes

    def names(self) -> set[str]:
        """The objects of which this TaskManager has its own copies."""
        with self._lock:
            return set(self._entries)

    def has(self, name: str) -> bool:
        """True if there is a copy of the object on this machine, which may turn out to be damaged."""
        with self._lock:
            return name in self._entries or name in self._others

    def refresh(self) -> None:
        """Look for copies of other processes: TaskManagers of the job here, and predecessors of this TaskManager."""
        for name, entry in _scan(self._folder):
            self._add(name, entry)
        others: dict[str, _Entry] = {}
        for folder in self._job.glob("tm-*"):
            if folder != self._folder and not folder.is_symlink():
                others.update(_scan(folder))
        with self._lock:
            self._others = others

    def keep(
        self, name: str, data: bytes | memoryview, file: Path | None = None, *, in_place_of_older: bool = True
    ) -> None:
        """See `uploads.uploader.Copies`. Without `in_place_of_older`, no older copy is dropped to make room."""
        length = len(data)
        with self._lock:
            room = length <= self._bytes_max if in_place_of_older else self._bytes + length <= self._bytes_max
            if not room or name in self._entries or names.parse(name) is None:
                return
        crc = checksum.crc32(data)
        stem = f"{name.replace('/', '.')}.{length}.{crc:08x}"
        entry = _Entry(self._folder, stem, length, crc, file is not None)
        try:
            if file is None or not self._link(entry, data, file):
                entry = _Entry(self._folder, stem, length, crc, False)
                self._write(entry.paths()[-1], data)
        except OSError as error:
            self._cannot(f"no copy of {name} is kept", error)
            return
        self._add(name, entry)

    def open(self, name: str) -> Copy | None:
        """Open and check the copy of an object; None if there is no complete copy."""
        with self._lock:
            entry = self._entries.get(name) or self._others.get(name)
        if entry is None:
            return None
        try:
            copy = _checked(entry)
            if copy is not None and entry.folder != self._folder:
                entry = self._take_over(name, entry)
                return Copy(copy.head, copy.length, entry.paths()[-1] if entry.linked else None)
        except OSError as error:
            _log.info("the copy of %s cannot be read: %s", name, error)
            copy = None
        if copy is None:
            _log.warning(
                "the local copy of %s is damaged: it is deleted, and the object is read from the storage", name
            )
            self._forget(name, entry)
        return copy

    def forget(self, name: str) -> None:
        """Delete the copy of an object, which does not hold the object's bytes."""
        with self._lock:
            entries = [each[name] for each in (self._entries, self._others) if name in each]
        for entry in entries:
            self._forget(name, entry)

    def keep_only(self, needed: Collection[str], known: Collection[str]) -> None:
        """Drop the `known` copies that are not `needed`. `known` are the `names` from before `needed` was determined.
        Dropped copies can no longer be found at once; their files are deleted later.
        """
        unneeded = sorted(set(known).difference(needed))
        with self._lock:
            gone = [(name, entry) for name in unneeded if (entry := self._entries.get(name)) is not None]
        for name, entry in gone:
            self._drop(name, entry)
        files = [file for _, entry in gone for file in self._set_aside(entry)]
        with self._lock:
            if files and not self._closed:
                self._deletions.submit(self._delete, files)

    def close(self, *, delete: bool) -> None:
        """Release the folder; with `delete`, delete it, because no process will recover from it."""
        with self._lock:
            self._entries.clear()
            self._bytes_max = -1
        self._deletions.shutdown()
        self._delete(self._spares.clear())
        if delete:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._remove_if_empty()
        self._in_use.close()

    def _open(self) -> IO[str]:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root.is_symlink() or self._root.stat().st_uid != os.geteuid():
            raise PermissionError(f"{self._root} belongs to another user")
        self._root.chmod(0o700)
        in_use = self._locked()
        for unfinished in self._folder.glob(f"{UNFINISHED}*"):
            unfinished.unlink(missing_ok=True)
        for name, entry in _scan(self._folder):
            self._add(name, entry)
        return in_use

    def _locked(self) -> IO[str]:
        """Make the folder and lock it; try again if another process deletes it as a leftover at this moment."""
        while True:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._job.is_symlink() or self._folder.is_symlink():
                raise PermissionError(
                    f"{self._folder} lies behind a symbolic link, which is not followed: delete the link"
                )
            try:
                in_use = os.fdopen(os.open(self._folder / IN_USE, _IN_USE_FLAGS, 0o600), "w")
            except FileNotFoundError:
                continue
            fcntl.flock(in_use, fcntl.LOCK_SH)
            if (self._folder / IN_USE).exists():
                return in_use
            in_use.close()

    def _link(self, entry: _Entry, data: bytes | memoryview, file: Path) -> bool:
        """Link the file; returns False if the file system cannot."""
        head, body = entry.paths()
        size = file.stat().st_size
        self._write(head, data[: entry.length - size])
        try:
            os.link(file, body)
        except FileExistsError:
            return True
        except OSError:
            head.unlink(missing_ok=True)
            return False
        return True

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        unfinished = self._spare_for(len(data)) or self._unfinished()
        data = memoryview(data)
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as file:
                for start in range(0, len(data), WRITE_BYTES):
                    file.write(data[start : start + WRITE_BYTES])
                file.truncate()
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def _unfinished(self) -> Path:
        return self._folder / f"{UNFINISHED}{uuid4().hex}"

    def _spare_for(self, length: int) -> Path | None:
        """Take a file to write over, which is not much longer than `length`."""
        spare = self._spares.take(length)
        if spare is not None and spare.exists() and spare.stat().st_nlink > 1:
            spare.unlink(missing_ok=True)  # another TaskManager has made it its own
        return spare

    def _take_over(self, name: str, entry: _Entry) -> _Entry:
        """Link another TaskManager's copy into this TaskManager's folder; the other TaskManager drops its own link
        later."""
        own = _Entry(self._folder, entry.stem, entry.length, entry.crc, entry.linked)
        for source, target in zip(entry.paths(), own.paths(), strict=True):
            if not target.exists():
                os.link(source, target)
        self._add(name, own)
        return own

    def _add(self, name: str, entry: _Entry) -> None:
        surplus: list[tuple[str, _Entry]] = []
        with self._lock:
            if name not in self._entries:
                self._entries[name] = entry
                self._bytes += entry.length
            left = self._bytes
            for oldest in self._entries.items():
                if left <= self._bytes_max:
                    break
                surplus.append(oldest)
                left -= oldest[1].length
        for oldest_name, oldest_entry in surplus:
            self._forget(oldest_name, oldest_entry)

    def _forget(self, name: str, entry: _Entry) -> None:
        self._drop(name, entry)
        self._delete(entry.paths()[::-1])

    def _drop(self, name: str, entry: _Entry) -> None:
        """Forget the entry, so that it is not found any more."""
        with self._lock:
            if self._entries.get(name) == entry:
                del self._entries[name]
                self._bytes -= entry.length
            if self._others.get(name) == entry:
                del self._others[name]

    def _delete(self, files: list[Path]) -> None:
        for file in files:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                self._cannot(f"{file.name} cannot be deleted", error)

    def _set_aside(self, entry: _Entry) -> list[Path]:
        """Keep the entry's file as a spare, under a name that no other process finds. Returns the files to delete."""
        if entry.linked:
            return entry.paths()[::-1]
        spare = self._unfinished()
        try:
            entry.paths()[-1].rename(spare)
        except OSError:
            return entry.paths()
        return self._spares.offer(spare, entry.length, self._bytes_max - self.size_bytes)

    def _cannot(self, what: str, error: OSError) -> None:
        """Log the failure once: a full disk would repeat it for each object."""
        say = _log.info if self._failed else _log.warning
        self._failed = True
        say("local recovery: %s: %s", what, error)

    def _remove_if_empty(self) -> None:
        for folder in (self._job, self._root):
            try:
                folder.rmdir()
            except OSError:
                return


def open_copies(local_dir: str | None, job_id: str, task_manager: int, bytes_max: int) -> LocalCopies | None:
    """Open the copies of a TaskManager; None if `bytes_max` is 0, or the folder cannot be used."""
    if not bytes_max:
        return None
    try:
        return LocalCopies(local_dir, job_id, task_manager, bytes_max)
    except OSError as error:
        _log.warning("local recovery is off for TaskManager %d: %s", task_manager, error)
        return None


def _scan(folder: Path) -> Iterator[tuple[str, _Entry]]:
    """Yield the complete copies in a folder, oldest first; other files are ignored."""
    found = []
    for path in folder.glob("*"):
        stem, suffix = path.stem, path.suffix
        parts = stem.split(".")
        name = "/".join(parts[:-2])
        fits = len(parts) > 2 and suffix in (OBJECT, BODY) and names.parse(name) is not None and not path.is_symlink()
        if not fits or not parts[-2].isdigit() or (suffix == BODY and not (folder / f"{stem}{HEAD}").exists()):
            continue
        try:
            entry = _Entry(folder, stem, int(parts[-2]), int(parts[-1], 16), suffix == BODY)
            found.append((path.stat().st_mtime, name, entry))
        except (OSError, ValueError):
            continue
    found.sort(key=lambda each: each[:2])
    return ((name, entry) for _, name, entry in found)


def _checked(entry: _Entry) -> Copy | None:
    """Read and check a copy; None if its bytes are not those that were stored."""
    first, last = entry.paths()[0], entry.paths()[-1]
    head = first.read_bytes()
    length, crc = len(head), checksum.crc32(head)
    if entry.linked:
        with last.open("rb") as body:
            while some := body.read(READ_BYTES):
                length += len(some)
                crc = checksum.crc32(some, crc)
    if (length, crc) != (entry.length, entry.crc):
        return None
    return Copy(head, length, last if entry.linked else None)


def _sweep(root: Path) -> None:
    """Delete folders of copies that no process uses any more, of any job."""
    now_s = time.time()
    for folder in root.glob("*/tm-*"):
        if folder.is_symlink() or folder.parent.is_symlink():
            continue
        try:
            if now_s - folder.stat().st_mtime < LEFTOVER_S_MAX:
                continue
            with os.fdopen(os.open(folder / IN_USE, _IN_USE_FLAGS, 0o600), "w") as in_use:
                fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            folder.parent.rmdir()
        except OSError as error:
            _log.debug("%s stays: %s", folder, error)
