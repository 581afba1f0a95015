"""The way back to a job whose JobMaster runs in the cluster, from a program that does not have the job's code."""

import time
from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.formats.leader import LeaderState
from holdfast.hidden import hide_url
from holdfast.ids import Epoch
from holdfast.leadership.newest import newest_beat
from holdfast.query import Query
from holdfast.remote_query import RemoteQuery
from holdfast.settings import FailoverConfig
from holdfast.spark.cluster_link import ClusterLink, DriverChannel
from holdfast.spark.session import is_connect
from holdfast.spark.session_mail import same_session
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

SUCCESSOR_S_MAX = 120.0
"""Bound in seconds on the wait for another JobMaster after the end of one. The program that started the job, or a
driver in waiting, needs about half a minute to replace it."""
POLL_S = 1.0
LEADING_S_MAX = 30.0
"""Bound in seconds on the wait for a JobMaster that has taken over, and has not started its job yet."""


def attach(storage: str, *, spark: Any = None, storage_options: Mapping[str, str] | None = None) -> Query:
    """Return the handle of a running job that was started with `Job(driver="cluster")`, in any program.

    Several programs may hold such a handle at once, and each may end without ending the job. If the JobMaster is lost,
    the handle waits up to two minutes for the next one: the job's code is only in the program that started the job.

    Parameters
    ----------
    storage
        URL of the job's storage, as in `Job(storage=…)`.
    spark
        A session of Spark Connect on the server, and of the user, that started the job. None: the active session.
    storage_options
        Options of the storage, as in `Job(storage_options=…)`.

    Raises
    ------
    HoldfastError
        The job does not run, or is led by a program outside the cluster.
    StorageError, CorruptObject
        The storage cannot be read.
    """
    session = _connect_session(spark)
    store = RetryingStore(open_store(storage, dict(storage_options or {}), make=False))
    limits = FailoverConfig()

    def successor(lost: DriverChannel) -> DriverChannel:
        return _next_channel(store, lost)

    link = ClusterLink(newest_channel(store, session), successor, limits.losses_max, limits.losses_window_s)
    return RemoteQuery(link)


def _connect_session(spark: Any) -> Any:
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession() if spark is None else spark
    if found is None:
        raise HoldfastError(
            "attach needs a session of Spark Connect on the server of the job: attach(storage, spark=…)"
        )
    if not is_connect(found):
        raise HoldfastError(
            "attach reaches a JobMaster in the cluster through Spark Connect; this session is classic, and a job on it "
            "is led by the program that started it: ask there, or use the control of its page (holdfast stop <url>)"
        )
    return found


def newest_channel(store: ObjectStore, spark: Any) -> DriverChannel:
    """Return the channel to the JobMaster that leads. Raises `HoldfastError` if there is none in the cluster."""
    epoch, beat = newest_beat(store)
    where = hide_url(store.url)
    if epoch == Epoch(0):
        raise HoldfastError(f"no job has run on {where} yet")
    if beat is None or beat.state is not LeaderState.LEADS:
        how = "without a word" if beat is None else beat.state.value
        raise HoldfastError(f"the job on {where} does not run: its last start has ended ({how}); start it again")
    if not beat.session:
        raise HoldfastError(
            f"the job on {where} is led by a program of its own, not in the cluster: ask there. Jobs that were started "
            "with Job(driver='cluster') can be attached to"
        )
    channel, until_s = DriverChannel(same_session(spark, beat.session)), time.monotonic() + LEADING_S_MAX
    while channel.is_alive() and time.monotonic() < until_s:
        if channel.has_started():
            return channel
        time.sleep(POLL_S)
    raise HoldfastError(
        f"the JobMaster of the job on {where} is lost, or on another Spark Connect server, or of another user: start "
        "the job again; it goes on from its last checkpoint"
    )


def _next_channel(store: ObjectStore, lost: DriverChannel) -> DriverChannel:
    """Wait for the JobMaster that replaces one that was lost."""
    until_s = time.monotonic() + SUCCESSOR_S_MAX
    while newest_beat(store)[0] <= lost.started.epoch and time.monotonic() < until_s:
        time.sleep(POLL_S)
    return newest_channel(store, lost.session)
