"""Streams: methods that declare the work on rows without keys. Nothing runs before `start()`.

`key_by` gives a keyed stream, whose operators are in `keyed_streams`.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.calls.declared import (
    BREAKER,
    CAPACITY,
    KEPT_ANSWERS,
    AsyncCalls,
    AsyncFunction,
    as_function,
    checked_settings,
)
from holdfast.errors import JobRefused, SettingsError
from holdfast.expressions.declared import SqlExpression, declared
from holdfast.functions.duplicates.declaring import DuplicatesSettings
from holdfast.functions.joins.declared import How
from holdfast.functions.rows.expressions import Expression
from holdfast.functions.rows.policies import LatePolicy
from holdfast.functions.windows.declared import AnyWindow
from holdfast.graph.changing import DEBEZIUM, AsAppend, AsChanges, FromEnvelopes
from holdfast.graph.declarations import SinkDeclaration, keyed_by
from holdfast.graph.describing import described, ways
from holdfast.graph.late import late_rows
from holdfast.graph.nodes import Node, StepDeclaration, TransformDeclaration, timed, united
from holdfast.graph.program import MapBatches
from holdfast.graph.projecting import Projection, Selection
from holdfast.graph.selecting import selected
from holdfast.keyed_streams import KeyedStream
from holdfast.quantities import Duration, duration_us
from holdfast.schema import to_arrow_schema
from holdfast.sinks.base import Sink
from holdfast.ui.notebook import html_table
from holdfast.watermarks import WatermarkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.job import Job


class Stream:
    """Rows without keys. Immutable: every method gives a new stream."""

    def __init__(self, job: "Job", node: Node) -> None:
        self._job = job
        self._node = node

    @property
    def late(self) -> "Stream":
        """Rows that came too late for the operator of this stream; requires `late="stream"` in its declaration.

        After a join, whose sides have different columns, these are the rows of the left side.
        """
        return self._with(late_rows(self._node, self._job.declared.operators, 0))

    @property
    def late_right(self) -> "Stream":
        """Rows of a join's right side that came too late; requires `late="stream"` in its declaration."""
        return self._with(late_rows(self._node, self._job.declared.operators, 1))

    def __repr__(self) -> str:
        return f"<Stream of job {self._job.name!r}: {described(self._node)}>"

    def _repr_html_(self) -> str:
        return html_table(f"Stream of job {self._job.name}", ("from", "steps"), ways(self._node))

    def _with(self, node: Node) -> "Stream":
        """Return a stream of the same job with the rows of a node."""
        return Stream(self._job, node)

    def _then(self, step: StepDeclaration) -> "Stream":
        return self._with(self._job.known_schemas.then(self._node, step))

    def with_watermark(self, column: str, delay: Duration, idle_timeout: Duration | None = None) -> "Stream":
        """Declare the progress of event time: `column`'s newest value per split, minus `delay`; the least over all
        splits.

        The watermark of a batch comes from rows of earlier batches and never goes back. A split holds it back from its
        assignment on, even before its first row, until it has been read to its end (as files are). The watermark closes
        windows and fires event-time timers, and functions see it as `ctx.watermark`. Call this method directly after
        `read()`. `column` is a timestamp column of the source.

        Parameters
        ----------
        idle_timeout
            Time (by the batches' clock) after which a split without rows no longer holds the others back. None: never.
        """
        delay_us = duration_us(delay, "delay")
        idle_us = None if idle_timeout is None else duration_us(idle_timeout, "idle_timeout")
        spec = WatermarkSpec("", column, delay_us, idle_us)
        return self._with(timed(self._node, self._job.declared.sources, f"with_watermark({column!r})", spec))

    def with_batch_time(self, column: str) -> "Stream":
        """Add a timestamp column with the time of each row's batch, for windows of processing time, as in
        `key_by("user", hf.window("taken", "10s"))`. The time of the batch is also the watermark.

        The time of a batch is part of its plan, so it is the same when the batch is processed again. Call this method
        directly after `read()`.
        """
        if not isinstance(column, str) or not column:
            raise SettingsError(f"with_batch_time({column!r}): expected the name of the column")
        spec = WatermarkSpec("", column, 0, None, True)
        return self._with(timed(self._node, self._job.declared.sources, f"with_batch_time({column!r})", spec))

    def transform(self, fn: "Callable[[DataFrame], DataFrame]") -> "Stream":
        """Apply a function `DataFrame -> DataFrame` with Spark SQL, batch by batch.

        `fn` is analysed once at `start()`. It is refused there if it needs a shuffle, changes the number of partitions,
        or is nondeterministic: a repeated batch must give the same rows.
        """
        return self._then(TransformDeclaration(fn))

    def map_batches(
        self, fn: Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]], schema: Any
    ) -> "Stream":
        """Apply `fn` to Arrow record batches, in Python, without the JVM. `schema`: schema of the returned batches.

        `fn` is never called with an empty batch.
        """
        return self._then(MapBatches(fn, to_arrow_schema(schema)))

    def map_async(
        self,
        fn: AsyncFunction | Callable[[Any], Coroutine[Any, Any, Any]],
        schema: Any,
        *,
        capacity: int = CAPACITY,
        ordered: bool = True,
        timeout: Duration | None = "5s",
        retries: int = 2,
        retry_delay: Duration = "100ms",
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        rate: float | None = None,
        batch: int | None = None,
        breaker: int | None = BREAKER,
        kept_answers: int = KEPT_ANSWERS,
    ) -> "Stream":
        """Call a coroutine function for each row, many rows at a time, on an event loop in the senders.

        `fn(row)` gets a named tuple, and returns a dict or tuple of the columns of `schema`, a list of such rows, or
        None for no row. If all attempts at a call fail, its row is a bad record.

        Parameters
        ----------
        fn
            A function declared with `async def`, or an `hf.AsyncFunction`, which can open clients.
        schema
            The schema of the answers.
        capacity
            The most calls in flight in the complete job. The senders share this number.
        ordered
            False: answers are passed on as they arrive. True: an answer waits for the answers to all earlier rows.
        timeout
            The longest time for an attempt; None: there is no limit.
        retries, retry_delay, retry_on
            Further attempts at a call that raised one of these errors, or took too long. The pause before the first one
            is `retry_delay`. Each further pause is twice as long, up to 30 s, and is shortened by a random part of up
            to a half.
        rate
            The most attempts per second in the complete job; None: no limit.
        batch
            Call `fn` for a record batch of at most so many rows; the answer is a record batch. None: for each row.
        breaker
            After so many calls in a row that failed finally in a process, the service counts as unreachable. The batch
            then waits, as during an outage of the store, for at most `CheckpointConfig.outage_timeout`, and the status
            says so. None: never.
        kept_answers
            The most answers of a batch that a sender keeps, so that it need not repeat their calls if the batch is
            repeated. The other calls of the batch are made again. No call of a batch that a completed checkpoint covers
            is ever repeated.

        Raises
        ------
        SettingsError
            `fn` is not a coroutine function, or the value of a setting is not allowed.
        """
        settings = checked_settings(
            capacity, ordered, timeout, retries, retry_delay, retry_on, rate, batch, breaker, kept_answers
        )
        declared = to_arrow_schema(schema)
        calls = AsyncCalls(as_function(fn), settings, declared)
        return self._then(MapBatches(calls, declared, str(calls)))

    def select(self, *columns: "Expression | Sequence[Expression]", **computed: "Expression") -> "Stream":
        """Give rows of these columns, then of computed ones: `select("auction", "price * 0.908 as price")`.

        A column is a name or a named expression: a text in Spark's SQL, a `Column` of PySpark, or, as `name=…`, also an
        expression of PyArrow. `"*"` as the first column means all columns of the input. A file source reads only the
        columns that are needed.
        """
        return self._then(selected(columns, computed, self._job.expression_settings))

    def with_column(self, name: str, made: "Expression") -> "Stream":
        """Add a column `made` by an expression, or replace a column: `with_column("euro", "price * 0.908")`."""
        if not isinstance(name, str) or not name:
            raise SettingsError(f"with_column({name!r}, …): expected the name of the column")
        return self._then(Projection({name: self._expression(made, f"with_column({name!r}, …)")}, added=True))

    def where(self, condition: "Expression") -> "Stream":
        """Keep the rows for which a condition is true: `where("price > 100")`.

        The condition is in Spark's SQL, a `Column` of PySpark, or an expression of PyArrow.
        """
        return self._then(Selection(self._expression(condition, "where(…)")))

    def _expression(self, given: "Expression", place: str) -> Any:
        made = declared(given, self._job.expression_settings, place)
        if isinstance(made, SqlExpression):
            _ = made.tree  # a text that is no SQL is refused here, and not only at the start
        return made

    def as_changes(
        self,
        column: str | None = None,
        kinds: Mapping[str, str] | None = None,
        *,
        before: str | None = None,
        after: str | None = None,
    ) -> "Stream":
        """Treat the rows as changes of a table: operators take rows back that an update or a delete removes.

        `_change_type` is `insert`, `delete`, or, for the old and the new row of an update, `update_preimage` and
        `update_postimage`.

        Parameters
        ----------
        column
            A column of texts from which `_change_type` is made, and which it replaces. None: the stream has
            `_change_type` already, or each row is an insert.
        kinds
            The change type for each value of the column: `{"c": "insert", "d": "delete"}`. None: the value itself, or
            with `before` and `after` the values of Debezium: c, r, u and d.
        before, after
            Columns of structs, for messages that have both rows of an update, as those of Debezium. The fields of the
            structs become the columns, and all other columns go.
        """
        if before is None and after is None:
            return self._then(AsChanges(column, dict(kinds or {})))
        return self._then(FromEnvelopes(column or "", before or "", after or "", dict(kinds or DEBEZIUM)))

    def as_append(self) -> "Stream":
        """Treat changes as ordinary rows that count for ever, as in a log. `_change_type` is then an ordinary
        column."""
        return self._then(AsAppend())

    def drop_duplicates(
        self, *columns: str, within: Duration | None = None, late: LatePolicy = "drop", name: str | None = None
    ) -> "Stream":
        """Give the first row of each key. The columns do not change.

        Over changes it is the least of the rows of a key that are there, by its other columns in their order. The
        output is then a stream of changes.

        Parameters
        ----------
        columns
            The columns of the key.
        within
            By event time: a row is a duplicate if it is earlier than the emitted row, or at most `within` later. A row
            that is later than that is emitted again. None: each key is remembered for ever, and `start()` warns about
            it.
        late
            With `within`: treatment of rows that come after the watermark, as in `aggregate`.
        """
        keyed = self.key_by(*columns)
        settings = DuplicatesSettings(within, late, keyed._rows)
        settings.check(keyed._declared.window)
        declared = replace(keyed._declared, timed=settings.within_us is not None, plain=True)
        return keyed._declare(name, "drop_duplicates", settings.spec, declared)

    def join(
        self,
        other: "Stream",
        on: "Expression | Sequence[str]",
        how: How = "inner",
        *,
        suffix: str | None = None,
        late: LatePolicy = "drop",
        name: str | None = None,
    ) -> "Stream":
        """Join with `other` by a condition: `clicks.join(views, "left.ad = right.ad and right.at between left.at -
        interval 1 hour and left.at")`; or by columns of the same names on both sides: `clicks.join(views, ["ad"])`.

        `on` contains an equality between values of both sides, usually a bound between their event times, and perhaps
        more conditions. A column that only one side has needs no `left.` or `right.`. `how="asof"` needs `left.at >=
        right.at`. Equalities become keys, and bounds become `within` of `KeyedStream.join`, which describes `how`,
        `suffix`, `late` and the output.
        """
        from holdfast.sql.on import joined_on

        return self._with(joined_on(self, other, on, how, suffix=suffix, late=late, name=name)._node)

    def union(self, other: "Stream") -> "Stream":
        """Unite the rows of this stream and of `other`, which has the same schema, in no particular order."""
        return self._united(other)

    def union_by_name(self, other: "Stream", *, tag: str | None = None) -> "Stream":
        """Unite the rows and columns of two streams; a column that a stream lacks is null. Rows are in no particular
        order.

        `tag`: the name of a string column that names each row's stream: `"left"` for this stream, `"right"` for the
        other.
        """
        if tag is not None and (not isinstance(tag, str) or not tag):
            raise SettingsError(f"union_by_name(tag={tag!r}): expected the name of a column, or None")
        return self._united(other, by_name=True, tag=tag)

    def _united(self, other: "Stream", by_name: bool = False, tag: str | None = None) -> "Stream":
        if other._job is not self._job:
            raise JobRefused("union of streams of different jobs: read both sources in one job")
        return self._with(united(self._node, other._node, by_name, tag))

    def key_by(self, *keys: str | AnyWindow | Sequence[str | AnyWindow], **computed: "Expression") -> KeyedStream:
        """Group by the values of columns, and by a window of event time if the keys contain a window.

        `key_by("user", hf.window("at", "10min"))` has the output columns `user`, `window_start`, `window_end`. Rows
        with a null in a key column, or without a time for the window, are bad records. The keys may also be given as a
        list. `computed`: further keys that are expressions, by name: `key_by("user", hour="hour(at)")`. They become
        columns of the rows.
        """
        if computed:
            made = {name: self._expression(each, f"key_by({name}=…)") for name, each in computed.items()}
            return self._then(Projection(made, added=True)).key_by(
                *(keys[0] if len(keys) == 1 and isinstance(keys[0], list | tuple) else keys), *computed
            )
        return KeyedStream(self, keyed_by(self._node, keys))

    def write(self, sink: Sink) -> None:
        """Send the rows to a sink. A stream can be written to several sinks."""
        if not isinstance(sink, Sink):
            raise SettingsError(f"write({sink!r}): expected a sink such as DeltaSink, ParquetSink or NoopSink")
        name = self._job.declared.name_for(sink.name, sink.kind)
        self._job.declared.sinks[name] = SinkDeclaration(name, sink, self._node)
