"""Start of a job on any cluster: refuse known errors, take over the storage, make the JobMaster.

    open the job ─► check old state against new code ─► prepare sinks ─┬─► take over ─► check again ─► JobMaster
    check the cluster, in a thread of its own ─────────────────────────┘

The steps before the takeover do not disturb an older JobMaster on the same storage. A driver in waiting does these
steps when it begins to wait, and again when it takes over.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from holdfast.checkpoint.updates import DeclaredLayout, LiveSettings
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, JobRefused, ObjectNotFound, SettingsError, StorageError
from holdfast.formats.leader import LeaderState
from holdfast.graph.keygroups import default_max_parallelism
from holdfast.graph.program import DEAD_LETTERS, Program
from holdfast.graph.regions import regions_of
from holdfast.ids import Epoch, Incarnation, JournalNumber, ProcessId, Role
from holdfast.jobmaster.batches.deployer import MasterSettings, StartedJob
from holdfast.jobmaster.batches.deployment import Layout
from holdfast.jobmaster.master import JobMaster
from holdfast.jobmaster.processes.cluster import Cluster
from holdfast.jobmaster.server import JobMasterServer
from holdfast.jobmaster.starting.from_savepoint import (
    CopyBack,
    OpenedSavepoint,
    begin_from,
    check_storage,
    copy_here,
    number_of,
)
from holdfast.jobmaster.starting.going_back import agreed, chosen, go_back, goes_back, with_older
from holdfast.jobmaster.starting.identity import (
    check_dropped,
    check_identity,
    check_keys,
    check_names,
    without_dropped_output,
)
from holdfast.jobmaster.starting.set_back import check_not_set_back, epochs_above, last_numbers, pass_over
from holdfast.jobmaster.starting.unnamed import warn_unnamed
from holdfast.jobmaster.starting.warm import WarmProcesses
from holdfast.jobmaster.updating import settings_at_start
from holdfast.journal.codec import StoredJob
from holdfast.journal.fence import (
    TakenOver,
    find_base,
    list_journal,
    read_record,
    read_retained,
    take_over,
    take_over_from,
)
from holdfast.journal.job import check_job, open_job
from holdfast.journal.other_storages import claim, setting_of
from holdfast.journal.patience import back_off
from holdfast.journal.records import CheckpointRecord, Record
from holdfast.leadership.heartbeat import Heartbeat
from holdfast.ports import ANY, Endpoint, PortRange
from holdfast.printable import logger
from holdfast.protocol.taskmanager import JobMasterGateway
from holdfast.settings import TaskManagerConfig
from holdfast.sinks.base import Sink, SinkContext
from holdfast.sinks.dead_letters import DEAD_LETTER_SCHEMA
from holdfast.sinks.targets import refuse_shared_targets
from holdfast.storage.counted import Requests, counted, requests_of
from holdfast.storage.routing import NO_OTHERS, OtherStorages, options_of
from holdfast.storage.store import ObjectStore
from holdfast.stored_state.initial import InitialRows, initial_tables, store_initial
from holdfast.taskmanager.security import new_secret
from holdfast.taskmanager.settings import TaskManagerSettings, heartbeat_interval_s
from holdfast.ui.site import HttpUrls, serve_http

log = logger(__name__)

BEHIND_SEEN = 5
"""Looks in a row, some two seconds in all, that must show the journal behind its targets before a start is refused. A
higher value lets listings lag behind for longer, and refuses later."""


@dataclass(frozen=True)
class ClusterContext:
    """Facts for making a cluster: a job's start, and the JobMaster's address."""

    job: StoredJob
    epoch: Epoch
    secret: str
    job_master: str
    """Flight address of the JobMaster; empty if TaskManagers are in this process."""


def task_manager_settings(
    place: ClusterContext,
    config: TaskManagerConfig,
    storage_url: str,
    storage_options: Mapping[str, str] | None = None,
    port_range: PortRange = ANY,
) -> TaskManagerSettings:
    """Settings of all TaskManagers of a start; `process` is filled in when a TaskManager is started.

    `port_range` is the job's range, used if `config` has none.
    """
    return TaskManagerSettings(
        job_id=place.job.job_id,
        epoch=place.epoch,
        process=ProcessId(Role.TASK_MANAGER, -1, Incarnation(-1)),
        job_master=place.job_master,
        secret=place.secret,
        bind_host="",
        storage_url=storage_url,
        storage_options=dict(storage_options or {}),
        advertised_host=config.advertised_host,
        port_range=next((each for each in (config.port_range, port_range) if each != ANY), None),
        local_dir=config.local_dir,
        memory_bytes=config.memory_bytes,
        local_copies_bytes_max=config.local_copies_bytes_max,
        heartbeat_interval_s=heartbeat_interval_s(config.heartbeat_timeout_s),
    )


@dataclass(frozen=True)
class Start:
    """Parts of a job's start."""

    settings: MasterSettings
    store: ObjectStore
    program: Program
    shipped: bytes
    clock: Clock
    cluster: Callable[[ClusterContext, JobMasterGateway], Cluster]
    """Function that makes the cluster; its processes call the JobMaster that it is given."""
    endpoint: Endpoint | None
    """Address at which the JobMaster listens; None if TaskManagers are in this process."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the job's storage."""
    initial_state: Mapping[str, Mapping[str, pa.Table]] = field(default_factory=dict, repr=False)
    """Rows from which operators begin on a new storage, by operator and state."""
    savepoint: OpenedSavepoint | None = None
    """The savepoint from which the job starts."""
    copy_back: CopyBack = copy_here
    """Function that copies the savepoint's objects into the job's storage."""
    check_cluster: Callable[[], None] = lambda: None
    """Function that waits for checks of the cluster, which run beside those of the storage. It raises `JobRefused`."""
    beats: bool = False
    """True if drivers may wait for the end of this start: it then has a heartbeat."""
    storages: OtherStorages = NO_OTHERS
    """The storages besides the job's own in which the objects of this start lie."""
    leader: Epoch | None = None
    """The epoch that a driver in waiting takes over from. None: take over from any leader."""
    session: str = ""
    """The Spark Connect session through which programs reach this start, if it is hosted in the cluster."""
    warm: WarmProcesses | None = None
    """Processes that a driver in waiting has started beforehand."""

    def counted(self) -> "Start":
        """The same start, whose requests to its storage are counted from now on."""
        return replace(self, store=counted(self.store))

    @property
    def requests(self) -> Requests:
        """The requests since `counted`, and those that processes have reported."""
        return {name: count for name, count in requests_of(self.store).items() if count}


