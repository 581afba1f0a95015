"""Pickling of functions and classes by value, as cloudpickle does it, but with the names of their source files.

cloudpickle 3.1.3 calls every file `<dynamic-code>`, so that equal code has equal bytes. An error of a user's function
must name the user's file, so this pickler includes the name. Equal bytes are not needed, since nothing compares or
stores them.
"""

import io
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import cloudpickle

HIDDEN = "<dynamic-code>"


def _reduced(code: CodeType) -> Any:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if argument == HIDDEN else argument for argument in arguments)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = ChainMap({CodeType: _reduced}, cloudpickle.Pickler.dispatch_table)


def pickled(value: Any, replaced: Mapping[type, Callable[[Any], Any]] = {}) -> bytes:
    """Return the value as bytes for `cloudpickle.loads`. `replaced`: how to pickle objects of these classes, as the
    functions of a `dispatch_table` of Python's `pickle` do."""

    class Replacing(_Pickler):
        dispatch_table = ChainMap(dict(replaced), _Pickler.dispatch_table)

    with io.BytesIO() as file:
        (Replacing if replaced else _Pickler)(file).dump(value)
        return file.getvalue()
