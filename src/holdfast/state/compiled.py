"""How kernels are compiled: Numba, without the GIL, cached on disk; and access to bytes by address.

Byte strings are compared and copied by address (`array.ctypes.data`, taken once, outside of loops): passing an array
to a function in a loop counts references, which costs more than the work itself.

A compiled kernel is found by its content (`holdfast/kernels/`), so that an edit of it, or of a function that it calls,
leads to a new one; a process that finds it loads it in milliseconds. Numba itself is loaded with the first call of a
kernel: a process that calls none is spared a quarter of a second.
Everything here is for single-threaded use of the arrays that are passed in.
"""

import functools
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_making = threading.RLock()


class CalledLater:
    """A function for Numba, made Numba's own when it is first called, or when a kernel that calls it is compiled."""

    def __init__(self, function: Any, make: Callable[[Any], Any]) -> None:
        self._function = function
        self._make = make
        self._made: Any = None
        functools.update_wrapper(self, function)

    def made(self) -> Any:
        """Return Numba's own object."""
        with _making:
            if self._made is None:
                self._made = self._make(_with_made_globals(self._function))
            return self._made

    def __call__(self, *arguments: Any) -> Any:
        made = self._made
        return (self.made() if made is None else made)(*arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.made(), name)


def _with_made_globals(function: FunctionType) -> FunctionType:
    """Copy a function, with Numba's own objects in the places of those that are made later."""
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    made = {name: value.made() for name, value in named.items() if isinstance(value, CalledLater)}
    known = {**function.__globals__, **made}
    copy = FunctionType(function.__code__, known, function.__name__, function.__defaults__, function.__closure__)
    return cast(FunctionType, functools.update_wrapper(copy, function))


def _kernel(function: FunctionType) -> Any:
    from numba import njit

    from holdfast.kernels.cache import kept_by_content

    return kept_by_content(njit(nogil=True)(function))


def _inlined(function: FunctionType) -> Any:
    from numba import njit

    return njit(inline="always")(function)


def _intrinsic(function: FunctionType) -> Any:
    from numba.extending import intrinsic

    return intrinsic(function)


def kernel(function: F) -> F:
    """Compile `function` on first use (once a machine); the GIL is released while it runs."""
    return cast(F, CalledLater(function, _kernel))


def inlined(function: F) -> F:
    """The decorator of helpers that take arrays in hot loops: each real call would count references, atomically."""
    return cast(F, CalledLater(function, _inlined))


def intrinsic(function: Callable[..., Any]) -> Any:
    """The decorator of functions that generate code themselves, as Numba's: for kernels only."""
    return CalledLater(function, _intrinsic)


def _prefetch(typing_context: Any, address: Any) -> Any:
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type] + [ir.IntType(32)] * 3)
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function_type)
        builder.call(function, [pointer, *(ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.uintp), generate


def _load(bits: int) -> Any:
    def load(typing_context: Any, address: Any) -> Any:
        from llvmlite import ir
        from numba import types

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.zext(builder.load(pointer, align=1), ir.IntType(64))

        return types.uint64(types.uintp), generate

    return load


def _store(bits: int) -> Any:
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        from llvmlite import ir
        from numba import types

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(builder.trunc(arguments[1], ir.IntType(bits)), pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uint64), generate

    return store


def _copy_many(typing_context: Any, source: Any, target: Any, length: Any) -> Any:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets = ir.IntType(8).as_pointer()
        begin, end = builder.inttoptr(arguments[0], octets), builder.inttoptr(arguments[1], octets)
        cgutils.raw_memcpy(builder, end, begin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), generate


copy_many_bytes: Any = intrinsic(_copy_many)
"""`copy_bytes` by the C library, which is faster from some 64 bytes on. For kernels only."""

prefetch: Any = intrinsic(_prefetch)
"""Fetch the cache line at an address ahead; never faults. For kernels only."""

load_u8: Any = intrinsic(_load(8))
load_u32: Any = intrinsic(_load(32))
load_u64: Any = intrinsic(_load(64))
"""Read the bytes at an address, aligned or not, as a little-endian integer. For kernels only."""

store_u8: Any = intrinsic(_store(8))
store_u64: Any = intrinsic(_store(64))
"""Write an integer to an address: the inverse. For kernels only."""


@kernel
def copy_bytes(source: Any, target: Any, length: Any) -> None:
    """Copy `length` bytes from address to address; the ranges never overlap."""
    i = 0
    while i + 8 <= length:
        store_u64(target + i, load_u64(source + i))
        i += 8
    while i < length:
        store_u8(target + i, load_u8(source + i))
        i += 1


@kernel
def same_bytes(a: Any, b: Any, length: Any) -> Any:
    """Return whether the `length` bytes at two addresses are equal."""
    i = 0
    while i + 8 <= length:
        if load_u64(a + i) != load_u64(b + i):
            return False
        i += 8
    while i < length:
        if load_u8(a + i) != load_u8(b + i):
            return False
        i += 1
    return True
