"""Check of the executors before the job runs on them: Python, Holdfast, imports, storage.

The probe must run on executors without Holdfast, so it travels by value and imports Holdfast only inside.
"""

import json
import platform
import sys
from collections.abc import Callable
from typing import Any

from holdfast.errors import JobRefused
from holdfast.spark.host import SparkHost, SparkJob

Finding = bytes
"""Host, Python version and path, Holdfast's version ('': missing), failed import, failed storage access; as JSON."""


_WRONG_PYTHON = (
    "PYTHON_VERSION_MISMATCH",
    "ModuleNotFoundError",
    "Cannot run program",
    "Python worker failed to connect back",
    "from Python worker",
)


def probe_executors(
    host: SparkHost, program: bytes, storage: tuple[str, dict[str, str]], nonce: tuple[str, bytes], tasks: int
) -> None:
    """Check every executor. Raises `JobRefused` naming an executor, the first thing that it lacks, and the remedy."""
    import holdfast

    run = _by_value(_probe)
    try:
        with host.described(SparkJob("holdfast-probe", "holdfast: probe of the executors")):
            answers = host.run([b""] * tasks, lambda _: [run(program, storage, nonce)])
    except Exception as error:
        raise JobRefused(python_failed(str(error))) from error
    for name, python, version, missing, unshared in sorted({tuple(json.loads(answer)) for answer in answers}):
        if not version:
            raise JobRefused(
                f"executor on {name}: {python} cannot import Holdfast ({missing}). Install holdfast=="
                f"{holdfast.__version__} there; or let PYSPARK_PYTHON name a Python that has it, before the session "
                f"starts (the driver's own would be PYSPARK_PYTHON={sys.executable}); or ship a virtual environment "
                "(spark.archives)"
            )
        if version != holdfast.__version__:
            raise JobRefused(
                f"executor on {name}: found Holdfast {version}, the driver has {holdfast.__version__}; install the same"
            )
        if missing:
            raise JobRefused(
                f"executor on {name}: the job's functions need something that is not there: {missing}. Install it on "
                "the executors, or send the module with Job(ship_modules=[...])"
            )
        if unshared:
            raise JobRefused(
                f"executor on {name}: it cannot read the object that the driver wrote to the job's storage "
                f"({unshared}). The storage must be shared by driver and executors: an object store, or a file system "
                "mounted on all"
            )


def _remedy() -> str:
    return (
        f"The driver runs Python {platform.python_version()} ({sys.executable}), and executors need the same minor "
        f"version: let PYSPARK_PYTHON name it on them before the session starts (PYSPARK_PYTHON={sys.executable} "
        "where they are on this machine)"
    )


def wrong_python(text: str) -> str | None:
    """Say that the executors' Python fails, and what to do, if the text of an error is about that."""
    for line in text.splitlines():
        if any(words in line for words in _WRONG_PYTHON):
            return f"the executors' Python cannot run the driver's functions: {line.strip()[:500]}. {_remedy()}"
    return None


def python_failed(text: str) -> str:
    """Say why tasks fail on the executors, and what to do if their Python is the reason."""
    return wrong_python(text) or (
        f"the executors could not be probed: {text[:500]}. If it is Python that does not start there: {_remedy()}"
    )


def _probe(program: bytes, storage: tuple[str, dict[str, str]], nonce: tuple[str, bytes]) -> bytes:
    import json
    import platform
    import socket
    import sys

    host, python = socket.gethostname(), f"Python {platform.python_version()} ({sys.executable})"
    try:
        import holdfast
    except ImportError as error:
        return json.dumps([host, python, "", str(error), ""]).encode()
    try:
        import cloudpickle

        cloudpickle.loads(program)
    except ImportError as error:
        return json.dumps([host, python, holdfast.__version__, str(error), ""]).encode()
    try:
        from holdfast.storage.store import open_store

        same = open_store(*storage).get(nonce[0]) == nonce[1]
        problem = "" if same else f"{nonce[0]} has other contents"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return json.dumps([host, python, holdfast.__version__, "", problem]).encode()


def _by_value(function: Any) -> Callable[..., Finding]:
    """Copy a function as if it were defined in `__main__`, so that cloudpickle sends its code."""
    copy = type(function)(function.__code__, {"__builtins__": __builtins__, "__name__": "__main__"}, function.__name__)
    copy.__module__ = "__main__"
    return copy  # type: ignore[no-any-return]
