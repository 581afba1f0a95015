"""The content of a kernel: a digest of its code, and of all code that it calls.

The digest covers bytecode and not source, so a comment or a moved line changes nothing. Functions of other packages are
identified by name; the address also contains Numba's version, which decides how they are compiled.
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

PACKAGE = __name__.partition(".")[0]
_VALUES = (int, float, complex, str, bytes, bool, type(None), np.generic, np.dtype)


class UnknownContent(TypeError):
    """A kernel refers to an object for which no digest can be computed."""


@cache
def content_of(function: FunctionType) -> str:
    """Return the digest of a function and of all that it calls. Raises `UnknownContent`."""
    digest = hashlib.sha256()
    waiting, seen = [function], {id(function)}
    while waiting:
        each = waiting.pop()
        digest.update(f"{each.__module__}.{each.__qualname__}\0".encode())
        for part in _code(each.__code__):
            digest.update(part)
        for name, value in _referred(each):
            called = _function_of(value)
            if called is None:
                digest.update(f"{name}={_value(value)}\0".encode())
            elif id(called) not in seen:
                seen.add(id(called))
                waiting.append(called)
    return digest.hexdigest()


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


def _names(code: CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _referred(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values of a function's enclosing functions and of its module, in the order of their names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _function_of(value: Any) -> FunctionType | None:
    """Return the Python function behind a kernel, an intrinsic or a function of this package."""
    for attribute in ("py_func", "_defn"):
        inner = getattr(value, attribute, None)
        if isinstance(inner, FunctionType):
            return inner
    if isinstance(value, FunctionType) and value.__module__.partition(".")[0] in (PACKAGE, "__main__"):
        return value
    return None


def _value(value: Any) -> str:
    if isinstance(value, _VALUES):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value).__module__.startswith("numba."):  # a type, such as `types.int64`
        return f"{type(value).__qualname__} {value}"
    if type(value).__module__ == "typing":
        return "typing"
    raise UnknownContent(f"{value!r} of type {type(value).__qualname__}")
