"""Holdfast: fault tolerance for stateful streams on PySpark. The public API and nothing else.

The names are listed in `api.py`; the module of a name is loaded with the name's first use.
"""

import atexit
import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.api import *  # noqa: F403
    from holdfast.api import __all__ as __all__

__version__ = "0.1.0.dev0"

EXIT_PAUSE_S = 0.02
"""Pause at the end of a process. A thread of PyArrow may still wait for the interpreter in order to free bytes that a
Python file object gave it. Python before 3.14 ends such a waiting thread when the interpreter shuts down, and C++ then
ends the process with "terminate called without an active exception". The pause lets such threads finish."""

atexit.register(time.sleep, EXIT_PAUSE_S)


def __getattr__(name: str) -> object:
    """Load and return a name of the public API, or a subpackage."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    api = import_module("holdfast.api")
    if name == "__all__":
        return api.__all__
    if name in api.MODULE_OF:
        found = getattr(import_module(api.MODULE_OF[name]), name)
        globals()[name] = found
        return found
    if find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the names of the public API only, without the modules that define them."""
    return [*import_module("holdfast.api").__all__, "__version__"]
