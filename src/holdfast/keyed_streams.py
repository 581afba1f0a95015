"""Keyed streams: operators with state per key. Nothing runs before `start()`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates.declared import Aggregate, check_aggregates, named_aggregates, without_conditions
from holdfast.functions.joins.declared import How
from holdfast.functions.joins.declaring import JoinSettings
from holdfast.functions.operator import OperatorSpec
from holdfast.functions.over.declared import OverSettings
from holdfast.functions.process.declared import BatchFunction, ProcessFunction
from holdfast.functions.ranking.declaring import LastSettings, TopSettings
from holdfast.functions.rows.policies import LatePolicy, RowHandling
from holdfast.functions.windows.declaring import AggregateSettings, FunctionSettings, WindowSettings
from holdfast.graph.declarations import InputDeclaration, OperatorDeclaration
from holdfast.graph.describing import described
from holdfast.graph.nodes import ReadNode
from holdfast.graph.program import OperatorOrigin
from holdfast.graph.projecting import Projection
from holdfast.quantities import Duration
from holdfast.schema import to_arrow_schema

if TYPE_CHECKING:
    from holdfast.streams import Stream

EmitMode = Literal["final", "changes", "every"]


class KeyedStream:
    """Rows grouped by key, the input of keyed operators."""

    def __init__(self, stream: "Stream", declared: InputDeclaration) -> None:
        self._stream, self._job = stream, stream._job
        self._declared = declared

    def __repr__(self) -> str:
        keys = ", ".join(self._declared.shown_keys)
        return f"<KeyedStream of job {self._job.name!r}: {described(self._declared.node)} → key_by({keys})>"

    def aggregate(
        self,
        columns: Mapping[str, Aggregate] | EmitMode | None = None,
        /,
        *,
        emit: EmitMode | None = None,
        allowed_lateness: Duration = 0,
        late: LatePolicy = "drop",
        changes: bool = False,
        name: str | None = None,
        **aggregates: Aggregate,
    ) -> "Stream":
        """Keep aggregates per key: `aggregate(n=hf.count(), total=hf.sum("x"))`.

        Output: the key columns, then the aggregates in the order in which they are given.

        Parameters
        ----------
        columns
            Aggregates by output column, for columns whose name is a parameter of this method: `{"name": hf.count()}`.
            Or the value of `emit`.
        emit
            Without a window: `"changes"` (default) gives a row for each key that a batch touched, at the end of the
            batch; `"every"` gives a row per input row, with the running values. With a window: `"final"` (default)
            gives a single row per key and window, when the watermark has passed the window's end; `"changes"` gives a
            row in each batch that changed the window.
        allowed_lateness
            With a window: time after the window's end for which the window still accepts rows and stays in the state.
        late
            With a window: treatment of a row whose windows are closed. `"drop"` only counts it
            (`numLateRecordsDropped`), `"dead_letter"` also writes it to the job's dead letters, `"stream"` gives it as
            `.late` of the returned stream.
        changes
            True: the output is a stream of changes, which further operators can read; with a window this needs
            `emit="changes"`. False: if the input is changes, the output is upserts by key.
        """
        if isinstance(columns, str):
            columns, emit = None, columns
        given = {"emit": emit, "late": late, "changes": changes, "name": name, "allowed_lateness": allowed_lateness}
        aggregates = named_aggregates("aggregate", columns, aggregates, **given)
        check_aggregates(aggregates, "changes")
        plain, computed = without_conditions(aggregates, self._job.expression_settings)
        windows = WindowSettings(self._rows, emit, allowed_lateness, late)
        windows.check(self._declared.window, self._declared.key_columns)
        read = {each for one in plain.values() for each in (one.column, one.other) if each} - set(computed)
        whole = late != "drop" or self._job.dead_letters is not None
        if computed:
            self._job.known_schemas.then(self._declared.node, Projection(dict(computed), added=True))
        narrowed = replace(self._declared, reads=None if whole else tuple(read), computed=computed)
        return self._declare(name, "aggregate", AggregateSettings(plain, windows, changes).spec, narrowed)

    def process(
        self,
        function: ProcessFunction | BatchFunction,
        schema: Any,
        *,
        broadcast: "Mapping[str, KeyedStream] | None" = None,
        allowed_lateness: Duration = 0,
        late: LatePolicy = "drop",
        name: str | None = None,
    ) -> "Stream":
        """Apply a user's function with state per key. `schema`: schema of its output rows. `name`: the operator's name.

        `broadcast`: a keyed stream for each `BroadcastState` of the function. Every subtask gets all rows of such a
        stream.

        With a window, the function gets all rows of a window once, when the window closes, and has neither states nor
        timers. `process(rows, ctx)` of a `ProcessFunction` gets them as a list, with the window's bounds in `ctx.key`;
        a `BatchFunction` gets batches, with the bounds in `keys`. `allowed_lateness`, `late`: see `aggregate`.
        """
        windows = WindowSettings(self._rows, None, allowed_lateness, late)
        windows.check(self._declared.window, self._declared.key_columns)
        settings = FunctionSettings(function, to_arrow_schema(schema), windows)
        inputs = [self._declared]
        for state, each in (broadcast or {}).items():
            if not isinstance(each, KeyedStream) or each._job is not self._job:
                raise SettingsError(f"broadcast={{{state!r}: {each!r}}}: expected a stream.key_by(…) of this job")
            inputs.append(each._declared.as_broadcast(state))
        return self._declare(name, "process", settings.spec, *inputs)

    def join(
        self,
        other: "KeyedStream",
        within: tuple[Duration, Duration] | None = None,
        *,
        how: How = "inner",
        between: tuple[str, str] | None = None,
        ttl: Duration | None = None,
        tolerance: Duration | None = None,
        suffix: str | None = None,
        late: LatePolicy = "drop",
        changes: bool = False,
        name: str | None = None,
    ) -> "Stream":
        """Join rows of both streams that have the same key and meet in time.

        Output: the columns of this stream, then the columns of the other. Key columns with the same name on both sides
        become a single column. With windows, rows of the same window meet, and the window's bounds are the last
        columns.

        If a side is a stream of changes, the output is one too: at any time it is the join of both tables as they are
        now. All rows of a key meet, without a bound of time. `how="left"` and the like give a row that met no other at
        once, and take it back later.

        Parameters
        ----------
        other
            A keyed stream of the same job, whose keys have the same types.
        within
            Least and greatest time by which the other stream's row is later than this stream's row, both included:
            `("-5min", "10min")`.
        how
            `"left"`, `"right"` and `"outer"` also give rows without a match, as soon as the watermark excludes a later
            match. `"semi"` gives each row of this stream that has a match once; `"anti"` gives the rows that have none.
            `"asof"` gives each row of this stream once, with the newest row of the other stream that is not later, or
            with nulls.
        between
            Two columns of the other stream, instead of `within`: a row of it meets the rows of this stream between the
            time in the first column, which is its event time, and the time in the second column.
        ttl
            Instead of a bound of event time: the time for which a row is kept after its arrival.
        tolerance
            Greatest time by which the other stream's row may be earlier, with `how="asof"`. None: no bound, so that the
            newest row of each key is kept forever.
        suffix
            Suffix for the other stream's columns whose names occur in this stream too.
        late
            Treatment of rows that come after the watermark: `"drop"` counts them, `"dead_letter"` also writes them to
            the job's dead letters, `"stream"` gives late rows of this stream as `.late` of the returned stream, and
            late rows of the other as `.late_right`.
        changes
            True: rows that only come are joined like changes.
        """
        if not isinstance(other, KeyedStream):
            raise SettingsError(f"join({other!r}): expected a keyed stream; add .key_by(…) to it")
        if other._job is not self._job:
            raise JobRefused("join of streams of different jobs: read both sources in one job")
        return self._joined(
            other, JoinSettings(within, between, ttl, tolerance, how, suffix, late, changes=changes), name
        )

    def _joined(self, other: "KeyedStream", given: JoinSettings, name: str | None) -> "Stream":
        settings = replace(given, bad_records=self._rows.bad_records)
        self._rows.check_late(settings.late)
        inputs = (replace(side._declared, timed=settings.timed) for side in (self, other))
        return self._declare(name, "join", settings.spec, *inputs)

    def last(self, *, by: str, changes: bool = False, name: str | None = None) -> "Stream":
        """Give the row of each key with the greatest value of `by`, in each batch that brought a greater value.

        Among equal values the last row to arrive wins. Null is below every value, and NaN above every number. The
        columns do not change. With windows, use `top(1, by=…)`.

        Over changes, it is the last of the rows that are there now. Of rows with an equal `by`, the least by its other
        columns, in their order, wins.

        Parameters
        ----------
        changes
            As in `aggregate`.
        """
        settings = LastSettings(by, changes)
        settings.check(self._declared.window)
        return self._declare(name, "last", settings.spec, replace(self._declared, plain=True))

    def top(
        self,
        n: int,
        *,
        by: str,
        ties: bool = False,
        least: bool = False,
        allowed_lateness: Duration = 0,
        late: LatePolicy = "drop",
        changes: bool = False,
        name: str | None = None,
    ) -> "Stream":
        """Emit the rows of each key with the greatest values of a column. With a window, emit them when the window
        closes.

        Output with a window: the key columns with the window's bounds, then the other columns of the input. Without a
        window: the key columns, the row's `rank` from 1, then the other columns. Each batch emits the rows that got a
        rank; each replaces the row that had this rank before. Over changes, ranks are taken back as well, and rows
        with an equal `by` are ranked by their other columns, in their order.

        Parameters
        ----------
        by
            A column with an order; nulls come last, NaN is above every number.
        ties
            True: rows equal to the last of the `n` rows are emitted as well, as with `RANK() <= n`; only with a window.
            False: at most `n` rows; among equal rows the earliest ones.
        least
            True: the least values instead of the greatest.
        allowed_lateness, late, changes
            As in `aggregate`.
        """
        windows = WindowSettings(self._rows, None, allowed_lateness, late)
        settings = TopSettings(n, by, ties, least, windows, changes)
        windows.check(self._declared.window, self._declared.key_columns)
        return self._declare(name, "top", settings.spec, self._declared)

    def over(
        self,
        columns: Mapping[str, Aggregate] | None = None,
        /,
        *,
        by: str | Sequence[str],
        rows: int,
        name: str | None = None,
        **aggregates: Aggregate,
    ) -> "Stream":
        """Give each row with aggregates of the last rows of its key: `over(by="at", rows=10, mean=hf.mean("price"))`.

        A row is emitted once, when the watermark has passed its time, so that rows are in order of time and not of
        arrival. A row that comes later than that is counted as late, and emitted at once, as the last row of its key so
        far. Output: the columns of the input, then the aggregates (`count`, `sum`, `mean`, `min`, `max`).

        Parameters
        ----------
        columns
            Aggregates by output column, for columns whose name is a parameter of this method.
        by
            A timestamp column without nulls. Rows of the same time are in the order of further columns, if there are
            any, nulls first; otherwise in order of arrival.
        rows
            The number of rows that are aggregated: the row itself, and those before it, up to 10,001 together. In SQL
            it is `ROWS BETWEEN rows - 1 PRECEDING AND CURRENT ROW`. A higher value keeps more values for each key.
        """
        aggregates = named_aggregates("over", columns, aggregates, by=by, rows=rows, name=name)
        plain, computed = without_conditions(aggregates, self._job.expression_settings)
        order: tuple[Any, ...] = tuple(by) if isinstance(by, list | tuple) else (by,)
        settings = OverSettings(order, rows, plain, self._rows.bad_records, tuple(computed))
        return self._over(settings, computed, name)

    def _over(self, settings: OverSettings, computed: dict[str, Any], name: str | None) -> "Stream":
        settings.check(self._declared.window)
        if computed:
            self._job.known_schemas.then(self._declared.node, Projection(dict(computed), added=True))
        declared = replace(self._declared, computed=computed, plain=True)
        return self._declare(name, "over", settings.spec, declared)

    @property
    def _rows(self) -> RowHandling:
        return RowHandling("fail" if self._job.dead_letters is None else "dead_letter", self._job.combine)

    def _declare(
        self, name: str | None, kind: str, specify: Callable[..., OperatorSpec], *inputs: InputDeclaration
    ) -> "Stream":
        declared = self._job.declared
        operator = declared.name_for(name, kind)
        declared.operators[operator] = OperatorDeclaration(operator, inputs, specify)
        return self._stream._with(ReadNode(OperatorOrigin(operator)))
