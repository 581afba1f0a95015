"""The JobMaster in the cluster: the body of a streaming query's `foreachBatch`, which runs beside Spark's driver.

    foreachBatch(lead) ──► the job arrives, and starts ──► answers calls in the mailbox ──► its last word, and the end

Spark Connect runs the body in a Python process of its own, with a session that is a clone of the hosting session. The
process lives as long as the hosting session does, whose mailbox it reads all the time, and does not need the program
that started it.
"""

import os
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import msgspec

from holdfast.code_shipping import pickled
from holdfast.errors import HoldfastError, QueryFailed
from holdfast.failure import failure_of
from holdfast.ids import Epoch
from holdfast.query import Query
from holdfast.query_calls import CAUSES_MAX, LastWord, QueryCall, QueryServant, StartedQuery
from holdfast.settings import QueryTrigger
from holdfast.spark.session_mail import ENDED, SAID, STARTED, MailServer, SessionMail
from holdfast.standby_query import StandbyQuery

if TYPE_CHECKING:
    from holdfast.job import Job

END_S_MAX = 10.0
"""Bound in seconds on the wait for calls that are being carried out when the query ends."""


class InCluster(NamedTuple):
    """Facts of a start that is hosted in the cluster: the session with its mailbox, and the epoch that it takes over
    from; None: any."""

    session_id: str
    leader: Epoch | None


class TravellingJob(NamedTuple):
    """A job on its way to the cluster. It is pickled with its functions, and only sent."""

    job: "Job"
    trigger: QueryTrigger
    modules: tuple[ModuleType, ...]
    plan_ids: int
    """The plans of its DataFrames have ids below this number, by which columns name them."""


class _Here(threading.local):
    session: Any = None


_here = _Here()


def _session_here() -> Any:
    """Return the session of the process in which a job arrives."""
    return _here.session


def packed(job: "Job", trigger: QueryTrigger) -> bytes:
    """Return a job as bytes. DataFrames in it belong to the session of the process that unpacks it."""
    from pyspark.sql.connect.plan import LogicalPlan
    from pyspark.sql.connect.session import SparkSession

    travelling = TravellingJob(job, trigger, job.ship_modules, LogicalPlan._fresh_plan_id())
    return pickled(travelling, {SparkSession: lambda _: (_session_here, ())})


def unpacked(data: bytes, session: Any) -> TravellingJob:
    """Return a job that was sent, on `session`."""
    from pyspark.sql.connect.plan import LogicalPlan

    _here.session = session
    try:
        found: TravellingJob = cloudpickle.loads(data)
    finally:
        _here.session = None
    with LogicalPlan._lock:
        LogicalPlan._nextPlanId = max(LogicalPlan._nextPlanId, found.plan_ids)
    for module in found.modules:
        sys.modules.setdefault(module.__name__, module)
    found.job.spark = session
    return found


def lead(sent: bytes, hosting: str, leader: Epoch | None, rows: Any, batch: int) -> None:
    """Lead the job that was sent until it ends. Errors of the job go to the mailbox of the session `hosting`."""
    mail = SessionMail(_session(hosting))
    word = LastWord()
    try:
        query = _started(sent, InCluster(hosting, leader), rows.sparkSession, mail)
        word = _served(query, mail)
    except BaseException as error:
        word = LastWord(failure_of(error, causes_max=CAUSES_MAX))
    mail.put(ENDED, msgspec.msgpack.encode(word))


def _session(session_id: str) -> Any:
    from pyspark.sql.connect.session import SparkSession

    return SparkSession(f"{os.environ['SPARK_CONNECT_LOCAL_URL']};session_id={session_id}")


def _started(sent: bytes, hosted: InCluster, session: Any, mail: SessionMail) -> Query:
    from holdfast.spark.start import start_on_spark

    mail.put(SAID, b"reading the job")
    try:
        job, trigger, *_ = unpacked(sent, session)
    except (ImportError, AttributeError) as error:
        raise HoldfastError(
            f"the job needs code that the Python of Spark's driver does not have: {error}. Install it there, or name "
            "its modules in Job(ship_modules=[…])"
        ) from error
    return start_on_spark(job, trigger, lambda step: mail.put(SAID, step.encode()), hosted)


def _served(query: Query, mail: SessionMail) -> LastWord:
    """Answer calls until the query has ended; return its last word."""
    servant = QueryServant(query)

    def answer(request: bytes) -> bytes:
        return servant.answer(QueryCall(*cloudpickle.loads(request)))

    mail.put(STARTED, msgspec.msgpack.encode(_facts(query)))
    server = MailServer(mail, answer)
    if isinstance(query, StandbyQuery) and query.await_lead():
        mail.put(STARTED, msgspec.msgpack.encode(_facts(query)))
    with suppress(QueryFailed):  # the last word tells
        query.awaitTermination()
    server.close(END_S_MAX)
    return servant.last_word()


def _facts(query: Query) -> StartedQuery:
    epoch = Epoch(0) if "standby" in query.status else query.view().epoch
    return StartedQuery(query.id, query.name, query.runId, epoch)