def open_stored_job(
    store: ObjectStore,
    name: str,
    parallelism: int,
    max_parallelism: int | None,
    savepoint: OpenedSavepoint | None = None,
) -> StoredJob:
    """Open the job in the storage, or create it in a new storage. Raises `JobRefused`."""
    if savepoint is not None:
        check_storage(store, savepoint, _newest_checkpoint(store)[1], max_parallelism)
        max_parallelism = savepoint.stored.job.max_parallelism
    wanted = max_parallelism or default_max_parallelism(parallelism)
    job = open_job(store, wanted, explicit=max_parallelism is not None, name=name)
    if parallelism > job.max_parallelism:
        raise JobRefused(
            f"parallelism={parallelism} is above the {job.max_parallelism} key groups that this storage was made with; "
            "set a lower parallelism, or start on a new storage with a higher max_parallelism"
        )
    return job


class Checked(NamedTuple):
    """Findings of a start before its takeover."""

    is_new: bool
    """True if no checkpoint was recorded yet."""
    initial: list[InitialRows]
    passed_over: JournalNumber


class Overtaken(HoldfastError):
    """The epoch from which a driver in waiting wanted to take over is not the newest, or its leader is alive."""


def check_start(start: Start, job: StoredJob) -> Checked:
    """Check the job against its storage and its targets. Raises the error that keeps it from running."""
    settings = start.settings
    check_names(start.program, start.store.url)
    check_keys(start.program)
    _check_regions(start)
    _check_folders(start)
    number, newest = _newest_checkpoint(start.store)
    check_job(start.store.url, job, newest)
    base = _chosen(start, number, newest)
    check_dropped(base, start.program, settings.drop_state)
    if base is not None:
        check_identity(base, start.program, settings.drop_state)
    _live_settings(start, base)
    warn_unnamed(settings.name, start.program)
    initial = _initial_rows(start, job, base)
    claim(start.store, job.job_id, start.storages)
    for site in start.storages.sites():
        log.info("%s: %s is %s", settings.name, setting_of(site), site.url)
    passed_over = _compared_with_targets(start, _prepare_sinks(start, job), number)
    start.check_cluster()
    return Checked(newest is None, initial, passed_over)


