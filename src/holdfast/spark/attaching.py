"""The way back to a job whose JobMaster runs in the cluster, from a program that does not have the job's code."""

import time
from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.formats.leader import LeaderState, StoredBeat
from holdfast.hidden import hide_url
from holdfast.ids import Epoch
from holdfast.leadership.newest import newest_beat
from holdfast.printable import logger
from holdfast.query import Query
from holdfast.remote_query import RemoteQuery
from holdfast.settings import FailoverConfig
from holdfast.spark.cluster_link import ClusterLink, DriverChannel
from holdfast.spark.connect_retries import end_soon
from holdfast.spark.session import is_connect
from holdfast.spark.session_mail import same_session
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store

log = logger(__name__)

SUCCESSOR_S_MAX = 120.0
"""Bound in seconds on the wait for another JobMaster after the end of one. The program that started the job, or a
driver in waiting, needs about half a minute to replace it."""
POLL_S = 1.0
LEADING_S_MAX = 30.0
"""Bound in seconds on `attach`'s wait for a JobMaster that has taken over, for its first heartbeat and its start."""
STARTING_S_MAX = 600.0
"""Bound in seconds on a handle's wait for the start of the next JobMaster, once that one leads: it may have much state
to restore, or wait for executors."""
_LED_ELSEWHERE = "is led by a program of its own"
_SETTLED = (_LED_ELSEWHERE, f"({LeaderState.STOPPED.value})", f"({LeaderState.COMPLETE.value})")
"""Words of the answers after which no other JobMaster is to be expected."""


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
    end_soon(session)
    store = RetryingStore(open_store(storage, dict(storage_options or {}), make=False))
    limits = FailoverConfig()

    def successor(lost: DriverChannel) -> DriverChannel:
        return next_channel(store, lost)

    channel = _newest_channel(store, session, Epoch(0), LEADING_S_MAX, LEADING_S_MAX)
    return RemoteQuery(ClusterLink(channel, successor, limits.losses_max, limits.losses_window_s))


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


def next_channel(store: ObjectStore, lost: DriverChannel) -> DriverChannel:
    """Wait for the JobMaster that replaces one that was lost. Errors are tried again until the end of the wait: the
    storage or the server may be away, or the next JobMaster may be lost as well. Answers that stay as they are end it.
    """
    leads_s = time.monotonic() + SUCCESSOR_S_MAX
    starts_s = leads_s + STARTING_S_MAX
    while True:
        now_s = time.monotonic()
        try:
            return _newest_channel(
                store, lost.session, lost.started.epoch, max(0.0, leads_s - now_s), max(0.0, starts_s - now_s)
            )
        except Exception as error:
            if time.monotonic() >= leads_s or any(words in str(error) for words in _SETTLED):
                raise
            log.info("the next JobMaster is looked for again: %s", str(error)[:500])
        time.sleep(POLL_S)


def _newest_channel(
    store: ObjectStore, spark: Any, after: Epoch, wait_s_max: float, start_s_max: float
) -> DriverChannel:
    """Return the channel to the JobMaster that leads, with an epoch `after` a lost one if there soon is one. Raises
    `HoldfastError` if none leads in the cluster."""
    epoch, beat = _beat_after(store, after, wait_s_max)
    where = hide_url(store.url)
    if epoch == Epoch(0):
        raise HoldfastError(f"no job has run on {where} yet")
    if beat is None or beat.state is not LeaderState.LEADS:
        how = "without a word" if beat is None else beat.state.value
        raise HoldfastError(f"the job on {where} does not run: its last start has ended ({how}); start it again")
    if not beat.session:
        raise HoldfastError(
            f"the job on {where} {_LED_ELSEWHERE}, not in the cluster: ask there. Jobs that were started "
            "with Job(driver='cluster') can be attached to"
        )
    channel = DriverChannel(same_session(spark, beat.session))
    try:
        _await_start(channel, where, start_s_max)
    except BaseException:
        channel.close()
        raise
    return channel


def _beat_after(store: ObjectStore, after: Epoch, wait_s_max: float) -> tuple[Epoch, StoredBeat | None]:
    """Wait for an epoch `after` another, and for its first heartbeat, which is written later than its takeover."""
    until_s = time.monotonic() + wait_s_max
    while True:
        epoch, beat = newest_beat(store)
        if epoch == Epoch(0) or (epoch > after and beat is not None) or time.monotonic() >= until_s:
            return epoch, beat
        time.sleep(POLL_S)


def _await_start(channel: DriverChannel, where: str, wait_s_max: float) -> None:
    until_s = time.monotonic() + wait_s_max
    while channel.is_alive():
        if channel.has_started():
            return
        if time.monotonic() >= until_s:
            raise HoldfastError(
                f"the JobMaster of the job on {where} runs, and has not started the job within {wait_s_max:.0f} s "
                f"({channel.said() or 'it has said nothing yet'}): attach again later"
            )
        time.sleep(POLL_S)
    raise HoldfastError(
        f"the JobMaster of the job on {where} is lost, or on another Spark Connect server, or of another user: start "
        "the job again; it goes on from its last checkpoint"
    )
