"""Table of metrics: Flink's or a similar name, meaning, Prometheus name, and how values of TaskManagers are combined.

The names and their units are mostly Flink's. Prometheus has base units: seconds and bytes. A test compares the table
with docs/reference/metrics.md. Data only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Across = Literal["sum", "max", "mean"]

MILLISECONDS, NANOSECONDS = 1e-3, 1e-9


@dataclass(frozen=True)
class KnownMetric:
    """A metric. `scale`: the value for Prometheus that corresponds to 1. `by_subtask`: the metric also has a value for
    each subtask."""

    name: str
    kind: Kind
    prometheus: str
    help: str
    across: Across = "sum"
    scale: float = 1.0
    by_subtask: bool = False
    goes_back: bool = False
    """True for a counter of rows that returns to an earlier value after a loss, as state does: each row counts once."""
    weight: str | None = None
    """The metric by subtask that weights the values of a mean."""


def _of_lane(lane: str, objects: str) -> Iterator[KnownMetric]:
    """Yield the metrics of the uploads in a lane: sizes, latencies, attempts and errors.

    The lane of logs has no name in them, but its attempts and errors, whose names would be too general, begin with
    "log".
    """
    name, known = (f"{lane}Upload", f"holdfast_{lane}_upload") if lane else ("upload", "holdfast_upload")
    alone = lane or "log"
    took = f"Time from the first attempt until the object was stored, for {objects}"
    yield KnownMetric(f"{name}Sizes", "histogram", f"{known}_size_bytes", f"Sizes of stored {objects}")
    yield KnownMetric(f"{name}LatenciesNanos", "histogram", f"{known}_latency_seconds", took, scale=NANOSECONDS)
    attempts, errors = f"holdfast_{alone}_upload_attempts", f"holdfast_{alone}_upload_errors_total"
    yield KnownMetric(f"{alone}UploadAttempts", "histogram", attempts, f"Attempts at {objects}, including hedges")
    yield KnownMetric(f"{alone}UploadErrors", "counter", errors, f"Failed attempts at {objects}, even if stored later")


OF_TASK_MANAGERS = (
    KnownMetric(
        "stateCacheHitRatio",
        "gauge",
        "holdfast_state_cache_hit_ratio",
        "Share of the distinct rows that batches looked up in the last second which were in memory",
        "mean",
        by_subtask=True,
        weight="stateCacheAccesses",
    ),
    KnownMetric(
        "stateCacheAccesses",
        "gauge",
        "holdfast_state_cache_accesses",
        "Distinct rows that batches looked up in the last second",
        by_subtask=True,
    ),
    KnownMetric("stateRows", "gauge", "holdfast_state_rows", "Rows in state tables", by_subtask=True),
    KnownMetric(
        "stateKeyGroupSkew",
        "gauge",
        "holdfast_state_key_group_skew",
        "Rows of the largest key group divided by the mean of all key groups: from a sample for rows in memory, or a "
        "slow scan for RocksDB, which takes minutes for a million rows; absent until it has ended",
        "max",
        by_subtask=True,
    ),
    KnownMetric("stateBytes", "gauge", "holdfast_state_memory_bytes", "Memory of state tables", by_subtask=True),
    KnownMetric(
        "stateUndoBytes",
        "gauge",
        "holdfast_state_undo_bytes",
        "Memory of the old rows that are kept for undo",
        by_subtask=True,
    ),
    KnownMetric(
        "numRecordsIn",
        "counter",
        "holdfast_operator_records_in_total",
        "Rows into operators",
        by_subtask=True,
        goes_back=True,
    ),
    KnownMetric(
        "numRecordsOut",
        "counter",
        "holdfast_operator_records_out_total",
        "Rows that operators gave out",
        by_subtask=True,
        goes_back=True,
    ),
    KnownMetric(
        "numLateRecordsDropped",
        "counter",
        "holdfast_operator_late_records_total",
        "Rows that came too late, and were dropped, written to the dead letters, or given out of order by over",
        by_subtask=True,
        goes_back=True,
    ),
    KnownMetric(
        "accumulateBusyTimeMs",
        "counter",
        "holdfast_operator_busy_seconds_total",
        "Time for which operators worked on rows; its growth by the time is the busy share",
        scale=MILLISECONDS,
        by_subtask=True,
    ),
    KnownMetric("exchangeMemoryBytes", "gauge", "holdfast_exchange_memory_bytes", "Exchanged rows in memory"),
    KnownMetric("exchangeSpilledBytes", "gauge", "holdfast_exchange_spilled_bytes", "Exchanged rows in local files"),
    KnownMetric("processMemoryBytes", "gauge", "holdfast_process_memory_bytes", "Memory of TaskManagers' processes"),
    KnownMetric(
        "processObjects", "gauge", "holdfast_process_objects", "Python's small pieces of memory in use in TaskManagers"
    ),
    KnownMetric(
        "lastCommittedBatch", "gauge", "holdfast_last_committed_batch", "Number of the last batch committed", "max"
    ),
    KnownMetric(
        "numberOfUploadRequests", "counter", "holdfast_uploads_total", "Objects to be stored, of logs and tables"
    ),
    KnownMetric(
        "numberOfUploadFailures", "counter", "holdfast_upload_failures_total", "Objects for which all attempts failed"
    ),
    KnownMetric(
        "hedgedUploads", "counter", "holdfast_hedged_uploads_total", "Objects with a second attempt beside a slow one"
    ),
    KnownMetric(
        "curedUploadErrors", "counter", "holdfast_cured_upload_errors_total", "Failed attempts at objects stored later"
    ),
    *_of_lane("", "objects of logs and manifests"),
    *_of_lane("materialization", "objects of materialized tables"),
    *_of_lane("merge", "objects of merged logs"),
    *_of_lane("gathered", "gathered objects of checkpoints"),
    *_of_lane("committables", "objects of committables alone"),
    *_of_lane("record", "records of checkpoints"),
    *_of_lane("source", "objects of sources"),
    KnownMetric("storePuts", "counter", "holdfast_store_puts_total", "Requests to the storage that store an object"),
    KnownMetric("storePutBytes", "counter", "holdfast_store_put_bytes_total", "Bytes of these objects"),
    KnownMetric("storeGets", "counter", "holdfast_store_gets_total", "Requests to the storage that read"),
    KnownMetric("storeGetBytes", "counter", "holdfast_store_get_bytes_total", "Bytes that they read"),
    KnownMetric("storeLists", "counter", "holdfast_store_lists_total", "Requests to the storage that list objects"),
    KnownMetric("storeDeletes", "counter", "holdfast_store_deletes_total", "Requests to the storage that delete"),
    KnownMetric("senderPuts", "counter", "holdfast_sender_puts_total", "Requests of senders that store an object"),
    KnownMetric("senderPutBytes", "counter", "holdfast_sender_put_bytes_total", "Bytes of these objects"),
    KnownMetric("uploadBatchSizes", "histogram", "holdfast_upload_batch_pieces", "Pieces of logs that share an object"),
    KnownMetric(
        "attemptsPerUpload", "histogram", "holdfast_upload_winning_attempt", "Number of the attempt that succeeded"
    ),
    KnownMetric(
        "totalAttemptsPerUpload", "histogram", "holdfast_upload_attempts", "Attempts at an object, including hedges"
    ),
    KnownMetric(
        "uploadTargetSize",
        "gauge",
        "holdfast_upload_target_size_bytes",
        "Size at which a large log is split that a checkpoint waits for",
        "mean",
    ),
    KnownMetric("uploadQueueSize", "gauge", "holdfast_upload_queue_requests", "Upload requests that wait or run"),
    KnownMetric("uploadBytesInFlight", "gauge", "holdfast_upload_in_flight_bytes", "Bytes on their way to the store"),
    KnownMetric(
        "uploadBackPressured", "gauge", "holdfast_upload_back_pressured", "TaskManagers whose batches wait for uploads"
    ),
    KnownMetric(
        "uploadBackPressuredTimeMs",
        "counter",
        "holdfast_upload_back_pressured_seconds_total",
        "Time for which batches had to wait for uploads",
        scale=MILLISECONDS,
    ),
    KnownMetric("queuedDeletes", "gauge", "holdfast_queued_deletes", "Objects that TaskManagers have yet to delete"),
    KnownMetric(
        "startedMaterialization", "counter", "holdfast_materializations_started_total", "Materializations begun"
    ),
    KnownMetric(
        "completedMaterialization", "counter", "holdfast_materializations_completed_total", "Materializations completed"
    ),
    KnownMetric(
        "failedMaterialization", "counter", "holdfast_materializations_failed_total", "Materializations failed"
    ),
    KnownMetric(
        "lastDurationOfMaterialization",
        "gauge",
        "holdfast_last_materialization_duration_seconds",
        "Duration of the last completed materialization",
        "max",
        MILLISECONDS,
        by_subtask=True,
    ),
    KnownMetric(
        "lastFullSizeOfMaterialization",
        "gauge",
        "holdfast_materialized_bytes",
        "Size of the materialized tables in the last checkpoint",
        by_subtask=True,
    ),
    KnownMetric(
        "lastIncSizeOfMaterialization",
        "gauge",
        "holdfast_materialized_new_bytes",
        "Size of the materialized tables that the last checkpoint was the first to refer to",
        by_subtask=True,
    ),
    KnownMetric(
        "lastFullSizeOfNonMaterialization",
        "gauge",
        "holdfast_log_bytes",
        "Size of the logs in the last checkpoint",
        by_subtask=True,
    ),
    KnownMetric(
        "lastIncSizeOfNonMaterialization",
        "gauge",
        "holdfast_log_new_bytes",
        "Size of the logs that the last checkpoint was the first to refer to",
        by_subtask=True,
    ),
    KnownMetric(
        "recoveryMs",
        "gauge",
        "holdfast_last_recovery_duration_seconds",
        "Time until the last deployment had restored all tables",
        "max",
        MILLISECONDS,
    ),
    KnownMetric(
        "recoveryBytesFromStore",
        "gauge",
        "holdfast_last_recovery_store_bytes",
        "Bytes that the last recovery read from the store",
    ),
    KnownMetric(
        "recoveryBytesFromLocal",
        "gauge",
        "holdfast_last_recovery_local_bytes",
        "Bytes that the last recovery read from local copies",
    ),
    KnownMetric("recoveryObjects", "gauge", "holdfast_last_recovery_objects", "Objects that the last recovery read"),
    KnownMetric(
        "localCopiesBytes", "gauge", "holdfast_local_copies_bytes", "Size of the local copies of uploaded objects"
    ),
)

OF_THE_JOB = (
    KnownMetric(
        "numberOfCompletedCheckpoints", "counter", "holdfast_checkpoints_completed_total", "Checkpoints completed"
    ),
    KnownMetric(
        "numberOfFailedCheckpoints",
        "counter",
        "holdfast_checkpoints_failed_total",
        "Checkpoints aborted and counted as failed: timed out, declined hard, not recorded",
    ),
    KnownMetric(
        "numberOfAbortedCheckpoints",
        "counter",
        "holdfast_checkpoints_aborted_total",
        "Checkpoints aborted but not counted as failed: subsumed, declined softly, ended by a restart",
    ),
    KnownMetric(
        "numberOfRefusedCheckpoints",
        "counter",
        "holdfast_checkpoints_refused_total",
        "Checkpoints postponed because a function, source or sink refused; hard refusals are also counted as failed",
    ),
    KnownMetric(
        "lastCheckpointDuration",
        "gauge",
        "holdfast_last_checkpoint_duration_seconds",
        "Time from the cut of the last checkpoint to its record",
        scale=MILLISECONDS,
    ),
    KnownMetric(
        "lastCheckpointStartDelay",
        "gauge",
        "holdfast_last_checkpoint_start_delay_seconds",
        "Time from the cut of the last checkpoint until the last TaskManager began with it",
        scale=MILLISECONDS,
    ),
    KnownMetric(
        "lastCheckpointSyncDuration",
        "gauge",
        "holdfast_last_checkpoint_sync_seconds",
        "Duration of its synchronous part in the slowest TaskManager",
        scale=MILLISECONDS,
    ),
    KnownMetric(
        "lastCheckpointAsyncDuration",
        "gauge",
        "holdfast_last_checkpoint_async_seconds",
        "Duration of its asynchronous part in the slowest TaskManager",
        scale=MILLISECONDS,
    ),
    KnownMetric(
        "lastCheckpointSize",
        "gauge",
        "holdfast_last_checkpoint_size_bytes",
        "Bytes stored for the last checkpoint, without manifests",
    ),
    KnownMetric(
        "lastCheckpointFullSize",
        "gauge",
        "holdfast_last_checkpoint_full_size_bytes",
        "Bytes of all state that the last checkpoint refers to",
    ),
    KnownMetric(
        "checkpointDurations",
        "histogram",
        "holdfast_checkpoint_duration_seconds",
        "Time from the cut of each checkpoint to its record",
        scale=MILLISECONDS,
    ),
    KnownMetric("numBatches", "counter", "holdfast_batches_total", "Batches committed"),
    KnownMetric("numInputRows", "counter", "holdfast_input_rows_total", "Rows that sources gave to committed batches"),
    KnownMetric("badRows", "counter", "holdfast_bad_rows_total", "Rows written to the dead letters"),
    KnownMetric(
        "batchDurations",
        "histogram",
        "holdfast_batch_duration_seconds",
        "Time from the plan of a batch to its commit",
        scale=MILLISECONDS,
    ),
    KnownMetric("numRestarts", "counter", "holdfast_restarts_total", "Returns to a checkpoint within this query"),
    KnownMetric(
        "outageMs",
        "gauge",
        "holdfast_outage_seconds",
        "Time for which a step has been waiting for a store or disk that is unavailable; 0: no step waits",
        scale=MILLISECONDS,
    ),
    KnownMetric(
        "numSplitFailures", "counter", "holdfast_split_failures_total", "Failed attempts at splits, each counted"
    ),
    KnownMetric("failingSplits", "gauge", "holdfast_failing_splits", "Splits whose last attempt failed"),
    KnownMetric("parkedSplits", "gauge", "holdfast_parked_splits", "Splits left out because they kept failing"),
    KnownMetric("lostRows", "counter", "holdfast_lost_rows_total", "Rows lost with on_loss='drop' in this query"),
    KnownMetric(
        "standbyTaskManagers", "gauge", "holdfast_standby_task_managers", "TaskManagers that stand by, without a place"
    ),
    KnownMetric(
        "followedPlaces", "gauge", "holdfast_followed_places", "Places whose state a standby has (standby_state)"
    ),
    KnownMetric(
        "followerCheckpointsBehind",
        "gauge",
        "holdfast_follower_checkpoints_behind",
        "Checkpoints that the standby furthest behind has yet to apply",
    ),
    KnownMetric(
        "followerBytesBehind",
        "gauge",
        "holdfast_follower_bytes_behind",
        "New bytes of the checkpoints that the standby furthest behind has yet to apply",
    ),
    KnownMetric(
        "followerMsBehind",
        "gauge",
        "holdfast_follower_behind_seconds",
        "Time since the first checkpoint that the standby furthest behind has yet to apply",
        scale=MILLISECONDS,
    ),
    KnownMetric("unpublishedGroups", "gauge", "holdfast_unpublished_groups", "Recorded groups not yet published"),
)

KNOWN = {metric.name: metric for metric in (*OF_TASK_MANAGERS, *OF_THE_JOB)}
