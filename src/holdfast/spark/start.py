"""Start of a job on Spark: it analyses the job, checks the cluster, and hands over to `jobmaster.starting.start`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import SparkSession

from holdfast.checkpoint.updates import DeclaredLayout
from holdfast.clock import SystemClock
from holdfast.code_shipping import pickled
from holdfast.errors import JobRefused
from holdfast.graph.build import build_program
from holdfast.graph.program import Program
from holdfast.graph.regions import explained
from holdfast.job_settings import other_storages, settings_of
from holdfast.jobmaster.batches.deployment import Layout
from holdfast.jobmaster.program_end import end_with_program, stop_with_program
from holdfast.jobmaster.starting.from_savepoint import savepoint_of
from holdfast.jobmaster.starting.start import (
    ClusterContext,
    Start,
    open_stored_job,
    recorded_layout,
    start_job,
    task_manager_settings,
)
from holdfast.journal.other_storages import check_all_reachable, open_job_store, opened_with_options
from holdfast.ports import Endpoint
from holdfast.printable import logger
from holdfast.protocol.taskmanager import JobMasterGateway
from holdfast.query import Query
from holdfast.settings import QueryTrigger
from holdfast.sources.dataframe import DataFrameSource
from holdfast.sources.spark_stream.stream_source import StreamingDataFrameSource
from holdfast.spark.advice import advice
from holdfast.spark.claims import SHARED, Claim, SlotClaims, claims_of
from holdfast.spark.cluster import SparkCluster
from holdfast.spark.host import SparkHost
from holdfast.spark.hosts import has_ended, open_host
from holdfast.spark.memory import check_memory
from holdfast.spark.probing import Beside, begin_probe, facts_of, is_there
from holdfast.spark.savepoint_copies import copy_on_executors
from holdfast.spark.shipping import shipped_by_value
from holdfast.spark.slots import await_slots, resident_senders, slots_beside_others
from holdfast.spark.tasks import Shipment
from holdfast.spark.transforms import analyse_transform
from holdfast.standby_query import wait_to_lead
from holdfast.storage import names
from holdfast.storage.reach import LOCAL
from holdfast.storage.retrying import RetryingStore

if TYPE_CHECKING:
    from holdfast.job import Job
    from holdfast.spark.cluster_driver import InCluster

log = logger(__name__)

INTERRUPTED = (
    "interrupted by Ctrl-C while it started: the processes that it had begun are ended, and nothing is lost. Start the "
    "program again on the same storage: the job goes on from its last checkpoint, if it has one"
)
MAKE_ANOTHER = "Make a new session, and a Job on it with the same storage"


Say = Callable[[str], None]
"""A function that tells a person at which step a start is."""


def start_on_spark(
    job: "Job", trigger: QueryTrigger, say: Say = lambda step: None, hosted: "InCluster | None" = None
) -> Query:
    """Start a job on its Spark session. `hosted`: this process is beside Spark's driver, which hosts it.

    Raises `JobRefused` and the other errors of `Job.start`.
    """
    if job.spark is None:
        raise JobRefused("this job was made without a Spark session; pass a session to Job(spark, ...)")
    if has_ended(job.spark):
        raise JobRefused(f"job {job.name!r}: its Spark session was stopped before the start. {MAKE_ANOTHER}")
    try:
        if job.driver == "cluster" and hosted is None:
            from holdfast.spark.cluster_start import start_in_cluster  # needs the extra `connect`

            return start_in_cluster(job, trigger, say)
        return _start(job, job.spark, trigger, say, hosted)
    except KeyboardInterrupt:
        log.warning("%s: %s", job.name, INTERRUPTED)
        raise
    except Exception as error:
        if not has_ended(job.spark):
            raise
        raise JobRefused(f"job {job.name!r}: its Spark session was stopped while it started. {MAKE_ANOTHER}") from error


def _start(job: "Job", spark: SparkSession, trigger: QueryTrigger, say: Say, hosted: "InCluster | None") -> Query:
    host = open_host(spark, job.port_range, beside_driver=hosted is not None)
    try:
        return _start_on(host, job, trigger, say, hosted)
    except BaseException:
        host.close()
        raise


def _start_on(host: SparkHost, job: "Job", trigger: QueryTrigger, say: Say, hosted: "InCluster | None") -> Query:
    storages = other_storages(job)
    is_here = all(url.startswith(LOCAL) for url in (job.storage, *(site.url for site in storages.sites())))
    check = partial(check_all_reachable, job.storage, job.storage_options, storages)
    reaching = Beside(None if is_here else check)
    say("analysing the job")
    program = _program(job, host)
    if reaching.running:
        say("checking the storage")
    reaching.result()
    claims = claims_of(host.application)
    say("waiting for executors")
    recorded = recorded_layout(
        RetryingStore(open_job_store(job.storage, job.storage_options)),
        DeclaredLayout(job.task_managers, job.parallelism, job.senders),
        job.starting.forget_updates,
    )
    layout, claim, available = _layout(job, program, host, claims, recorded)
    try:
        found = _Slots(claims, claim, available)
        return _start_claimed(job, host, program, layout, trigger, found, say, hosted)
    except BaseException:
        claims.release(claim)
        raise


class _Slots(NamedTuple):
    """The slots that a start has found and claimed."""

    claims: SlotClaims
    claim: Claim
    available: int
    """The slots that Spark had when they were claimed. An executor that is lost afterwards is replaced."""

    @property
    def left(self) -> int:
        """Return the number of slots that TaskManagers leave. If it is 0, a short Spark job waits for a slot."""
        return max(1, self.available - self.claim.processes)


def _start_claimed(
    job: "Job",
    host: SparkHost,
    program: Program,
    layout: Layout,
    trigger: QueryTrigger,
    found: _Slots,
    say: Say,
    hosted: "InCluster | None",
) -> Query:
    check_memory(host, job.task_manager, layout.task_managers)
    shipped, facts = _ship(job, program)
    store = RetryingStore(open_job_store(job.storage, job.storage_options))
    storages = opened_with_options(store, job.storage_options, other_storages(job))
    tasks = partial(_slots_for_probes, job, host, found)
    tasks()  # also where nothing has to be probed: the executors may have been lost meanwhile
    probing = begin_probe(host, shipped, facts, store, (job.storage, job.storage_options), tasks, storages)
    if probing.running:
        say("starting Python on the executors, and probing them")
    if not is_there(store, names.job()):
        probing.result()  # a job that is refused leaves nothing in a new storage
    savepoint = savepoint_of(job.starting.start_from, job.starting.mode, job.storage_options)
    stored = open_stored_job(store, job.name, layout.parallelism, job.max_parallelism, savepoint)
    layout = replace(layout, max_parallelism=stored.max_parallelism)

    say("taking over the storage")
    settings = settings_of(job, layout, trigger)

    def cluster(place: ClusterContext, _: JobMasterGateway) -> SparkCluster:
        return _cluster(job, host, program, shipped, place, found)

    start = Start(
        settings,
        store,
        program,
        shipped,
        SystemClock(),
        cluster,
        Endpoint(host.address(), host.bind_address(), job.port_range),
        job.storage_options,
        job.starting.state_by_name(),
        savepoint,
        partial(copy_on_executors, host, str(job.starting.start_from), job.storage, job.storage_options),
        probing.result,
        beats=True,
        leader=hosted.leader if hosted is not None else None,
        session=hosted.session_id if hosted is not None else "",
        storages=other_storages(job),
    )
    if job.starting.standby:
        say("waiting for the end of the leader")
        waiting = wait_to_lead(start, stored, job.starting, end_with_program)
        stop_with_program(waiting)
        return waiting
    master = start_job(start, stored)
    end_with_program(master)
    return Query(master, on_end=lambda: None)


def explain_on_spark(job: "Job", spark: SparkSession) -> str:
    """Analyse a job as `start_on_spark` does, and describe it, without starting anything. Raises `JobRefused`."""
    host = open_host(spark)
    try:
        return explained(_program(job, host))
    finally:
        host.close()


def _program(job: "Job", host: SparkHost) -> Program:
    _bind_sources(job, host)
    with shipped_by_value(job.ship_modules):
        return build_program(
            job.declared, lambda fn, schema: analyse_transform(host, fn, schema), job.dead_letters, job.state
        )


def _bind_sources(job: "Job", host: SparkHost) -> None:
    for source in job.declared.sources.values():
        if isinstance(source, DataFrameSource):
            source.bind(host.session)
        elif isinstance(source, StreamingDataFrameSource):
            source.bind(job.storage, job.storage_options, host.epoch_calls)


def _layout(
    job: "Job", program: Program, host: SparkHost, claims: SlotClaims, recorded: DeclaredLayout
) -> tuple[Layout, Claim, int]:
    """Fit the job into the slots that other queries leave, and claim the slots for its `recorded` layout.

    Raises `JobRefused`.
    """
    task_managers = job.task_managers if program.operators else 0
    standby = job.standby_task_managers if task_managers else 0
    processes, senders = (recorded.task_managers if task_managers else 0) + standby, recorded.senders
    needed = claims.firm() + processes + max(1, senders or 0)
    asked = claims.held() + processes + (0 if senders == 0 else (senders or 1) + SHARED)
    available = slots_beside_others(host, needed, asked, claims.held())

    def senders_of(left: int) -> int:
        residents = resident_senders(senders, left, program)
        log.info("%s: %s", job.name, residents.reason)
        return residents.count

    is_here = host.master.partition("[")[0] == "local"
    wished = 0 if is_here else resident_senders(senders, (senders or 1) + SHARED, program).count
    claim = claims.claim(job.name, available, processes, senders, senders_of, wished)
    for line in advice(host.master, host.setting, processes, claim.wished):
        log.warning("%s: %s", job.name, line)
    parallelism = recorded.parallelism or max(task_managers, available - task_managers - standby)
    layout = Layout(parallelism, job.max_parallelism or 0, task_managers, standby, bool(standby and job.standby_state))
    return layout, claim, available


def _ship(job: "Job", program: Program) -> tuple[bytes, frozenset[str] | None]:
    """Pickle the program; return it with the names that executors need to have for it."""
    try:
        with shipped_by_value(job.ship_modules):
            shipped = bytes(pickled(program))
            return shipped, facts_of(shipped)
    except Exception as error:
        raise JobRefused(
            f"the job's functions cannot be sent to executors: {type(error).__name__}: {error}. A function may not "
            "hold open files, locks, connections or the Spark session; open them in open(ctx)"
        ) from error


def _slots_for_probes(job: "Job", host: SparkHost, found: _Slots) -> int:
    """Return the number of slots that no other query holds. Raises `JobRefused` if all executors were lost."""
    if not host.slots() and not await_slots(host, 1):
        raise JobRefused(
            f"job {job.name!r}: Spark had {found.available} slots and has none any more: its executors were lost. "
            "Look at the cluster manager's log, and start the job again once executors are there"
        )
    others = found.claims.held() - found.claim.total
    return max(1, host.slots() - others)


def _cluster(
    job: "Job", host: SparkHost, program: Program, shipped: bytes, place: ClusterContext, found: _Slots
) -> SparkCluster:
    shipment = Shipment(place.job.job_id, shipped, job.storage, job.storage_options, place.secret)
    task_manager = task_manager_settings(place, job.task_manager, job.storage, job.storage_options, job.port_range)
    return SparkCluster(
        host, job.name, program, shipment, task_manager, found.claim, found.claims, found.left, job.ship_modules
    )
