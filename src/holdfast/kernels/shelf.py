"""The places that store compiled kernels: memory, folders of the machine, and the JobMaster of the job.

A file contains the SHA-256 of its content, then the content, compressed. A damaged file is treated as missing. Files
are written under another name and then renamed, so that several processes can write the same kernel.

    folder of the processor / address   =   sha256 (32 bytes) | zlib(kernel, as Numba pickles it)
"""

import fcntl
import hashlib
import os
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.errors import SettingsError
from holdfast.kernels import places
from holdfast.printable import logger

KERNEL_BYTES_MAX = 4 << 20
"""Bound in bytes on a kernel; most have some 30 KB. Larger kernels are compiled by each process."""
MEMORY_BYTES_MAX = 64 << 20
"""Bound in bytes on kernels in memory. A higher value keeps more of them if no folder is writable."""
FILES_MAX = 4_000
"""Bound on the number of files in a folder. Beyond it the oldest files are deleted."""
LOCK_S_MAX = 20.0
"""Bound in seconds on the wait for another process of the machine that is compiling the same kernel."""
LOCK_POLL_S = 0.02
CHECKSUM_BYTES = 32
_FOLDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,119}")
_ADDRESS = re.compile(r"[0-9a-f]{64}")

_log = logger(__name__)


class KernelName(NamedTuple):
    """The identity of a stored kernel: the folder of its processor, and its address."""

    folder: str
    address: str

    def check(self) -> None:
        """Refuse a name that could lead out of the folder. Raises `SettingsError`."""
        if _FOLDER.fullmatch(self.folder) is None or _ADDRESS.fullmatch(self.address) is None:
            raise SettingsError(f"found {self.folder!r}/{self.address!r}, expected the folder and address of a kernel")


class Elsewhere(Protocol):
    """The JobMaster, which the processes of its job ask for kernels."""

    def kernel(self, names: Sequence[KernelName]) -> tuple[int, bytes]:
        """Return the first kernel that exists, after its index among the names; no bytes if none exists."""

    def keep_kernel(self, name: KernelName, data: bytes) -> bool: ...


def sealed(content: bytes) -> bytes:
    """Compress a kernel, and put its checksum in front of it."""
    packed = zlib.compress(content, 1)
    return hashlib.sha256(packed).digest() + packed


def unsealed(data: bytes) -> bytes | None:
    """Return a kernel's content; None if the data is damaged or too large."""
    checksum, packed = data[:CHECKSUM_BYTES], data[CHECKSUM_BYTES:]
    if len(data) > KERNEL_BYTES_MAX or hashlib.sha256(packed).digest() != checksum:
        return None
    with suppress(zlib.error):
        inflating = zlib.decompressobj()
        content = inflating.decompress(packed, KERNEL_BYTES_MAX)
        return None if inflating.unconsumed_tail else content
    return None


