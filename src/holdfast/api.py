"""Names of the public API, and the module that each comes from.

`import holdfast` loads a module when a name of it is first used, so that a program loads only the sources, sinks and
functions that it uses, and a TaskManager loads none of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.autoscale.settings import Autoscale
    from holdfast.availability import SnapshotAvailability
    from holdfast.calls.declared import AsyncFunction, CallContext
    from holdfast.errors import (
        BadRecord,
        CheckpointFailed,
        CorruptObject,
        Fenced,
        HoldfastError,
        JobRefused,
        ObjectExists,
        ObjectNotFound,
        PositionLost,
        PublishFailed,
        QueryFailed,
        RescaleFailed,
        RestartsExhausted,
        ServiceAway,
        SessionStopped,
        SettingsError,
        StateTooLarge,
        StorageError,
        TaskManagerLost,
        UserFunctionError,
    )
    from holdfast.functions.aggregates.declared import (
        approx_count_distinct,
        collect_list,
        collect_set,
        count,
        count_distinct,
        first,
        last,
        max,
        max_by,
        mean,
        min,
        min_by,
        stddev,
        sum,
        variance,
    )
    from holdfast.functions.process.declared import BatchFunction, ProcessFunction
    from holdfast.functions.process.of_subtask.broadcast import BroadcastState
    from holdfast.functions.process.of_subtask.list_states import SplitListState, UnionListState
    from holdfast.functions.process.shared.states import (
        AggregatingState,
        ListState,
        MapState,
        ReducingState,
        ValueState,
    )
    from holdfast.functions.soft_failures import SoftFailureLimit
    from holdfast.functions.windows.declared import session_window, window
    from holdfast.job import Job
    from holdfast.jobmaster.batches.rescales import Rescale
    from holdfast.jobmaster.savepoints.savepoints import Savepoint
    from holdfast.keyed_streams import KeyedStream
    from holdfast.query import Query
    from holdfast.settings import (
        ChangelogConfig,
        CheckpointConfig,
        FailoverConfig,
        HashMapState,
        RegionConfig,
        RetryPolicy,
        RocksDBState,
        TaskManagerConfig,
        available_now,
        cron,
        every,
        manual,
        on_watermark,
        processing_time,
    )
    from holdfast.sinks.base import Sink
    from holdfast.sinks.callback import CallbackSink
    from holdfast.sinks.delta.delta_sink import DeltaSink
    from holdfast.sinks.kafka.kafka_sink import KafkaSink
    from holdfast.sinks.memory import MemorySink
    from holdfast.sinks.noop import NoopSink
    from holdfast.sinks.parquet import ParquetSink
    from holdfast.sinks.partition_time import PartitionTime
    from holdfast.sources.base import BadRow, Enumerator, EnumeratorContext, Source, SourceBatch, SourcePlan, SplitRead
    from holdfast.sources.dataframe import DataFrameSource
    from holdfast.sources.files.file_source import FileSource
    from holdfast.sources.kafka.kafka_source import KafkaSource
    from holdfast.sources.postgres.cdc_source import PostgresCdcSource
    from holdfast.sources.pyspark_reader import DataSourceReaderSource
    from holdfast.sources.sequence import SequenceSource
    from holdfast.sources.spark_stream.stream_source import StreamingDataFrameSource
    from holdfast.spark.attaching import attach
    from holdfast.standby_query import StandbyQuery
    from holdfast.start_options import StartOptions
    from holdfast.store_prices import StorePrices
    from holdfast.stored_state.read import read_state
    from holdfast.streams import Stream

MODULES: dict[str, str] = {
    "holdfast.availability": "SnapshotAvailability",
    "holdfast.calls.declared": "AsyncFunction CallContext",
    "holdfast.errors": "BadRecord CheckpointFailed CorruptObject Fenced HoldfastError JobRefused ObjectExists "
    "ObjectNotFound PositionLost PublishFailed QueryFailed RescaleFailed RestartsExhausted ServiceAway SessionStopped "
    "SettingsError StateTooLarge StorageError TaskManagerLost UserFunctionError",
    "holdfast.functions.aggregates.declared": "approx_count_distinct collect_list collect_set count count_distinct "
    "first last max max_by mean min min_by stddev sum variance",
    "holdfast.functions.process.declared": "BatchFunction ProcessFunction",
    "holdfast.functions.process.of_subtask.broadcast": "BroadcastState",
    "holdfast.functions.process.of_subtask.list_states": "SplitListState UnionListState",
    "holdfast.functions.process.shared.states": "AggregatingState ListState MapState ReducingState ValueState",
    "holdfast.functions.soft_failures": "SoftFailureLimit",
    "holdfast.autoscale.settings": "Autoscale",
    "holdfast.functions.windows.declared": "session_window window",
    "holdfast.job": "Job",
    "holdfast.keyed_streams": "KeyedStream",
    "holdfast.query": "Query",
    "holdfast.settings": "ChangelogConfig CheckpointConfig FailoverConfig HashMapState RegionConfig RetryPolicy "
    "RocksDBState TaskManagerConfig available_now cron every manual on_watermark processing_time",
    "holdfast.sinks.callback": "CallbackSink",
    "holdfast.sinks.delta.delta_sink": "DeltaSink",
    "holdfast.sinks.kafka.kafka_sink": "KafkaSink",
    "holdfast.sinks.memory": "MemorySink",
    "holdfast.sinks.noop": "NoopSink",
    "holdfast.sinks.parquet": "ParquetSink",
    "holdfast.sinks.partition_time": "PartitionTime",
    "holdfast.sources.dataframe": "DataFrameSource",
    "holdfast.sources.files.file_source": "FileSource",
    "holdfast.sources.kafka.kafka_source": "KafkaSource",
    "holdfast.sources.postgres.cdc_source": "PostgresCdcSource",
    "holdfast.sources.pyspark_reader": "DataSourceReaderSource",
    "holdfast.sources.sequence": "SequenceSource",
    "holdfast.sources.spark_stream.stream_source": "StreamingDataFrameSource",
    "holdfast.stored_state.read": "read_state",
    "holdfast.streams": "Stream",
    "holdfast.sources.base": "BadRow Enumerator EnumeratorContext Source SourceBatch SourcePlan SplitRead",
    "holdfast.sinks.base": "Sink",
    "holdfast.spark.attaching": "attach",
    "holdfast.standby_query": "StandbyQuery",
    "holdfast.start_options": "StartOptions",
    "holdfast.store_prices": "StorePrices",
    "holdfast.jobmaster.batches.rescales": "Rescale",
    "holdfast.jobmaster.savepoints.savepoints": "Savepoint",
}
"""The names of each module, with spaces between them."""

MODULE_OF = {name: module for module, names in MODULES.items() for name in names.split()}

__all__ = [
    "AggregatingState",
    "AsyncFunction",
    "Autoscale",
    "BadRecord",
    "BadRow",
    "BatchFunction",
    "BroadcastState",
    "CallContext",
    "CallbackSink",
    "ChangelogConfig",
    "CheckpointConfig",
    "CheckpointFailed",
    "CorruptObject",
    "DataFrameSource",
    "DataSourceReaderSource",
    "DeltaSink",
    "Enumerator",
    "EnumeratorContext",
    "FailoverConfig",
    "Fenced",
    "FileSource",
    "HashMapState",
    "HoldfastError",
    "Job",
    "JobRefused",
    "KafkaSink",
    "KafkaSource",
    "KeyedStream",
    "ListState",
    "MapState",
    "MemorySink",
    "NoopSink",
    "ObjectExists",
    "ObjectNotFound",
    "ParquetSink",
    "PartitionTime",
    "PositionLost",
    "PostgresCdcSource",
    "ProcessFunction",
    "PublishFailed",
    "Query",
    "QueryFailed",
    "ReducingState",
    "RegionConfig",
    "Rescale",
    "RescaleFailed",
    "RestartsExhausted",
    "RetryPolicy",
    "RocksDBState",
    "Savepoint",
    "SequenceSource",
    "ServiceAway",
    "SessionStopped",
    "SettingsError",
    "Sink",
    "SnapshotAvailability",
    "SoftFailureLimit",
    "Source",
    "SourceBatch",
    "SourcePlan",
    "SplitListState",
    "SplitRead",
    "StandbyQuery",
    "StartOptions",
    "StateTooLarge",
    "StorageError",
    "StorePrices",
    "Stream",
    "StreamingDataFrameSource",
    "TaskManagerConfig",
    "TaskManagerLost",
    "UnionListState",
    "UserFunctionError",
    "ValueState",
    "approx_count_distinct",
    "attach",
    "available_now",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "cron",
    "every",
    "first",
    "last",
    "manual",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "on_watermark",
    "processing_time",
    "read_state",
    "session_window",
    "stddev",
    "sum",
    "variance",
    "window",
]