def _check_folders(start: Start) -> None:
    """Check that no two storages and sinks of the job share a folder. Raises `JobRefused`."""
    url, options = start.store.url, start.storage_options
    others = [(setting_of(site), site.url, options_of(site, url, options)) for site in start.storages.sites()]
    refuse_shared_targets(url, options, start.program.all_sinks, others)


def warm_processes(start: Start, job: StoredJob) -> WarmProcesses | None:
    """Start the processes of a driver in waiting; None where processes need no time to start."""
    if start.endpoint is None:
        return None
    secret = new_secret()

    def cluster(address: str, gateway: JobMasterGateway) -> Cluster:
        return start.cluster(ClusterContext(job, Epoch(0), secret, address), gateway)

    return WarmProcesses(start.settings, secret, start.endpoint, start.store, cluster)


def start_job(start: Start, job: StoredJob) -> JobMaster:
    """Start the job. An error that keeps it from running is raised before any state has changed."""
    start = start.counted()
    settings = start.settings
    checked = check_start(start, job)
    if start.savepoint is not None and checked.is_new:
        begin_from(start.store, start.savepoint, start.copy_back, job.job_id)
    for name, spec in start.program.operators.items():
        if spec.grows:
            log.warning("%s: operator %r: %s", settings.name, name, spec.grows)
    master: JobMaster | None = None
    closing = ExitStack()
    urls = serve_http(  # before the takeover, so that a taken port does not disturb an older JobMaster
        settings.http,
        lambda: None if master is None else master.view(),
        lambda: master,
        start.storage_options,
        start.endpoint,
        closing,
    )
    try:
        pass_over(start.store, checked.passed_over)
        master = _take_over(start, job, urls, closing, checked.initial)
        master.start()
        return master
    except BaseException:
        closing.close()
        raise


def _live_settings(start: Start, base: CheckpointRecord | None) -> LiveSettings:
    """Return the checkpoint settings of this start: the declared settings, overridden by the kept updates."""
    settings = start.settings
    return settings_at_start(
        settings.checkpoint,
        base,
        settings.forget_updates,
        bool(start.program.watermarks),
        settings.declared,
    )


def layout_at(start: Start, base: CheckpointRecord | None) -> Layout:
    """Return the layout with which the job continues from a checkpoint, which may have that of a rescale."""
    settings = start.settings
    layout, kept = settings.layout, settings.declared.with_kept(_live_settings(start, base).kept)
    parallelism = kept.parallelism or layout.parallelism
    return replace(layout, parallelism=parallelism, task_managers=min(kept.task_managers, parallelism))


def _check_regions(start: Start) -> None:
    found = regions_of(start.program)
    if start.settings.regions is not None and not found.by_split:
        raise JobRefused(
            f"regions={start.settings.regions!r}, but no split of this job is a region: {'; '.join(found.joined)}. "
            "Leave regions out"
        )


