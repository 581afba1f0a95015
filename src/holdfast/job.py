"""What a user builds: a `Job`, its streams, and `start()`.

Declarations only, checked as far as they can be without data; nothing runs before `start()`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates.declared import Aggregate, AggregateSpec, BadRecords, Emit, check_aggregates
from holdfast.functions.operator import OperatorInput
from holdfast.functions.process.declared import BatchFunction, ProcessFunction, ProcessSpec
from holdfast.functions.windows.aggregate import LatePolicy, WindowedSpec, WindowEmit, WindowSpec, check_windowed
from holdfast.functions.windows.declared import AnyWindow, SessionWindow
from holdfast.functions.windows.session import SessionSpec
from holdfast.graph.build import (
    Declarations,
    InputDeclaration,
    OperatorDeclaration,
    Path,
    SinkDeclaration,
    TransformDeclaration,
)
from holdfast.graph.program import MapBatches, OperatorOrigin, SourceOrigin
from holdfast.schema import to_arrow_schema
from holdfast.settings import (
    AvailableNow,
    CheckpointConfig,
    Duration,
    HashMapState,
    QueryTrigger,
    Size,
    StateBackend,
    TaskManagerConfig,
    duration_s,
    processing_time,
    size_bytes,
)
from holdfast.sinks.base import Sink
from holdfast.sinks.dead_letters import DeadLetterSink
from holdfast.sources.base import Source
from holdfast.sources.dataframe import DataFrameSource
from holdfast.sources.equivalents import explain_streaming_dataframe
from holdfast.watermarks import WatermarkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.query import Query


class Job:
    """One pipeline with a name and a storage URL.

    Parameters
    ----------
    spark
        A classic `SparkSession`. The job works in a clone of it, and never stops it. None only for `holdfast.testing`.
    name
        For messages and the Spark UI; fixed for the life of the storage, so that no other job takes it over.
    storage
        URL of the job's own folder: `file:///…`, `s3://…`, `gs://…`, `az://…`; reachable from all executors.
    storage_options
        For obstore (credentials, endpoints); never stored or logged.
    parallelism
        Subtasks of each keyed operator. Default: one for each slot that TaskManagers leave.
    max_parallelism
        The number of key groups, fixed for the life of the storage. Default: by Flink's formula, at least 128.
    task_managers
        Processes that hold state; each takes one of Spark's slots for as long as the query runs.
    senders
        Processes that read, run Python steps and write, and stay in a slot of Spark's each for as long as the query
        runs. Default: as many as the slots that TaskManagers leave, less one where a leg needs Spark (`transform`,
        `DataFrameSource`). 0, or more than fit: every batch starts short Spark jobs for that.
    state
        The backend: `HashMapState()` or `RocksDBState()`.
    checkpoint, task_manager
        See `CheckpointConfig` and `TaskManagerConfig`.
    max_rows_per_batch, max_bytes_per_batch
        Bounds of one batch, over all sources.
    max_event_time_skew
        A source with a watermark is not read while its event time is further ahead of the slowest other source that
        has rows. A higher value lets sources drift apart, and joins and windows hold more state. None: no limit.
    bad_records, dead_letters
        `"fail"`, or `"dead_letter"` with the URL of a folder: malformed rows, null keys, rows that overflow a sum or
        whose function raised.
    combine
        Whether tasks may combine the rows of a key before they send them to an aggregate with `emit="changes"`.
    drop_state
        Names of sources, operators and sinks whose stored state is given up at this start.
    ship_modules
        Modules to send by value, because executors do not have them.
    metrics_port
        Where the driver serves metrics to Prometheus while the query runs; 0: any free port; None: nowhere.

    Raises
    ------
    SettingsError, JobRefused
    """

    def __init__(
        self,
        spark: "SparkSession | None",
        *,
        name: str,
        storage: str,
        storage_options: Mapping[str, str] | None = None,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        task_managers: int = 1,
        senders: int | None = None,
        state: StateBackend | None = None,
        checkpoint: CheckpointConfig | None = None,
        task_manager: TaskManagerConfig | None = None,
        max_rows_per_batch: int = 2_000_000,
        max_bytes_per_batch: Size = "256MB",
        max_event_time_skew: Duration | None = None,
        bad_records: str = "fail",
        dead_letters: str | None = None,
        combine: bool = True,
        drop_state: Sequence[str] = (),
        ship_modules: Sequence[ModuleType] = (),
        metrics_port: int | None = None,
    ) -> None:
        if spark is not None:
            from holdfast.spark.session import check_session

            check_session(spark)
        self.spark = spark
        self.name = name
        self.storage = storage
        self.storage_options = dict(storage_options or {})
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.task_managers = task_managers
        self.senders = senders
        self.state = state or HashMapState()
        self.checkpoint = checkpoint or CheckpointConfig()
        self.task_manager = task_manager or TaskManagerConfig()
        self.max_rows_per_batch = max_rows_per_batch
        self.max_event_time_skew_us = (
            None if max_event_time_skew is None else _micros(max_event_time_skew, "max_event_time_skew")
        )
        self.max_bytes_per_batch = size_bytes(max_bytes_per_batch, "max_bytes_per_batch")
        self.dead_letters = _dead_letter_sink(bad_records, dead_letters, self.storage_options)
        self.combine = combine
        self.drop_state = tuple(drop_state)
        self.ship_modules = tuple(ship_modules)
        self.metrics_port = metrics_port
        self.declared = Declarations()
        self.query: Query | None = None
        """That of the last start."""
        self._check()

    def _check(self) -> None:
        if not self.name:
            raise SettingsError("name='' is not allowed: give the job a name")
        for field in ("parallelism", "max_parallelism", "task_managers", "max_rows_per_batch"):
            value = getattr(self, field)
            optional = field in ("parallelism", "max_parallelism")
            if not (value is None and optional) and (not isinstance(value, int) or value < 1):
                raise SettingsError(f"{field}={value!r} is not allowed: a whole number from 1")
        if self.senders is not None and (not isinstance(self.senders, int) or self.senders < 0):
            raise SettingsError(f"senders={self.senders!r} is not allowed: a whole number from 0, or None")
        if self.parallelism and self.max_parallelism and self.parallelism > self.max_parallelism:
            raise SettingsError(
                f"parallelism={self.parallelism} is above max_parallelism={self.max_parallelism}; lower it"
            )
        for field in ("name", "storage"):
            if not isinstance(getattr(self, field), str):
                raise SettingsError(f"{field}={getattr(self, field)!r} is not allowed: a string")
        port = self.metrics_port
        if port is not None and (not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535):
            raise SettingsError(f"metrics_port={port!r} is not allowed: a port from 0 (any) to 65535, or None")
        for module in self.ship_modules:
            if not isinstance(module, ModuleType):
                raise SettingsError(f"ship_modules=[{module!r}] is not allowed: give imported modules")
        if not isinstance(self.state, StateBackend):
            raise SettingsError(f"state={self.state!r} is not allowed: HashMapState() or RocksDBState()")
        if self.parallelism and self.task_managers > self.parallelism:
            raise SettingsError(
                f"task_managers={self.task_managers} is above parallelism={self.parallelism}: some would hold no state"
            )

    def __repr__(self) -> str:
        declared = self.declared
        parts: dict[str, Iterable[str]] = {
            "reads": declared.sources,
            "keeps state in": declared.operators,
            "writes": declared.sinks,
        }
        said = [f"{verb} {', '.join(names)}" for verb, names in parts.items() if names]
        state = "was not started" if self.query is None else "runs" if self.query.isActive else "has ended"
        return f"<Job {self.name!r} on {self.storage}: {'; '.join([*said, state])}>"

    def read(self, source: "Source | DataFrame") -> "Stream":
        """A stream of a source's rows. A source instance is read once per branch, from the same plan."""
        if not isinstance(source, Source):
            raise JobRefused(_no_source(source))
        name = self.declared.name_for(source.name, source.kind)
        self.declared.sources[name] = source
        return Stream(self, (Path(SourceOrigin(name)),))

    def start(self, trigger: QueryTrigger | None = None) -> "Query":
        """Check everything that can be known, deploy, and run in the background.

        Raises
        ------
        JobRefused
            The job cannot run as it is; state and published output are as they were.
        StorageError
            The storage cannot be reached.
        CorruptObject
            Something stored cannot be read by this version.
        """
        from holdfast.spark.start import start_on_spark

        self.query = start_on_spark(self, self.checked(trigger or processing_time()))
        return self.query

    def checked(self, trigger: QueryTrigger) -> QueryTrigger:
        """The trigger, if the job can be started with it now. Raises `JobRefused`."""
        if self.query is not None and self.query.isActive:
            raise JobRefused(
                f"job {self.name!r} runs already (runId {self.query.runId}): a second start on its storage would end "
                "the first. Stop that query first, or make another Job with a storage of its own"
            )
        if not isinstance(trigger, QueryTrigger):
            raise SettingsError(f"trigger={trigger!r} is not allowed: processing_time('1s') or available_now()")
        endless = [name for name, source in self.declared.sources.items() if source.endless]
        if endless and isinstance(trigger, AvailableNow):
            raise JobRefused(
                f"source {endless[0]!r} has no end, so available_now() would never finish; give it one (rows=, stop=) "
                "or start with processing_time()"
            )
        return trigger


