"""The reader of a streaming DataFrame: Spark's query, and a thread of the driver that restarts the query when it fails.
PySpark is not imported: only methods of the DataFrame and the query are called.
"""

import threading
import time
from typing import Any
from uuid import uuid4

from holdfast.errors import HoldfastError, JobRefused
from holdfast.printable import logger
from holdfast.sources.spark_stream.epoch_calls import EpochCalls, PartStorer, started_in_time
from holdfast.sources.spark_stream.epochs import EpochWriter, first_lines

log = logger(__name__)

RESTART_S_MAX = 10.0
"""Bound in seconds on the pause before a query that failed is started again."""


class StreamReader:
    """Runs the query of a DataFrame. `begin` starts it; `problem` holds the error with which the job's query has to
    end.

    Parameters
    ----------
    rows
        The streaming DataFrame.
    calls, parts
        The way in which the query calls `writer`, and the tasks that store an epoch's rows.
    checkpoint
        The folder of Spark's checkpoint.
    trigger
        Arguments of Spark's `trigger`.
    outage_timeout_s
        Seconds for which the query may fail repeatedly before `problem` is set.
    """

    def __init__(
        self,
        source: str,
        rows: Any,
        writer: EpochWriter,
        calls: EpochCalls,
        parts: PartStorer,
        checkpoint: str,
        trigger: dict[str, Any],
        outage_timeout_s: float,
    ) -> None:
        self._source = source
        self._rows = rows
        self._writer = writer
        self._calls = calls
        self._parts = parts
        self._checkpoint = checkpoint
        self._trigger = trigger
        self._outage_timeout_s = outage_timeout_s
        self._query: Any = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"holdfast-stream-{source}", daemon=True)
        self._failed_since_s: float | None = None
        self._outage: HoldfastError | None = None
        self._message = ""
        self.ended = threading.Event()
        """Set by `close`, and once the query has read all available data, if its trigger ends then."""

    def begin(self) -> str:
        """Start the query, and return the id that its checkpoint gives it. Raises `JobRefused` with Spark's reason."""
        try:
            started_in_time(self._start, self._stopping.wait)
        except Exception as error:
            raise JobRefused(
                f"source {self._source!r}: Spark does not start this streaming DataFrame with the checkpoint "
                f"{self._checkpoint}: {first_lines(error)}"
            ) from error
        return str(self._query.id)

    def supervise(self) -> None:
        """Watch over the query from now on."""
        self._thread.start()

    def close(self) -> None:
        """End the query, and wait for it."""
        self._stopping.set()
        self.ended.set()
        self._writer.stop()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(30)
        self._end_query()
        self._calls.close()

    @property
    def problem(self) -> HoldfastError | None:
        return self._writer.problem or self._outage

    @property
    def message(self) -> str:
        return self._message or self._writer.message

    def _start(self) -> None:
        writing = self._calls.writing(self._rows, self._writer.store, self._parts)
        named = writing.queryName(f"{self._source} {uuid4().hex[:8]}").option("checkpointLocation", self._checkpoint)
        self._query = named.trigger(**self._trigger).start()

    def _run(self) -> None:
        failed = False
        while not self._stopping.is_set():
            try:
                if failed:
                    self._writer.drop_strays()
                    self._start()
                    failed = False
                if not self._query.awaitTermination(self._calls.look_s):
                    self._note_progress()
                    continue
                self.ended.set()
                return
            except Exception as error:
                failed = True
                if self._stopping.is_set() or not self._may_start_again(error):
                    return

    def _note_progress(self) -> None:
        if self._failed_since_s is not None and self._writer.stored_s > self._failed_since_s:
            self._failed_since_s, self._message = None, ""

    def _may_start_again(self, error: Exception) -> bool:
        """Pause after a failure of the query, or of its start; return False if the reader ends with that failure."""
        if self._writer.problem is not None:
            return False
        now_s = time.monotonic()
        self._note_progress()
        self._failed_since_s = self._failed_since_s or now_s
        failing_s = now_s - self._failed_since_s
        self._message = f"Spark's query fails, and is started again: {first_lines(error)}"
        log.warning("source %r: %s", self._source, self._message)
        if failing_s > self._outage_timeout_s:
            self._outage = JobRefused(
                f"source {self._source!r}: Spark's query has failed for {failing_s:.0f} s (outage_timeout): "
                f"{first_lines(error)}"
            )
            return False
        return not self._stopping.wait(min(RESTART_S_MAX, 0.2 + failing_s))

    def _end_query(self) -> None:
        if self._query is None:
            return
        try:
            self._query.stop()
        except Exception as error:  # the session was stopped, and the query with it
            log.debug("source %r: Spark's query could not be stopped: %s", self._source, error)