class Shelf:
    """All places of kernels that a process knows. Thread-safe."""

    def __init__(self, folders: Callable[[], Iterator[Path]] = places.folders) -> None:
        self._folders = folders
        self._memory: dict[KernelName, bytes] = {}
        self._elsewhere: Elsewhere | None = None
        self._written: tuple[int, Path | None] | None = None
        self.taken, self.taken_since_s, self.taken_last_s = 0, 0.0, 0.0
        """The number of kernels that processes of jobs have compiled and sent here, and the times of the first and the
        last."""

    def only(self, folder: Path) -> None:
        """Search only this folder, and store kernels there."""
        self._folders, self._written = lambda: iter([folder]), None

    def ask(self, elsewhere: Elsewhere | None) -> None:
        """Ask `elsewhere`, too, for kernels that this machine does not have, and send it kernels compiled here."""
        self._elsewhere = elsewhere

    def find(self, name: KernelName) -> bytes | None:
        """Return a kernel in its sealed form, from this process or its machine."""
        name.check()
        found = self._memory.get(name)
        if found is not None:
            return found
        for folder in self._folders():
            found = _read(folder / name.folder / name.address, folder)
            if found is not None:
                return found
        return None

    def find_first(self, names: Sequence[KernelName]) -> tuple[KernelName, bytes] | None:
        """Return the first of the kernels that is found. A kernel from the JobMaster is also stored on this machine."""
        for name in names:
            found = self.find(name)
            if found is not None:
                return name, found
        if self._elsewhere is None:
            return None
        try:
            place, asked = self._elsewhere.kernel(names)
        except Exception as error:
            _log.info("the JobMaster is not asked for kernels any more: %s", error)
            self._elsewhere = None
            return None
        if not asked or not 0 <= place < len(names) or not self.keep(names[place], asked):
            return None
        return names[place], asked

    def keep(self, name: KernelName, data: bytes) -> bool:
        """Store a sealed kernel in the first writable folder, else in memory. False: the kernel is damaged."""
        name.check()
        if unsealed(data) is None:
            return False
        folder = self._writable()
        if folder is not None and _write(folder / name.folder, name.address, data):
            return True
        if sum(map(len, self._memory.values())) + len(data) <= MEMORY_BYTES_MAX:
            self._memory[name] = data
        return True

    def keep_everywhere(self, name: KernelName, data: bytes) -> None:
        """Store a kernel that was compiled here, and send it to the JobMaster."""
        self.keep(name, data)
        if self._elsewhere is not None:
            try:
                self._elsewhere.keep_kernel(name, data)
            except Exception as error:
                _log.info("the JobMaster is not given kernels any more: %s", error)
                self._elsewhere = None

    def take(self, name: KernelName, data: bytes) -> bool:
        """Store a kernel that a process of a job has compiled, and count it."""
        self.taken_last_s = time.monotonic()
        self.taken_since_s = self.taken_since_s or self.taken_last_s
        self.taken += 1
        return self.keep(name, data)

    def forget(self, name: KernelName) -> None:
        """Delete a kernel that Numba cannot load."""
        self._memory.pop(name, None)
        for folder in self._folders():
            with suppress(OSError):
                (folder / name.folder / name.address).unlink()

    def lock(self, name: KernelName) -> "Lock | None":
        """Lock the compilation of a kernel on this machine. None: no folder is writable, or the bounded wait for
        another process has ended; several processes may then compile the kernel."""
        folder = self._writable()
        return None if folder is None else _locked(folder / name.folder / f"{name.address}.lock")

    def _writable(self) -> Path | None:
        if self._written is None or self._written[0] != os.geteuid():
            own = (each for each in self._folders() if places.can_be_written(each) and places.is_own_cache(str(each)))
            self._written = (os.geteuid(), next(own, None))
        return self._written[1]


SHELF = Shelf()
"""The kernels that this process finds and stores."""


def _read(path: Path, folder: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not places.is_own_cache(str(folder)) or not places.is_own_cache(str(path.parent)):
            return None
        if places.others_write(os.fstat(descriptor)):
            return None
        data = file.read(KERNEL_BYTES_MAX + 1)
    return data if unsealed(data) is not None else None


def _write(folder: Path, address: str, data: bytes) -> bool:
    aside = folder / f"{address}.{uuid.uuid4().hex}"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        aside.touch(mode=0o644)
        aside.write_bytes(data)
        aside.rename(folder / address)
        _prune(folder)
    except OSError as error:
        _log.debug("a compiled kernel is not stored in %s: %s", folder, error)
        with suppress(OSError):
            aside.unlink()
        return False
    return True


def _prune(folder: Path) -> None:
    with os.scandir(folder) as files:
        found = [each for each in files if each.is_file(follow_symlinks=False)]
    if len(found) > FILES_MAX:
        found.sort(key=lambda each: each.stat(follow_symlinks=False).st_mtime)
        for each in found[: len(found) - FILES_MAX]:
            with suppress(OSError):
                Path(each.path).unlink()


class Lock(NamedTuple):
    """The right of a process to compile a kernel."""

    path: Path
    descriptor: int

    def release(self) -> None:
        with suppress(OSError):
            self.path.unlink()
        os.close(self.descriptor)


def _locked(path: Path) -> Lock | None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError:
        return None
    deadline_s = time.monotonic() + LOCK_S_MAX
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Lock(path, descriptor)
        except OSError:
            if time.monotonic() >= deadline_s:
                os.close(descriptor)
                return None
            time.sleep(LOCK_POLL_S)