class Stream:
    """Rows without keys. Immutable: every method gives a new stream."""

    def __init__(self, job: Job, paths: tuple[Path, ...]) -> None:
        self._job = job
        self._paths = paths

    def __repr__(self) -> str:
        return f"<Stream of job {self._job.name!r}: {_described(self._paths)}>"

    def _then(self, step: MapBatches | TransformDeclaration) -> "Stream":
        return Stream(self._job, tuple(replace(path, steps=(*path.steps, step)) for path in self._paths))

    def with_watermark(self, column: str, delay: Duration, idle_timeout: Duration | None = None) -> "Stream":
        """Say how far event time has come: `column`'s newest value per split, less `delay`; the least over all splits.

        The watermark of a batch comes from rows of earlier batches and never goes back. A split holds it back from
        its assignment on, also before its first row, until it is read to its end (as files are). Windows close by the
        watermark; functions see it as `ctx.watermark`, and their event-time timers fire by it. This method belongs
        right after `read()`; `column` is a timestamp of the source.

        Parameters
        ----------
        idle_timeout
            A split without rows for so long (by the batches' time) does not hold the others back. None: it does.
        """
        delay_us = _micros(delay, "delay")
        idle_us = None if idle_timeout is None else _micros(idle_timeout, "idle_timeout")
        paths: list[Path] = []
        for path in self._paths:
            if path.steps or path.watermark is not None or not isinstance(path.origin, SourceOrigin):
                raise JobRefused(
                    f"with_watermark({column!r}): it belongs right after read(), once, before any other step, since "
                    "the watermark follows the splits of a source"
                )
            if isinstance(self._job.declared.sources[path.origin.source], DataFrameSource):
                raise JobRefused(
                    f"with_watermark({column!r}): source {path.origin.source!r} is read by Spark, which does not say "
                    "which row is of which split; use a source that Holdfast reads"
                )
            paths.append(replace(path, watermark=WatermarkSpec(path.origin.source, column, delay_us, idle_us)))
        return Stream(self._job, tuple(paths))

    def transform(self, fn: "Callable[[DataFrame], DataFrame]") -> "Stream":
        """Apply `DataFrame -> DataFrame` by Spark SQL, batch by batch.

        Analysed once at `start()`, and refused there if it needs a shuffle, changes the number of partitions, or is
        nondeterministic: a batch that is repeated must give the same rows.
        """
        return self._then(TransformDeclaration(fn))

    def map_batches(
        self, fn: Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]], schema: Any
    ) -> "Stream":
        """Apply `fn` to Arrow record batches, in Python, without the JVM. `schema`: of what it returns."""
        return self._then(MapBatches(fn, to_arrow_schema(schema)))

    def union(self, other: "Stream") -> "Stream":
        """Rows of both, which must have the same schema; in no particular order."""
        if other._job is not self._job:
            raise JobRefused("union of streams of different jobs: read both sources in one job")
        return Stream(self._job, (*self._paths, *other._paths))

    def key_by(self, *keys: str | AnyWindow) -> "KeyedStream":
        """Group by the values of columns, and by a window of event time if one of the keys is one.

        `key_by("user", hf.window("at", "10min"))` has the output columns `user`, `window_start`, `window_end`. Rows
        with a null among the columns, or without a time for the window, are bad records.
        """
        if not keys or not all(isinstance(key, AnyWindow) or (isinstance(key, str) and key) for key in keys):
            raise SettingsError(f"key_by{keys!r} is not allowed: name one or more columns, and at most one hf.window")
        columns = tuple(key for key in keys if isinstance(key, str))
        windows = [place for place, key in enumerate(keys) if isinstance(key, AnyWindow)]
        if len(set(columns)) < len(columns):
            raise SettingsError(f"key_by{keys!r} names a column twice")
        if len(windows) > 1:
            raise SettingsError(f"key_by{keys!r} has {len(windows)} windows: a row is in the windows of one of them")
        place = windows[0] if windows else 0
        window = keys[place] if windows else None
        assert window is None or isinstance(window, AnyWindow)
        return KeyedStream(self._job, InputDeclaration(self._paths, columns, window, place))

    def write(self, sink: Sink) -> None:
        """Send the rows to a sink. A stream can be written to several."""
        if not isinstance(sink, Sink):
            raise SettingsError(f"write({sink!r}): expected a sink such as DeltaSink, ParquetSink or NoopSink")
        name = self._job.declared.name_for(sink.name, sink.kind)
        self._job.declared.sinks[name] = SinkDeclaration(name, sink, self._paths)


