"""How kernels are compiled: Numba, without the GIL, cached on disk; and two instructions that Numba lacks.

The cache lies beside the source where that can be written, else in the user's cache folder, or in
`NUMBA_CACHE_DIR`; a process that finds it loads a kernel in milliseconds.
Everything here is for single-threaded use of the arrays that are passed in.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile `function` on first use (once a machine); the GIL is released while it runs."""
    return cast(Function, njit(cache=True, nogil=True)(function))


def _prefetch(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type] + [ir.IntType(32)] * 3)
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function_type)
        builder.call(function, [pointer, *(ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.uintp), generate


def _load_u64(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(types.uintp), generate


prefetch: Any = intrinsic(_prefetch)
"""In kernels only: ask for the cache line at an address; never faults."""

load_u64: Any = intrinsic(_load_u64)
"""In kernels only: the eight bytes at an address, aligned or not, as a little-endian integer."""
