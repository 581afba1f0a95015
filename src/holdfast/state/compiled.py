"""How kernels are compiled: Numba, without the GIL, cached on disk; and access to bytes by address.

Byte strings are compared and copied by address (`array.ctypes.data`, taken once, outside of loops): passing an array
to a function in a loop counts references, which costs more than the work itself.

A compiled kernel is found by its content (`holdfast/kernels/`), so that an edit of it, or of a function that it calls,
leads to a new one; a process that finds it loads it in milliseconds.
Everything here is for single-threaded use of the arrays that are passed in.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from holdfast.kernels.cache import kept_by_content

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` on first use (once a machine); the GIL is released while it runs."""
    return cast(F, kept_by_content(njit(nogil=True)(function)))


def inlined(function: F) -> F:
    """The decorator of helpers that take arrays in hot loops: each real call would count references, atomically."""
    return cast(F, njit(inline="always")(function))


def _prefetch(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type] + [ir.IntType(32)] * 3)
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function_type)
        builder.call(function, [pointer, *(ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.uintp), generate


def _load(bits: int) -> Any:
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.zext(builder.load(pointer, align=1), ir.IntType(64))

        return types.uint64(types.uintp), generate

    return load


def _store(bits: int) -> Any:
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(builder.trunc(arguments[1], ir.IntType(bits)), pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uint64), generate

    return store


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