class KeyedStream:
    """Rows grouped by key: what keyed operators are applied to."""

    def __init__(self, job: Job, declared: InputDeclaration) -> None:
        self._job = job
        self._declared = declared

    def __repr__(self) -> str:
        keys = ", ".join(self._declared.shown_keys)
        return f"<KeyedStream of job {self._job.name!r}: {_described(self._declared.paths)} → key_by({keys})>"

    def aggregate(
        self,
        emit: Literal["final", "changes", "every"] | None = None,
        *,
        allowed_lateness: Duration = 0,
        late: LatePolicy = "drop",
        name: str | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Keep aggregates per key: `aggregate(n=hf.count(), total=hf.sum("x"))`.

        Output: the key columns, then the aggregates in keyword order.

        Parameters
        ----------
        emit
            `"changes"` (default): one row per key touched in a batch, at its end; `"every"`: one row per input row,
            with the running values. Behind a window: `"final"` (default): one row per key and window, once the
            watermark has passed its end; `"changes"`: one in each batch that changed it.
        allowed_lateness
            Behind a window: for so much longer than its end it takes rows, and stays in the state.
        late
            Behind a window: what becomes of a row whose windows are closed. `"drop"` counts it
            (`numLateRecordsDropped`), `"dead_letter"` also writes it to the job's dead letters.
        """
        bad_records: BadRecords = "fail" if self._job.dead_letters is None else "dead_letter"
        combine = self._job.combine
        if self._declared.window is not None:
            check_windowed(aggregates, self._declared.window, emit or "final", late)
            sessions = isinstance(self._declared.window, SessionWindow)
            self._check_late(late)
            windowed = (cast(WindowEmit, emit or "final"), bad_records, combine)
            lateness_us = _micros(allowed_lateness, "allowed_lateness")

            def specify_windowed(operator: str, inputs: tuple[OperatorInput, ...]) -> WindowedSpec:
                spec = SessionSpec if sessions else WindowSpec
                return spec(operator, inputs[0], dict(aggregates), *windowed, lateness_us, late)

            return self._declare(name, "aggregate", specify_windowed)
        if allowed_lateness or late != "drop":
            raise SettingsError("allowed_lateness and late belong to windows: add hf.window(…) to key_by")
        emitted = cast(Emit, emit or "changes")
        check_aggregates(aggregates, emitted)

        def specify(operator: str, inputs: tuple[OperatorInput, ...]) -> AggregateSpec:
            return AggregateSpec(operator, inputs[0], dict(aggregates), emitted, bad_records, combine)

        return self._declare(name, "aggregate", specify)

    def process(self, function: ProcessFunction | BatchFunction, schema: Any, *, name: str | None = None) -> Stream:
        """Apply a user's function with state per key. `schema`: of the rows it yields."""
        if self._declared.window is not None:
            raise SettingsError("process() behind a window is not in this version: key by columns, and use timers")
        output = to_arrow_schema(schema)
        dead_letter = self._job.dead_letters is not None

        def specify(operator: str, inputs: tuple[OperatorInput, ...]) -> ProcessSpec:
            return ProcessSpec(operator, inputs[0], function, output, "dead_letter" if dead_letter else "fail")

        return self._declare(name, "process", specify)

    def _check_late(self, late: str) -> None:
        if late == "dead_letter" and self._job.dead_letters is None:
            raise SettingsError(
                "late='dead_letter' needs Job(bad_records='dead_letter', dead_letters=<url of a folder>)"
            )

    def _declare(self, name: str | None, kind: str, specify: Callable[..., Any]) -> Stream:
        declared = self._job.declared
        operator = declared.name_for(name, kind)
        declared.operators[operator] = OperatorDeclaration(operator, (self._declared,), specify)
        return Stream(self._job, (Path(OperatorOrigin(operator)),))


def _micros(duration: Duration, name: str) -> int:
    return round(duration_s(duration, name) * 1_000_000)


def _described(paths: tuple[Path, ...]) -> str:
    """The ways into a stream, each from its source or operator over its steps."""
    ways = []
    for path in paths:
        origin = path.origin.source if isinstance(path.origin, SourceOrigin) else path.origin.operator
        watermark = [] if path.watermark is None else [f"with_watermark({path.watermark.column!r})"]
        steps = [
            f"{'transform' if isinstance(step, TransformDeclaration) else 'map_batches'}"
            f"({getattr(step.fn, '__name__', repr(step.fn))})"
            for step in path.steps
        ]
        ways.append(" → ".join([origin, *watermark, *steps]))
    return " and ".join(ways)


def _no_source(found: Any) -> str:
    """What to read instead of something that is no source."""
    if getattr(found, "isStreaming", False):
        execution = found._jdf.queryExecution()
        return explain_streaming_dataframe(f"{execution.logical()}\n{execution.analyzed()}")
    return f"read({type(found).__name__}): expected a source such as FileSource, SequenceSource or DataFrameSource"


def _dead_letter_sink(
    bad_records: str, dead_letters: str | None, storage_options: Mapping[str, str]
) -> DeadLetterSink | None:
    if bad_records not in ("fail", "dead_letter"):
        raise SettingsError(f"bad_records={bad_records!r} is not allowed: 'fail' or 'dead_letter'")
    if (bad_records == "dead_letter") != (dead_letters is not None):
        raise SettingsError("bad_records='dead_letter' and dead_letters=<url of a folder> belong together; give both")
    return None if dead_letters is None else DeadLetterSink(dead_letters, storage_options=dict(storage_options))
