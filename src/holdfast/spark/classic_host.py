"""A classic session as the host: Spark jobs on its SparkContext, in this process's own Spark driver."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from holdfast.printable import logger
from holdfast.sources.spark_stream.epoch_calls import CallsHere, EpochCalls
from holdfast.spark import session as of_session
from holdfast.spark.classic_plans import check_plans
from holdfast.spark.host import Shipped, SparkJob, TaskBody
from holdfast.spark.slots import executors_of

log = logger(__name__)

ASKING = "holdfast-slots"
"""The group of tasks that ask for slots."""


class ClassicHost:
    """Implements `host.SparkHost`."""

    def __init__(self, spark: SparkSession) -> None:
        of_session.use_drivers_python(spark)
        of_session.use_warm_daemon(spark)
        of_session.end_progress_bar(spark)
        self.session = of_session.clone_session(spark)
        self._context = spark.sparkContext
        self.application: str = self._context.applicationId
        self.master: str = self._context.master
        self._is_local = self.master.partition("[")[0] == "local"

    def setting(self, name: str) -> str | None:
        value: str | None = of_session.spark_settings(self.session).get(name)
        return value

    def address(self) -> str:
        return of_session.driver_host(self.session)

    def bind_address(self) -> str:
        return self.setting("spark.driver.bindAddress") or ""

    def has_ended(self) -> bool:
        return of_session.has_ended(self.session)

    def slots(self) -> int:
        java = self._context._jsc.sc()
        return int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))

    @contextmanager
    def asking(self, slots: int, seconds: float) -> Iterator[None]:
        def ask() -> None:
            try:
                with self.described(SparkJob(ASKING, f"holdfast: asks for {slots} slots")):
                    self.run([b""] * slots, _Waiting(seconds))
            except Exception as error:  # cancelled once the slots are there
                log.debug("the request for slots ended: %s", error)

        thread = of_session.new_thread(ask, "holdfast-slots")
        thread.start()
        try:
            yield
        finally:
            self.cancel(ASKING)
            thread.join(seconds)

    def ask_for(self, slots: int) -> None:
        missing = executors_of(self, slots - self.slots())
        of_session.new_thread(partial(of_session.ask_for_executors, self.session, missing), "holdfast-ask").start()

    def executors(self) -> frozenset[str] | None:
        """Return the host and port of each executor's block manager. A restarted executor has another port."""
        return frozenset(self._context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ").split())

    def ship(self, data: bytes) -> Shipped:
        shipped: Shipped = self._context.broadcast(data)
        return shipped

    def described(self, job: SparkJob) -> AbstractContextManager[None]:
        return of_session.described(self.session, job)

    def run(self, tasks: Sequence[bytes], body: TaskBody) -> list[bytes]:
        def each(given: Iterable[bytes]) -> Iterator[bytes]:  # sent by value, since the probe runs without Holdfast
            for task in given:
                yield from body(task)

        made: list[bytes] = self._context.parallelize(tasks, max(1, len(tasks))).mapPartitions(each).collect()
        return made

    def has_begun(self, group: str) -> bool:
        return bool(of_session.jobs_of_group(self.session, group))

    def registered(self, group: str) -> None:
        """Do nothing: Spark counts its slots itself."""

    def failure(self, group: str) -> str | None:
        return of_session.failed_attempt(self.session, group)

    def leaving(self) -> dict[str, str]:
        """Return Spark's message about each executor that is about to be removed, by the executor's id."""
        return {} if self._is_local else of_session.leaving_executors(self.session)

    def executors_of(self, group: str) -> frozenset[str]:
        """Return the ids of the executors that run tasks of that group."""
        return of_session.executors_of(self.session, group)

    def cancel(self, group: str) -> None:
        of_session.cancel_group(self.session, group)

    def lanes(self, count: int) -> DataFrame:
        """Spark does not know the size of this DataFrame and assumes that it is huge, so a join broadcasts the other
        side, and never the stream."""
        rows = self.session.range(0, count, 1, count)
        frame = self.session._jsparkSession.createDataFrame(rows._jdf.toDF().javaRDD(), rows._jdf.schema())
        return DataFrame(frame, self.session)

    def own(self, rows: DataFrame) -> DataFrame:
        return rows

    def check_transform(self, name: str, stream: DataFrame, rows: DataFrame) -> None:
        check_plans(name, stream, rows)

    def epoch_calls(self) -> EpochCalls:
        return CallsHere()

    def close(self) -> None:
        """Do nothing: the session has no resources of its own in Spark."""


class _Waiting:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, _: bytes) -> Iterator[bytes]:
        time.sleep(self._seconds)
        return iter(())
