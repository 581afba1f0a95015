"""Start of a job whose JobMaster runs in the cluster, `Job(driver="cluster")`, and the way of this program to it.

    start ──► a clone of the session hosts a streaming query, whose body is the JobMaster (`cluster_driver`)
    watch ──► the JobMaster's last word ──► the query has ended
         └──► the streaming query ended without it ──► the JobMaster is started again, as the successor of its epoch

A program that goes away, and comes back, finds the hosting session in the heartbeat of the leader (`attach`). It does
not have the job's code, so it cannot start the JobMaster again: it waits for another one.
"""

import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, JobRefused
from holdfast.ids import Epoch
from holdfast.leadership.newest import newest_beat
from holdfast.printable import logger
from holdfast.query_calls import error_of
from holdfast.remote_query import RemoteQuery
from holdfast.settings import QueryTrigger
from holdfast.sinks.memory import MemorySink
from holdfast.sources.spark_stream.epoch_calls import started_in_time
from holdfast.sources.spark_stream.stream_source import StreamingDataFrameSource
from holdfast.spark.attaching import next_channel
from holdfast.spark.cluster_driver import lead, packed
from holdfast.spark.cluster_link import ClusterLink, DriverChannel, StartFailed
from holdfast.spark.connect_retries import end_soon
from holdfast.spark.session_mail import SessionMail
from holdfast.spark.shipping import shipped_by_value
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

if TYPE_CHECKING:
    from holdfast.job import Job
    from holdfast.spark.start import Say

log = logger(__name__)

START_S_MAX = 600.0
"""Bound in seconds on a start in the cluster, which may wait for executors."""
POLL_S = 0.25


def start_in_cluster(job: "Job", trigger: QueryTrigger, say: "Say") -> RemoteQuery:
    """Start a job's JobMaster beside Spark's driver. Raises the errors of a start there."""
    _check(job)
    end_soon(job.spark)
    first, again = _packed(job, trigger), _packed(_without_drop(job), trigger)
    say("starting the JobMaster in the cluster")
    channel = _hosted(job.spark, first, None, say)

    link = ClusterLink(channel, partial(_successor, job, again), job.failover.losses_max, job.failover.losses_window_s)
    log.info("%s: its JobMaster runs in the cluster, and goes on without this program; hf.attach finds it", job.name)
    return RemoteQuery(link)


def _successor(job: "Job", sent: bytes, lost: DriverChannel) -> DriverChannel:
    """Start the JobMaster again, or find another that has taken over meanwhile. Raises `StartFailed`."""
    epoch = lost.started.epoch
    try:
        return _hosted(lost.session, sent, epoch or None, lambda step: None)
    except Exception as error:
        # Without an epoch the driver has only waited: the one that leads is not its successor.
        faster = _store_of_faster(job, lost) if epoch else None
        if faster is None:
            raise StartFailed(str(error)) from error
        return next_channel(faster, lost)


def _store_of_faster(job: "Job", lost: DriverChannel) -> ObjectStore | None:
    """Return the job's storage if another driver has taken over already. None: it has not, or this program, which
    needs no storage otherwise, does not reach it."""
    try:
        store = RetryingStore(open_store(job.storage, job.storage_options, make=False))
        return store if newest_beat(store)[0] > lost.started.epoch else None
    except Exception as error:
        log.info("%s: whether another driver leads is not known here: %s", job.name, error)
        return None


def _check(job: "Job") -> None:
    kept = [name for name, declared in job.declared.sinks.items() if isinstance(declared.sink, MemorySink)]
    if kept:
        raise JobRefused(
            f"sink {kept[0]!r}: a MemorySink keeps rows in the process of the JobMaster, which driver='cluster' hosts "
            "in the cluster, where this program does not see them; write to another sink, for instance ParquetSink"
        )
    for name, source in job.declared.sources.items():
        if isinstance(source, StreamingDataFrameSource):
            raise JobRefused(
                f"source {name!r}: a streaming DataFrame cannot be read with driver='cluster', where Spark hosts the "
                "JobMaster in a streaming query; leave driver out, or read with one of Holdfast's own sources"
            )


def _without_drop(job: "Job") -> "Job":
    """Return the job for a second start, which must not drop the state that the first one made, nor forget what was
    changed while it ran."""
    other = copy(job)
    other.starting = replace(job.starting, drop_state=(), forget_updates=False)
    return other


def _packed(job: "Job", trigger: QueryTrigger) -> bytes:
    try:
        with shipped_by_value(job.ship_modules):
            return packed(job, trigger)
    except Exception as error:
        raise JobRefused(
            f"job {job.name!r} cannot be sent to the cluster: {type(error).__name__}: {error}. A function may not hold "
            "open files, locks or connections; open them in open(ctx)"
        ) from error


def _hosted(spark: Any, sent: bytes, leader: Epoch | None, say: "Say") -> DriverChannel:
    """Host a JobMaster in a clone of the session `spark`, and wait until it has started its job."""
    session = spark.cloneSession()
    mail = SessionMail(session)
    mail.clear()
    try:
        hosting = _host(session, partial(lead, sent, session.session_id, leader))
        return _await_start(DriverChannel(session), hosting, say)
    except BaseException:
        session.client.release_session()
        session.client.close()
        raise


def _host(session: Any, body: Callable[[Any, int], None]) -> Any:
    """Start the streaming query with that body. Raises `JobRefused`."""

    def start() -> Any:
        ticks = session.readStream.format("rate").option("rowsPerSecond", 1).load()
        return ticks.writeStream.foreachBatch(body).trigger(availableNow=True).start()

    try:
        return started_in_time(start)
    except Exception as error:
        raise JobRefused(
            f"the JobMaster's process could not be started beside Spark's driver: {_last_line(str(error))}. The "
            "Python of Spark's driver needs Holdfast of this version, with the extra `connect`"
        ) from error


def _await_start(channel: DriverChannel, hosting: Any, say: "Say") -> DriverChannel:
    until_s = time.monotonic() + START_S_MAX
    while time.monotonic() < until_s:
        is_active = bool(hosting.isActive)  # before the look for words, so that none is missed
        if (said := channel.said()) is not None:
            say(said)
        if (word := channel.last_word()) is not None and not channel.has_started():
            raise error_of(word.failure) if word.failure is not None else HoldfastError("the job ended as it started")
        if channel.has_started():
            return channel
        if not is_active:
            error = hosting.exception()
            raise HoldfastError(f"the JobMaster's process ended while the job started: {_last_line(str(error))}")
        time.sleep(POLL_S)
    hosting.stop()
    raise HoldfastError(f"the job did not start in the cluster within {START_S_MAX:g} s")


def _last_line(text: str) -> str:
    """Return the last line of an error's text in which Python names the error; Java's traces follow it."""
    before = text.partition("JVM stacktrace")[0]
    lines = [line.strip() for line in before.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    named = [line for line in lines if "Error" in line.partition(":")[0]]
    return (named or lines or ["no reason is known"])[-1][:500]
