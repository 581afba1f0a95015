"""Pickling of functions and classes by value, as cloudpickle does it, with the files that their code is from.

cloudpickle 3.1.3 calls every file `<dynamic-code>`, so that equal code has equal bytes. An error of a user's function
has to name the user's file, so the name goes along here. Nothing compares or stores the bytes.
"""

import io
from collections import ChainMap
from types import CodeType
from typing import Any

import cloudpickle

HIDDEN = "<dynamic-code>"


def _reduced(code: CodeType) -> Any:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if argument == HIDDEN else argument for argument in arguments)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = ChainMap({CodeType: _reduced}, cloudpickle.Pickler.dispatch_table)


def pickled(value: Any) -> bytes:
    """Return the value as bytes for `cloudpickle.loads`."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()
