"""Calls of Spark's query for the storing of an epoch: how they reach this program, and how its rows become parts.

On a classic session Spark calls a function of this program (`CallsHere`). Spark Connect calls `foreachBatch` on the
server, and `spark/connect_epochs` forwards the call.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.printable import logger
from holdfast.sources.spark_stream.storing import PARTS_DDL, StoreParts

log = logger(__name__)

START_S_MAX = 300.0
"""Bound in seconds on the attempts to start a query. Spark gives the Python process of a query on Spark Connect some
10 s to connect, which may be too few on a busy machine."""
PAUSE_S, PAUSE_S_MAX = 5.0, 20.0
"""Seconds by which each pause before another attempt is longer than the last, and their bound: the process that was
late works on until it is ready, and takes the processor from the next one."""
NOT_IN_TIME = "failed to connect back"
"""Text in Spark's message if the process did not connect in time, so that another attempt may succeed."""
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_ROWS_MAX = "262144"

StoreRows = Callable[[str, int, str], Sequence[Mapping[str, Any]]]
"""Has tasks store the rows of an epoch as parts, and returns a description of each part. Takes the name of the segment,
its number, and the id of Spark's query."""
PartStorer = Callable[[str, int, str], StoreParts]
"""Makes the function that stores parts in tasks, from the same arguments as `StoreRows`."""
StoreEpoch = Callable[[StoreRows, int], None]
"""Stores the epoch with a batch id. Returns once it counts; an error makes Spark repeat it."""


class EpochCalls(Protocol):
    """The way of a query's calls into this program."""

    look_s: float
    """Seconds between two looks at the query. A lower value notices its end sooner, and asks Spark more often."""

    def writing(self, rows: Any, store: StoreEpoch, parts: PartStorer) -> Any:
        """Return the `writeStream` of a DataFrame, with a `foreachBatch` that calls `store` in this program."""
        ...

    def close(self) -> None:
        """Take no more calls, and end those that wait."""
        ...


def started_in_time(start: Callable[[], Any], pause: Callable[[float], object] = time.sleep) -> Any:
    """Start a query with a `foreachBatch`, again if its Python process was not there in time. Raises Spark's errors,
    also once `pause` returns true."""
    until_s, pause_s = time.monotonic() + START_S_MAX, 0.0
    while True:
        try:
            return start()
        except Exception as error:
            if NOT_IN_TIME not in str(error) or time.monotonic() > until_s:
                raise
            text = "the Python process of a streaming query was not there in time, and is started again: %s"
            log.log(logging.INFO if pause_s else logging.WARNING, text, error)
            pause_s = min(pause_s + PAUSE_S, PAUSE_S_MAX)
            if pause(pause_s):
                raise


class CallsHere:
    """Implements `EpochCalls` where this program is Spark's driver."""

    look_s = 0.2

    def writing(self, rows: Any, store: StoreEpoch, parts: PartStorer) -> Any:
        def call(epoch: Any, batch_id: int) -> None:
            def tasks(name: str, number: int, query: str) -> Any:
                epoch.sparkSession.conf.set(ARROW_ROWS, ARROW_ROWS_MAX)
                return epoch.mapInArrow(parts(name, number, query), PARTS_DDL).collect()

            store(tasks, batch_id)

        return rows.writeStream.foreachBatch(call)

    def close(self) -> None:
        """Do nothing: Spark calls only while its query runs."""