def _take_over(
    start: Start, job: StoredJob, urls: HttpUrls, closing: ExitStack, initial: list[InitialRows]
) -> JobMaster:
    """Take over the storage, and make the JobMaster."""
    settings = start.settings
    taken = with_older(start.store, _fence(start, job))
    heartbeat = Heartbeat(start.store, job.job_id, taken.epoch, start.endpoint, start.session) if start.beats else None
    if heartbeat is not None:
        closing.callback(heartbeat.close)
    for record in (taken.base, *(older for _, older in taken.older)):
        check_job(start.store.url, job, record)
    base = _chosen(start, taken.base_number, taken.base)
    if base is not None:
        check_identity(base, start.program, settings.drop_state)
        taken = _gone_back(start, taken, base)
        taken = _without_dropped_output(taken, start.program)
    epoch = taken.epoch
    begun = (
        []
        if taken.base is not None
        else [store_initial(start.store, epoch, each, job.max_parallelism) for each in initial]
    )
    live = _live_settings(start, taken.base)
    started = StartedJob(
        replace(settings, checkpoint=live.now, layout=layout_at(start, taken.base)),
        job,
        epoch,
        start.program,
        start.shipped,
        start.store,
        tuple(begun),
        start.storage_options,
        live.declared,
        live.kept,
    )
    master = JobMaster(started, lambda made: _make_cluster(start, job, epoch, made, closing), start.clock, taken)
    master.http = urls
    master.on_close(closing.close)
    if heartbeat is not None:
        heartbeat.newest_record = lambda: master.parts.control.newest_number
        heartbeat.state_at_end = lambda: _state_at_end(master)
    return master


def _fence(start: Start, job: StoredJob) -> TakenOver:
    if start.leader is None:
        return take_over(start.store, job=job.job_id, storages=start.storages)
    taken = take_over_from(start.store, start.leader, job=job.job_id, storages=start.storages)
    if taken is None:
        raise Overtaken(f"epoch {start.leader} is not the newest, or its leader is alive")
    return taken


def _state_at_end(master: JobMaster) -> LeaderState:
    if master.error is not None or (master.active and not master.parts.closing.is_set()):
        return LeaderState.FAILED
    return LeaderState.STOPPED if master.outcome is not None else LeaderState.COMPLETE


def _make_cluster(start: Start, job: StoredJob, epoch: Epoch, master: JobMasterGateway, closing: ExitStack) -> Cluster:
    """Make the cluster, and before it the server through which the processes of other machines reach the JobMaster."""
    if start.warm is not None:
        closing.callback(start.warm.close_server)
        return start.warm.lead(master)
    secret, address = new_secret(), ""
    if start.endpoint is not None:
        server = JobMasterServer(master, secret, start.endpoint)
        closing.callback(server.close)
        address = server.address
    return start.cluster(ClusterContext(job, epoch, secret, address), master)


def _gone_back(start: Start, taken: TakenOver, base: CheckpointRecord) -> TakenOver:
    """Put the chosen checkpoint again above the takeover, unless the job continues from the newest checkpoint."""
    savepoint, newest = start.savepoint, taken.base
    if savepoint is None:
        wanted = start.settings.start_from
        back = goes_back(taken.base_number, newest, wanted)
        return go_back(start.store, taken, base, wanted) if back and wanted is not None else taken
    if newest is None or savepoint.is_in(newest):
        return taken
    start.copy_back(savepoint, start.store)
    return go_back(start.store, taken, base, savepoint.stored.id)


def _initial_rows(start: Start, job: StoredJob, base: CheckpointRecord | None) -> list[InitialRows]:
    """Check the state from which a new job begins. A job with a checkpoint continues from the checkpoint instead."""
    if base is not None and start.initial_state:
        log.info("%s: initial_state is ignored, since the job goes on from a checkpoint", start.settings.name)
        return []
    found: list[InitialRows] = []
    for name, rows in start.initial_state.items():
        spec = start.program.operators.get(name)
        if spec is None:
            there = ", ".join(map(repr, start.program.operators)) or "none"
            raise JobRefused(f"initial_state names operator {name!r}, which this job does not have; it has {there}")
        tables = {table: (each.keys, each.values) for table, each in spec.table_schemas().items()}
        found += initial_tables(name, rows, tables, job.max_parallelism)
    return found


