"""A `Job`, its sources, and `start()`; methods that work on rows are in `streams` and `keyed_streams`.

A job only collects declarations, and checks them as far as it can without data. Nothing runs before `start()`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.autoscale.settings import Autoscale
from holdfast.errors import JobRefused, SettingsError
from holdfast.expressions.declared import settings_of
from holdfast.expressions.nodes import SqlSettings
from holdfast.functions.operator import OperatorInput, OperatorSpec
from holdfast.functions.process.declared import ProcessSpec
from holdfast.functions.process.known_rows import known_rows
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.declarations import Declarations
from holdfast.graph.nodes import ReadNode
from holdfast.graph.program import SourceOrigin
from holdfast.graph.regions import explained
from holdfast.hidden import hide_url
from holdfast.job_checks import check_control, check_driver, check_types, checked_on_loss, checked_storages
from holdfast.keyed_streams import EmitMode
from holdfast.ports import PortRange, check_port_range
from holdfast.quantities import duration_us
from holdfast.settings import (
    AvailableNow,
    CheckpointConfig,
    Duration,
    FailoverConfig,
    HashMapState,
    OnLoss,
    QueryTrigger,
    RegionConfig,
    Size,
    StateBackend,
    TaskManagerConfig,
    processing_time,
    size_bytes,
)
from holdfast.sinks.dead_letters import DeadLetterSink
from holdfast.sources.base import Source, SourceOutput
from holdfast.sources.spark_stream.stream_source import StreamingDataFrameSource
from holdfast.sources.truncations import PART
from holdfast.start_options import StartKeywords, StartOptions, check_port
from holdfast.store_prices import StorePrices
from holdfast.streams import Stream
from holdfast.ui.notebook import html_table
from holdfast.ui.progress_line import starting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.graph.known import KnownSchemas
    from holdfast.query import Query


class Job:
    """A pipeline with a name and a storage URL.

    Parameters
    ----------
    spark
        A `SparkSession`, classic or of Spark Connect. The job works in a clone of it, and never stops it. None only for
        `holdfast.testing`.
    name
        Name in messages and in the Spark UI; fixed for the life of the storage, so that no other job takes it over.
    storage
        URL of the job's own folder: `file:///…`, `s3://…`, `gs://…`, `az://…`; reachable from all executors.
    storage_options
        Options for obstore (credentials, endpoints); never stored or logged. Those that begin with `changelog.` or
        `shared.` are only for `changelog_storage` or `shared_storages`.
    changelog_storage
        URL of a folder for logs, which each checkpoint waits for: a storage that answers sooner. Default: in `storage`.
    shared_storages
        URLs of folders over which materialized tables are spread. Default: in `storage`.
    parallelism
        Subtasks of each keyed operator. Default: the number of Spark's slots that TaskManagers leave free.
    max_parallelism
        The number of key groups, fixed for the life of the storage. Default: that of Flink's formula, at least 128.
    task_managers
        Processes that hold state; each takes one of Spark's slots for as long as the query runs.
    standby_task_managers
        Additional processes without state that replace a lost TaskManager at once, so that the job continues sooner
        after a loss. Each takes a slot as well. With 0, the job waits until Spark has started another process.
    standby_state
        True: standbys follow the logs of the TaskManagers, so that one that replaces a lost TaskManager already has its
        state: a loss costs the same at any size of state. Needs `standby_task_managers`, and memory.
    senders
        Processes that read, run Python steps and write; each takes one of Spark's slots for as long as the query runs.
        Default: the number of slots that TaskManagers leave free, minus 1 for Spark jobs, which legs with a `transform`
        or a `DataFrameSource` and the user's program need; a later query in the session takes some of them, until a
        query ends. With 0, or with more than fit, every batch starts short Spark jobs.
    state
        The backend: `HashMapState()` or `RocksDBState()`.
    checkpoint, task_manager, failover
        See `CheckpointConfig`, `TaskManagerConfig` and `FailoverConfig`.
    regions
        `RegionConfig()`: a split that fails falls behind alone, and the other splits continue. None: it fails its
        batch.
    autoscale
        `Autoscale(max_task_managers=8)`: advice on how many TaskManagers the job needs; with `apply=True` the job
        follows it. None: no advice.
    on_loss
        Reaction to the loss of a TaskManager. `"rewind"`: the others go back to the last checkpoint, in memory as far
        as they can undo, so that only the replacement restores. `"restart"`: all of them restore. `"drop"`: the others
        continue, and rows for the lost one are dropped until its replacement joins. Its work since the last checkpoint
        is lost as well, so exactly-once ends. Rows are then not combined, so that each dropped row is counted.
    max_rows_per_batch, max_bytes_per_batch
        Bounds of a batch, over all sources, in rows and bytes. Higher values give fewer and longer batches, which take
        more memory.
    target_batch_duration
        Target for the duration of a batch, from its plan to its commit: each batch gets as many rows as are expected to
        take that long, up to `max_rows_per_batch`. A checkpoint, a stop or an undo then waits for about that time,
        whatever the load. A higher value gives more rows per second, and rarer results. None: batches are as large as
        their bounds allow.
    max_event_time_skew
        A source with a watermark is not read while its event time is further than this ahead of the slowest other
        source that has rows. With a higher value sources may drift apart further, and joins and windows keep more
        state. None: no limit.
    bad_records, dead_letters
        Treatment of malformed rows, null keys, rows that overflow a sum, and rows whose function raised. `"fail"` ends
        the query; `"dead_letter"` writes them to the folder with the URL `dead_letters`.
    combine
        Whether tasks may combine the rows of a key before they send them to an aggregate with `emit="changes"`.
    clock
        The time of the job, by which state expires, processing-time timers fire and windows of batch time close.
        `"steady"` follows the wall clock, but ignores jumps of more than some seconds. A start accepts a wall clock
        that fits the time passed since the checkpoint; on another machine, or after a reboot, it may be at most 7 days
        past the checkpoint. `"wall"`: this start takes the wall clock as it is.
    ship_modules
        Modules to send by value, because they are not installed on executors.
    metrics_port
        Port on which the driver serves metrics to Prometheus while the query runs; 0: any free port; None: no metrics.
    ui_host
        Address at which the page of a running query (`start(ui_port=…)`) is served. Unless it is a loopback address,
        the URL has a token, without which the page shows nothing.
    port_range
        First and last port at which the job's servers may listen: on the driver the JobMaster, the server for drivers
        in waiting, and the page and the metrics if their port is 0; on executors TaskManagers and senders, unless
        `TaskManagerConfig(port_range=…)` gives other ports. `(0, 0)`: any free port.
    ui_control
        True: `holdfast stop`, `update`, `trigger`, `savepoint`, `retry` and `skip` may change the query from outside,
        at `query.uiUrl`, with a token that the start makes and prints (`query.controlToken`). A string of at least 32
        characters: that token. False: nothing can be changed from outside.
    prices
        `StorePrices()`: the prices by which displays of a running query say what its requests to the storage cost.
    driver
        Place of the JobMaster. `"client"`: in this program. `"cluster"`, on Spark Connect: beside Spark's driver, so
        that the job goes on when the program ends, and executors need not reach the program; `hf.attach` finds it.
    start_options
        Options of `start()` that apply to every start of this job unless the start gives its own.

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
        changelog_storage: str | None = None,
        shared_storages: Sequence[str] = (),
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        task_managers: int = 1,
        standby_task_managers: int = 0,
        standby_state: bool = False,
        senders: int | None = None,
        state: StateBackend | None = None,
        checkpoint: CheckpointConfig | None = None,
        task_manager: TaskManagerConfig | None = None,
        failover: FailoverConfig | None = None,
        regions: RegionConfig | None = None,
        autoscale: Autoscale | None = None,
        on_loss: str = "rewind",
        max_rows_per_batch: int = 2_000_000,
        max_bytes_per_batch: Size = "256MB",
        target_batch_duration: Duration | None = None,
        max_event_time_skew: Duration | None = None,
        bad_records: str = "fail",
        dead_letters: str | None = None,
        combine: bool = True,
        clock: str = "steady",
        ship_modules: Sequence[ModuleType] = (),
        metrics_port: int | None = None,
        ui_host: str = "127.0.0.1",
        port_range: PortRange = (0, 0),
        ui_control: bool | str = False,
        prices: StorePrices | None = None,
        driver: str = "client",
        **start_options: Unpack[StartKeywords],
    ) -> None:
        _check_session(spark, driver)
        check_types(checkpoint, task_manager, failover, storage_options, autoscale, prices)
        self.spark = spark
        self.name = name
        self.storage = storage
        self.storage_options = dict(storage_options or {})
        self.changelog_storage, self.shared_storages = checked_storages(changelog_storage, shared_storages)
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.task_managers = task_managers
        self.standby_task_managers = standby_task_managers
        self.standby_state = standby_state
        self.senders = senders
        self.state = state or HashMapState()
        self.checkpoint = checkpoint or CheckpointConfig()
        self.port_range = port_range
        self.task_manager = task_manager or TaskManagerConfig()
        self.failover = failover or FailoverConfig()
        self.regions = regions
        self.autoscale = autoscale
        self.on_loss = checked_on_loss(on_loss)
        if autoscale is not None and autoscale.apply and self.on_loss is OnLoss.DROP:
            raise SettingsError("Autoscale(apply=True) with on_loss='drop' is not allowed: it needs query.rescale")
        self.max_rows_per_batch = max_rows_per_batch
        target_us = _optional_us(target_batch_duration, "target_batch_duration")
        self.target_batch_duration_s = None if target_us is None else target_us / 1e6
        self.max_event_time_skew_us = _optional_us(max_event_time_skew, "max_event_time_skew")
        self.max_bytes_per_batch = size_bytes(max_bytes_per_batch, "max_bytes_per_batch")
        self.dead_letters = _dead_letter_sink(bad_records, dead_letters, self.storage_options)
        self.combine = combine
        self.clock = clock
        self.ship_modules = tuple(ship_modules)
        self.metrics_port = metrics_port
        self.ui_host, self.ui_control = ui_host, ui_control
        self.prices, self.driver = prices or StorePrices(), driver
        self.start_options = StartOptions().given(start_options)
        self.starting = self.start_options
        """The options of the last start."""
        self.declared = Declarations()
        self.query: Query | None = None
        """The query of the last start."""
        self._check()

    def _check(self) -> None:
        if not self.name:
            raise SettingsError("name='' is not allowed: give the job a name")
        if isinstance(self.name, str) and self.name != self.name.encode("utf-8", "replace").decode():
            raise SettingsError(
                f"name={self.name!r} is not allowed: it is stored as UTF-8, which has no lone surrogates"
            )
        for field in ("parallelism", "max_parallelism", "task_managers", "max_rows_per_batch"):
            value = getattr(self, field)
            optional = field in ("parallelism", "max_parallelism")
            if not (value is None and optional) and (not isinstance(value, int) or value < 1):
                raise SettingsError(f"{field}={value!r} is not allowed: a whole number from 1")
        if self.clock not in ("steady", "wall"):
            raise SettingsError(f"clock={self.clock!r} is not allowed: 'steady' or 'wall'")
        standby = self.standby_task_managers
        if not isinstance(standby, int) or isinstance(standby, bool) or standby < 0:
            raise SettingsError(f"standby_task_managers={standby!r} is not allowed: a whole number from 0")
        if self.checkpoint.changelog_config.by_follower and not self.standby_state:
            raise SettingsError("ChangelogConfig(materialized_by='follower') is not allowed without standby_state=True")
        if self.standby_state not in (True, False) or (self.standby_state and not standby):
            raise SettingsError(
                f"standby_state={self.standby_state!r} with standby_task_managers={standby} is not allowed: True needs "
                "a standby that holds the state, standby_task_managers=1 or more; or False"
            )
        if self.senders is not None and (not isinstance(self.senders, int) or self.senders < 0):
            raise SettingsError(f"senders={self.senders!r} is not allowed: a whole number from 0, or None")
        if self.target_batch_duration_s is not None and self.target_batch_duration_s <= 0:
            raise SettingsError("target_batch_duration must be longer than nothing; None: batches of any duration")
        if self.parallelism and self.max_parallelism and self.parallelism > self.max_parallelism:
            raise SettingsError(
                f"parallelism={self.parallelism} is above max_parallelism={self.max_parallelism}; lower it"
            )
        for field in ("name", "storage", "ui_host"):
            if not isinstance(getattr(self, field), str):
                raise SettingsError(f"{field}={getattr(self, field)!r} is not allowed: a string")
        check_port("metrics_port", self.metrics_port)
        check_port_range(self.port_range)
        check_control(self.ui_control)
        for module in self.ship_modules:
            if not isinstance(module, ModuleType):
                raise SettingsError(f"ship_modules=[{module!r}] is not allowed: give imported modules")
        self._check_regions()
        if not isinstance(self.state, StateBackend):
            raise SettingsError(f"state={self.state!r} is not allowed: HashMapState() or RocksDBState()")
        if self.parallelism and self.task_managers > self.parallelism:
            raise SettingsError(
                f"task_managers={self.task_managers} is above parallelism={self.parallelism}: some would hold no state"
            )

    def _check_regions(self) -> None:
        regions, whole_s = self.regions, self.failover.limit_s("process_timeout")
        if regions is None:
            return
        if not isinstance(regions, RegionConfig):
            raise SettingsError(f"regions={regions!r} is not allowed: RegionConfig(…) or None")
        if whole_s is not None and regions.unit_s_max >= whole_s:
            raise SettingsError(
                f"unit_timeout={regions.unit_timeout!r} is not allowed: below process_timeout="
                f"{self.failover.process_timeout!r}, after which the whole batch fails"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the job without objects of this process: it travels to a JobMaster in the cluster."""
        return {name: value for name, value in vars(self).items() if name != "known_schemas"} | {
            "spark": None,
            "query": None,
        }

    @cached_property
    def known_schemas(self) -> "KnownSchemas":
        """Return the schemas of streams, as far as they are known before the start."""
        from holdfast.graph.known import KnownSchemas  # jobs without expressions load it not

        return KnownSchemas(self.declared)

    @property
    def expression_settings(self) -> SqlSettings:
        """Return the settings of the session on which the results of Spark SQL expressions depend."""
        return settings_of(self.spark)

    def __repr__(self) -> str:
        declared = self.declared
        parts: dict[str, Iterable[str]] = {
            "reads": declared.sources,
            "keeps state in": declared.operators,
            "writes": declared.sinks,
        }
        said = [f"{verb} {', '.join(names)}" for verb, names in parts.items() if names]
        state = "was not started" if self.query is None else "runs" if self.query.isActive else "has ended"
        return f"<Job {self.name!r} on {hide_url(self.storage)}: {'; '.join([*said, state])}>"

    def _repr_html_(self) -> str:
        declared = self.declared
        kinds = (("source", declared.sources), ("operator", declared.operators), ("sink", declared.sinks))
        rows = [(kind, name) for kind, names in kinds for name in names]
        return html_table(f"Job {self.name} on {hide_url(self.storage)}", ("kind", "name"), rows)

    def read(self, source: "Source | SourceOutput | DataFrame") -> "Stream":
        """Make a stream of a source's rows. A source is read once for all branches, whatever operators or sinks follow.

        A streaming DataFrame, `spark.readStream…`, is read as `StreamingDataFrameSource` does with its defaults.

        If a source has several streams, each is read separately, as in `job.read(cdc.table("public.orders"))`. They
        share one position.
        """
        if isinstance(source, SourceOutput):
            stream = Stream(self, ReadNode(SourceOrigin(self._name_of(source.source), source.output)))
            return _with_deletes(stream, source.output) if source.tells_truncations else stream
        if getattr(source, "isStreaming", False):
            source = StreamingDataFrameSource(source)
        if not isinstance(source, Source):
            raise JobRefused(_no_source(source))
        if source.has_outputs:
            raise JobRefused(
                f"read({source!r}): the source has several streams; read a single stream: read(source.table(name))"
            )
        source = source.with_expressions(self.expression_settings)
        name = self.declared.name_for(source.name, source.kind)
        self.declared.sources[name] = source
        return Stream(self, ReadNode(SourceOrigin(name)))

    def _name_of(self, source: Source) -> str:
        """Return the name of a source in the job. The source is added to the job at its first stream."""
        known = [name for name, each in self.declared.sources.items() if each is source]
        name = known[0] if known else self.declared.name_for(source.name, source.kind)
        self.declared.sources[name] = source
        return name

    def sql(self, text: str, /, *, emit: EmitMode | None = None, **streams: "Stream") -> "Stream":
        """Make a stream of a query in SQL over streams of this job: `job.sql("SELECT auction FROM bids", bids=bids)`.

        A query declares the same operators as the methods of streams. What they cannot do is refused, with its position
        in the text. `emit` applies to the query's aggregates, as in `aggregate`. The streams' watermarks are used.
        """
        from holdfast.sql.queries import query

        for name, stream in streams.items():
            if not isinstance(stream, Stream) or stream._job is not self:
                raise SettingsError(f"sql({name}={stream!r}): expected a stream of this job")
        made: Stream = query(text, streams, emit)
        return made

    def start(self, trigger: QueryTrigger | None = None, **options: Unpack[StartKeywords]) -> "Query":
        """Check the job, deploy it, and run it in the background.

        Parameters
        ----------
        trigger
            When batches run, and when the query ends: `hf.processing_time("1s")`, `hf.available_now()`.
        options
            `start_from`, `publish_again`, `restore_mode`, `drop_state`, `initial_state`, `forget_updates`, `ui_port`:
            see `StartOptions`.

        Raises
        ------
        JobRefused
            The job cannot run as it is. State and published output are unchanged.
        StorageError
            The storage cannot be reached.
        CorruptObject
            A stored object cannot be read by this version.
        """
        from holdfast.spark.start import start_on_spark

        with starting(self.name) as say:
            self.query = start_on_spark(self, self.checked(trigger or processing_time(), options), say)
        self.query.draw_progress()
        return self.query

    def explain(self) -> None:
        """Print the legs of the job and its regions: the parts whose rows never meet on their way to the sinks.

        The job is analysed as by `start`, so the same errors are raised, but nothing is started or stored.
        """
        if self.spark is None:
            print(explained(build_program(self.declared, without_spark, self.dead_letters, self.state)))
            return
        from holdfast.spark.start import explain_on_spark

        print(explain_on_spark(self, self.spark))

    def checked(self, trigger: QueryTrigger, options: StartKeywords) -> QueryTrigger:
        """Return the trigger if the job can start now with it and with the options; otherwise raise `JobRefused`."""
        self.starting = self.start_options.given(options)
        if self.ui_control and self.starting.ui_port is None:
            raise SettingsError("ui_control needs the page, beside which the control is served: give ui_port, too")
        if self.query is not None and self.query.isActive:
            raise JobRefused(
                f"job {self.name!r} runs already (runId {self.query.runId}): a second start on its storage would end "
                "the first. Stop that query first, or make another Job with a storage of its own"
            )
        if not isinstance(trigger, QueryTrigger):
            raise SettingsError(f"trigger={trigger!r} is not allowed: processing_time('1s') or available_now()")
        whole = [name for name, source in self.declared.sources.items() if not source.divisible]
        if whole and self.target_batch_duration_s is not None:
            raise JobRefused(
                f"source {whole[0]!r} reads everything that is there in each batch, so target_batch_duration cannot "
                "limit its batches; leave target_batch_duration out, or read with a source that can be limited"
            )
        endless = [name for name, source in self.declared.sources.items() if source.endless]
        if endless and isinstance(trigger, AvailableNow):
            raise JobRefused(
                f"source {endless[0]!r} has no end, so available_now() would never finish; give it an end (rows=, "
                "stop=) or start with processing_time()"
            )
        return trigger


def _optional_us(duration: Duration | None, name: str) -> int | None:
    return None if duration is None else duration_us(duration, name)


def _no_source(found: Any) -> str:
    """Explain how to read an object that is not a source."""
    return (
        f"read({type(found).__name__}): expected a source such as FileSource, KafkaSource or DataFrameSource, or a "
        "streaming DataFrame"
    )


def _dead_letter_sink(
    bad_records: str, dead_letters: str | None, storage_options: Mapping[str, str]
) -> DeadLetterSink | None:
    if bad_records not in ("fail", "dead_letter"):
        raise SettingsError(f"bad_records={bad_records!r} is not allowed: 'fail' or 'dead_letter'")
    if (bad_records == "dead_letter") != (dead_letters is not None):
        raise SettingsError("bad_records='dead_letter' and dead_letters=<url of a folder> belong together; give both")
    return None if dead_letters is None else DeadLetterSink(dead_letters, storage_options=dict(storage_options))


def _check_session(spark: "SparkSession | None", driver: str) -> None:
    check_driver(driver, spark is not None)
    if spark is not None:
        from holdfast.spark.session import check_session

        check_session(spark, driver)


def _with_deletes(stream: Stream, table: str) -> Stream:
    """Replace truncations of a table by deletes of its known rows (`sources.truncations`)."""

    def specify(operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        function, output = known_rows(inputs[0])
        return ProcessSpec(operator, inputs[0], function, output, "fail")

    kind = "known." + "".join(each if each.isalnum() or each in "-_." else "_" for each in table)
    keyed, declared = stream.key_by(PART), stream._job.declared
    known = keyed._declare(None, kind, specify, keyed._declared)
    del declared.unnamed[next(reversed(declared.operators))]  # its name is made from the table's name, not from a count
    return known
