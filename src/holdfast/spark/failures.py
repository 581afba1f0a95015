"""Meaning of Spark's exceptions: an error of a user's function inside a step, or a temporary failure.

Py4J wraps the reason in pages of stack traces; this module extracts it.
"""

import re
import signal

from pyspark import errors as spark_errors

from holdfast.errors import HoldfastError, StorageError, UserFunctionError
from holdfast.graph.program import Leg, OperatorOrigin, SinkTarget, Transform

_OWN = re.compile(r"^holdfast\.errors\.(\w+): (.*)$", re.MULTILINE)
_RAISED_BY_SPARK_SQL = re.compile(r"(?:^|org\.apache\.spark\.Spark\w*Exception: )(\[[A-Z_.0-9]+\].*)")
_BY_SPARK_SQL = (
    spark_errors.AnalysisException,
    spark_errors.ArithmeticException,
    spark_errors.ArrayIndexOutOfBoundsException,
    spark_errors.DateTimeException,
    spark_errors.NumberFormatException,
    spark_errors.SparkRuntimeException,
)
_PYTHON_ERROR = re.compile(
    r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Exit|Iteration|Warning)): ?(.*)$", re.MULTILINE
)
_EXECUTOR_LOST = re.compile(r"ExecutorLostFailure \(executor (\S+) exited.*?\) Reason: (.*)")
_EXIT_CODE = re.compile(r"exited with code (\d+)")
_CRASH = re.compile(r"Fatal Python error: (.*)")
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
"""Java's messages for a full disk. Spark passes the errors of its tasks on only as texts."""
_GIST_CHARACTERS_MAX = 500


def step_failure(leg: Leg, error: Exception) -> Exception:
    """Translate the error of a leg's Spark job: `UserFunctionError` if a user's step caused it, `StorageError` if a
    store or a disk fails, else the same error."""
    text = str(error)
    if away := _away(text):
        return StorageError(away)
    if _OWN.search(text) or "cancelled" in text or "Python worker exited unexpectedly" in text:
        return error
    reason = _reason(text)
    if reason is None and isinstance(error, _BY_SPARK_SQL):
        reason = text[:_GIST_CHARACTERS_MAX]
    if reason is None:
        return error
    steps = ", ".join(
        f"{'transform' if isinstance(step, Transform) else 'map_batches'}({getattr(step.fn, '__name__', step.fn)})"
        for step in leg.steps
    )
    origin = leg.origin.operator if isinstance(leg.origin, OperatorOrigin) else leg.origin.source
    [output] = leg.outputs
    target = output.target.sink if isinstance(output.target, SinkTarget) else output.target.operator
    return UserFunctionError(
        f"between {origin!r} and {target!r}, a step ({steps or 'the read'}) raised in Spark: {reason}"
    )


def _away(text: str) -> str | None:
    """Extract the outage from the error of a Spark task, if an outage caused it."""
    own = next((each for each in _OWN.finditer(text) if each[1] == StorageError.__name__), None)
    if own is not None:
        return own[2]
    full = None if "Traceback (most recent call last)" in text else _DISK_FULL.search(text)
    return None if full is None else f"a disk of Spark's is full: {full[0]}"


def _reason(text: str) -> str | None:
    """Extract the last line of a Python traceback, or Spark SQL's own error with its condition."""
    if "Traceback (most recent call last)" in text:
        found = _PYTHON_ERROR.findall(text.rpartition("Traceback (most recent call last)")[2])
        if found:
            return f"{found[0][0]}: {found[0][1]}"[:_GIST_CHARACTERS_MAX]
    by_spark = _RAISED_BY_SPARK_SQL.search(text)
    return None if by_spark is None else by_spark[1][:_GIST_CHARACTERS_MAX]


def cause_of_death(text: str) -> str:
    """Extract the cause of a process's death from Spark's message about its task."""
    executor = _EXECUTOR_LOST.search(text)
    if executor:
        code = _EXIT_CODE.search(executor[2])
        return f"executor {executor[1]} was lost: {executor[2].strip()}{_signal_of(int(code[1])) if code else ''}"
    return first_line(RuntimeError(text))


def _signal_of(exit_code: int) -> str:
    """Name the signal in a shell's exit code: above 128, the code is the signal's number plus 128."""
    try:
        name = signal.Signals(exit_code - 128).name
    except ValueError:
        return ""
    hint = ", also sent by the kernel when memory runs out" if name == "SIGKILL" else ""
    return f" (killed by {name}{hint})"


def first_line(error: Exception) -> str:
    """Shorten an error to its main line."""
    text = str(error)
    if isinstance(error, HoldfastError):
        return text
    if "Python worker exited unexpectedly" in text:
        return f"its Python worker process was killed, or it crashed{_crash(text)}"
    own = _OWN.search(text)
    if own:
        return f"{own[1]}: {own[2]}"
    for line in text.splitlines():
        if "SparkException" in line or "Job aborted" in line or "cancelled" in line:
            return line.strip(" :")[:_GIST_CHARACTERS_MAX]
    return f"{type(error).__name__}: {text[:_GIST_CHARACTERS_MAX]}"


def _crash(text: str) -> str:
    """Extract the crash from Python's fault handler, if it was on (`spark.python.worker.faulthandler.enabled`)."""
    found = _CRASH.search(text)
    return "" if found is None else f": {found[1]}"
