"""Run a job in this process, to its end or step by step, without Spark."""

from collections.abc import Callable
from typing import Unpack

from holdfast.clock import Clock, SystemClock
from holdfast.code_shipping import pickled
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.program import Program
from holdfast.job import Job
from holdfast.job_settings import other_storages, settings_of
from holdfast.jobmaster.batches.deployment import Layout
from holdfast.jobmaster.processes.cluster import Cluster
from holdfast.jobmaster.starting.from_savepoint import savepoint_of
from holdfast.jobmaster.starting.start import ClusterContext, Start, open_stored_job, start_job
from holdfast.journal.other_storages import check_all_reachable, routed
from holdfast.protocol.taskmanager import JobMasterGateway
from holdfast.query import Query
from holdfast.settings import QueryTrigger, available_now
from holdfast.standby_query import wait_to_lead
from holdfast.start_options import StartKeywords
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing.local import LocalCluster
from holdfast.testing.source import TestSource

MakeCluster = Callable[[Program, ObjectStore, ClusterContext, JobMasterGateway], Cluster]


def run(
    job: Job, *, store: ObjectStore | None = None, clock: Clock | None = None, **options: Unpack[StartKeywords]
) -> Query:
    """Run a job until everything that its sources have is processed and published. Raises `QueryFailed`.

    `options` are those of `job.start(…)`.

    A script that ends with `Eof(drain=True)` drains the job.
    """
    drain = any(isinstance(source, TestSource) and source.drains for source in job.declared.sources.values())
    query = start(job, available_now(drain=drain), store=store, clock=clock, **options)
    query.awaitTermination()
    return query


def start(
    job: Job,
    trigger: QueryTrigger,
    *,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    on_cluster: Callable[[LocalCluster], None] | None = None,
    **options: Unpack[StartKeywords],
) -> Query:
    """Start a job in this process. `options` are those of `job.start(…)`.

    `store` is used instead of the store that the job's URL names, without retries of its own; `clock` is used instead
    of the machine's clock.
    `on_cluster` is called with the cluster before anything runs on it: its `kill(n)` ends TaskManager n at any time.
    """
    used = clock or SystemClock()
    if store is None:
        check_all_reachable(job.storage, job.storage_options, other_storages(job))

    def local(program: Program, plain: ObjectStore, place: ClusterContext, gateway: JobMasterGateway) -> LocalCluster:
        made = LocalCluster(program, plain, place, gateway, used, job.task_manager)
        if on_cluster is not None:
            on_cluster(made)
        return made

    plain = routed(store or open_store(job.storage, job.storage_options), job.storage_options)
    return start_on(job, trigger, plain, used, local, options)


def start_on(
    job: Job,
    trigger: QueryTrigger,
    plain: ObjectStore,
    clock: Clock,
    cluster: MakeCluster,
    options: StartKeywords | None = None,
) -> Query:
    """Start a job on a cluster that `cluster` makes after the storage is taken over. `plain` does not retry."""
    trigger = job.checked(trigger, options or {})
    program = build_program(job.declared, without_spark, job.dead_letters, job.state)
    task_managers = job.task_managers if program.operators else 0
    parallelism = job.parallelism or max(1, task_managers)
    opened = RetryingStore(plain)
    savepoint = savepoint_of(job.starting.start_from, job.starting.mode, job.storage_options)
    stored = open_stored_job(opened, job.name, parallelism, job.max_parallelism, savepoint)
    standby = job.standby_task_managers if task_managers else 0
    layout = Layout(parallelism, stored.max_parallelism, task_managers, standby, bool(standby and job.standby_state))

    settings = settings_of(job, layout, trigger)

    def made(place: ClusterContext, gateway: JobMasterGateway) -> Cluster:
        return cluster(program, plain, place, gateway)

    shipped = pickled(program)
    start = Start(
        settings,
        opened,
        program,
        shipped,
        clock,
        made,
        None,
        job.storage_options,
        job.starting.state_by_name(),
        savepoint,
        beats=job.starting.standby,
        storages=other_storages(job),
    )
    if job.starting.standby:
        job.query = wait_to_lead(start, stored, job.starting, lambda master: None)
    else:
        job.query = Query(start_job(start, stored), on_end=lambda: None)
    return job.query