def _chosen(start: Start, number: JournalNumber | None, newest: CheckpointRecord | None) -> CheckpointRecord | None:
    """Return the checkpoint from which the job continues: the newest, unless the user names a retained checkpoint or a
    savepoint."""
    settings, savepoint = start.settings, start.savepoint
    if savepoint is not None:
        if number is None or newest is None:
            return savepoint.record
        if savepoint.is_in(newest):
            return newest
        sinks = start.program.all_sinks
        return agreed(number, newest, number_of(savepoint), savepoint.record, sinks, settings.publish_again)
    wanted = settings.start_from
    if not goes_back(number, newest, wanted) or wanted is None or number is None or newest is None:
        return newest
    retained = read_retained(start.store, newest)
    return chosen(number, newest, retained, wanted, start.program.all_sinks, settings.publish_again)


def _without_dropped_output(taken: TakenOver, program: Program) -> TakenOver:
    assert taken.base is not None
    older = tuple((number, without_dropped_output(record, program)) for number, record in taken.older)
    return taken._replace(base=without_dropped_output(taken.base, program), older=older)


def _newest_checkpoint(store: ObjectStore) -> tuple[JournalNumber | None, CheckpointRecord | None]:
    """Look at the newest checkpoint before the takeover; changes meanwhile are checked after it."""

    def read(number: JournalNumber) -> Record | None:
        try:
            return read_record(store, number)
        except ObjectNotFound:
            return None

    return find_base(lambda: list_journal(store), read, store.url)[1:]


def recorded_layout(store: ObjectStore, declared: DeclaredLayout, forget: bool) -> DeclaredLayout:
    """Return the layout of a start: the layout in its code, unless the record has a rescale."""
    newest = None if forget else _newest_checkpoint(store)[1]
    return declared if newest is None else declared.with_kept(newest.kept)


def _compared_with_targets(
    start: Start, sinks: Mapping[str, tuple[Sink, SinkContext]], newest: JournalNumber | None
) -> JournalNumber:
    """Refuse a storage that was set back; return the number that the job has to skip, 0 if there is none.

    An older JobMaster may record and publish meanwhile, so the journal is read again after the targets. Right after a
    job has ended, listings may still lag behind its newest record, so it is read several times before a refusal.
    """
    store, again = start.store, start.settings.publish_again
    targets = last_numbers(sinks.values(), first_start=newest is None)
    if start.savepoint is not None and newest is None:
        return check_not_set_back(store, newest, targets, 0, again)  # objects may be copied, and no record yet
    epoch = epochs_above(store, list_journal(store))
    for attempt in range(1, BEHIND_SEEN + 1):
        if not epoch and all(number <= (newest or 0) for number in targets.values()):
            break
        back_off(attempt)
        newest, epoch = _newest_checkpoint(store)[0], epochs_above(store, list_journal(store))
    return check_not_set_back(store, newest, targets, epoch, again)


def _prepare_sinks(start: Start, job: StoredJob) -> dict[str, tuple[Sink, SinkContext]]:
    """Prepare all sinks; return them with their contexts."""
    program = start.program
    prepared: dict[str, tuple[Sink, SinkContext]] = {}
    for name, sink in program.all_sinks.items():
        schema = DEAD_LETTER_SCHEMA if name == DEAD_LETTERS else program.sink_schemas[name]
        keys, has_watermark = program.sink_keys.get(name, ()), name in program.sink_watermarks
        context = SinkContext(job.job_id, name, start.store, keys, has_watermark)
        try:
            sink.prepare(schema, context)
        except SettingsError as error:
            raise SettingsError(f"sink {name!r}: {error}") from error
        except (StorageError, OSError) as error:
            raise StorageError(f"sink {name!r}: its target cannot be reached: {error}") from error
        prepared[name] = sink, context
    return prepared
