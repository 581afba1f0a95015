"""Errors that only a log tells of, while a world is simulated: those in the call-backs of futures, and of parts of a
query that could not be closed, fail it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from simulation_runtime import Runtime


class _Errors(logging.Handler):
    """Notes errors; keeps those after which a query goes on as if nothing were wrong."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(logging.ERROR)
        self._runtime = runtime
        self._lock = threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        if threading.get_ident() != self._runtime.thread:
            return  # of a job of an earlier test, which is still ending
        error = record.exc_info[1] if record.exc_info else None
        self._runtime.note("logged", f"{record.getMessage()}: {type(error).__name__}: {error}")
        passes_over = record.name == "concurrent.futures" or "could not be closed" in record.msg
        if passes_over and error is not None and not self._runtime.closing:
            self._runtime.errors.append(error)


@contextmanager
def logged_errors(runtime: Runtime) -> Iterator[None]:
    handler = _Errors(runtime)
    loggers = [logging.getLogger("holdfast"), logging.getLogger("concurrent.futures")]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, level, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
