"""Numba's cache of a kernel's compiled forms, by content, and a count of the kernels that this process has compiled.

Numba asks `load_overload` before it compiles, and passes the result to `save_overload`. Neither fails: a kernel that
cannot be stored is compiled by each process that calls it.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle
from numba.core import sigutils
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from holdfast.kernels.identity import UnknownContent, content_of
from holdfast.kernels.processors import Processor, own_processor, usable_processors
from holdfast.kernels.shelf import SHELF, KernelName, Lock, Shelf, sealed, unsealed
from holdfast.printable import logger

_log = logger(__name__)


class Compiled(NamedTuple):
    """The number of kernels that a process has compiled since its start, and the seconds that this took."""

    kernels: int
    seconds: float


class _Count:
    """Kernels call each other, so their compilations are nested. The seconds of the outermost compilation count."""

    def __init__(self) -> None:
        self.kernels, self.seconds = 0, 0.0
        self._begun: list[float] = []

    def begin(self) -> None:
        self._begun.append(time.monotonic())

    def end(self) -> None:
        begun_s = self._begun.pop() if self._begun else time.monotonic()
        self.kernels += 1
        if not self._begun:
            self.seconds += time.monotonic() - begun_s


_count = _Count()


def compiled() -> Compiled:
    """Count the kernels that this process has compiled."""
    return Compiled(_count.kernels, _count.seconds)


class NotCompiled(Exception):
    """A kernel has no compiled form, and may not be compiled in this context."""


_refusing: list[bool] = []


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Allow only compiled kernels inside the context: a kernel that would have to be compiled raises `NotCompiled`."""
    _refusing.append(True)
    try:
        yield
    finally:
        _refusing.pop()


class KernelCache(NullCache):  # type: ignore[misc]
    """The compiled forms of a kernel, one for each combination of its arguments' types."""

    def __init__(self, function: FunctionType, shelf: Shelf = SHELF) -> None:
        self._function = function
        self._shelf = shelf
        self._locks: dict[str, Lock | None] = {}

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled form for the types, or None and the right to compile it.

        A compiled form needs only Numba's runtime. Only the compiler needs all that Numba knows of types and functions,
        which `refresh` loads in 0.2 s.
        """
        types = self._types(sig)
        if types is None:
            return None
        rtsys.initialize(target_context)
        found = self._found(types, target_context)
        if found is None and _refusing:
            raise NotCompiled(f"{self._function.__qualname__}({types})")
        if found is None:
            target_context.refresh()
            self._locks[types] = self._shelf.lock(self._name(types, own_processor()))
            found = self._found(types, target_context)  # another process may have compiled it since
            if found is not None:
                self._release(types)
            else:
                _count.begin()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled form on this machine and with the JobMaster."""
        types = self._types(sig)
        if types is None:
            return
        try:
            if not any(not each.can_cache for each in data.lifted) and not data.library.has_dynamic_globals:
                self._shelf.keep_everywhere(self._name(types, own_processor()), sealed(dumps(data._reduce())))
        except Exception as error:
            _log.info("kernel %s is not stored: %s", self._function.__qualname__, error)
        finally:
            _count.end()
            self._release(types)

    def _release(self, types: str) -> None:
        lock = self._locks.pop(types, None)
        if lock is not None:
            lock.release()

    def _found(self, types: str, target_context: Any) -> Any:
        kept = self._shelf.find_first([self._name(types, each) for each in usable_processors()])
        content = None if kept is None else unsealed(kept[1])
        if kept is None or content is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *cloudpickle.loads(content))
        except Exception as error:
            _log.info("kernel %s is compiled again: %s", self._function.__qualname__, error)
            self._shelf.forget(kept[0])
            return None

    def _types(self, sig: Any) -> str | None:
        """Return the types as text; None if the content of the types or of the code does not identify them."""
        try:
            content_of(self._function)
            types = ", ".join(map(str, sigutils.normalize_signature(sig)[0]))
        except (UnknownContent, TypeError) as error:
            _log.info("kernel %s is not stored: %s", self._function.__qualname__, error)
            return None
        return None if " at 0x" in types else types

    def _name(self, types: str, processor: Processor) -> KernelName:
        text = f"{content_of(self._function)}\0{types}\0{processor.content}"
        return KernelName(processor.folder, hashlib.sha256(text.encode()).hexdigest())


def kept_by_content(kernel: Any) -> Callable[..., Any]:
    """Make a kernel use the cache by content."""
    kernel._cache = KernelCache(kernel.py_func)
    return kernel  # type: ignore[no-any-return]
