"""A sink that calls a function in the driver with the rows of each completed checkpoint.

The contract is the same as of Structured Streaming's `foreachBatch`: the same rows come again under the same number
after a crash in between, possibly late and from a driver that was replaced. For exactly-once output, the function
stores the highest number seen together with its data, and ignores numbers up to it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError, JobRefused, PublishFailed, SettingsError
from holdfast.failpoints import hit
from holdfast.sinks.base import PublishContext, Sink, SinkContext, StageContext
from holdfast.sinks.staging import decode_rows, discard_rows, pieces, read_rows, stage_rows


@dataclass(repr=False)
class CallbackSink(Sink):
    """Calls `fn(table, number)` once a checkpoint has completed. Numbers grow; a repeated number has the same rows.

    An `OSError` from `fn`, for example a connection error, is an I/O error: the call is repeated later. Any other
    exception fails the query. `fn` stays in the driver and is not sent to tasks.

    `fn` may be an object with a method `last_number()`, which returns the highest number that it has stored with its
    data, 0 if there is none. `start()` asks it, and refuses a storage that was restored from a copy older than that.
    """

    fn: Callable[[pa.Table, int], Any] = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise SettingsError(f"CallbackSink(fn=…): expected a function of (table, number), found {self.fn!r}")

    @property
    def kind(self) -> str:
        return "callback"

    @property
    def stable_text(self) -> str:
        return f"{self.kind} {getattr(self.fn, '__name__', type(self.fn).__name__)}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fn": None}

    def last_number(self, context: SinkContext) -> int | None:
        ask = getattr(self.fn, "last_number", None)
        if ask is None:
            return None
        number = ask()
        if not isinstance(number, int) or number < 0:
            raise JobRefused(
                f"sink {context.sink!r}: its function's last_number() returned {number!r}, expected the highest number "
                "that it has stored, or 0"
            )
        return number

    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        return stage_rows(pieces(batches), context)

    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        staged = decode_rows(committables, context.owner)
        if not staged:
            return
        rows = read_rows(staged, context)
        hit("sink.callback.before")
        try:
            self.fn(rows, number)
        except (OSError, HoldfastError):
            raise
        except Exception as error:
            raise PublishFailed(
                f"sink {context.sink!r}: its function raised {type(error).__name__} for {rows.num_rows} rows with "
                f"number {number}: {error}. Correct it and start the job again: the same rows and number come again"
            ) from error
        hit("sink.callback.after")

    def discard(self, committables: Iterable[bytes], context: PublishContext) -> None:
        discard_rows(decode_rows(committables, context.owner), context)
