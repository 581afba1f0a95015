"""Settings and parts that are made from the declarations of a job, or from a checkpoint."""

from collections.abc import Callable
from functools import partial

from holdfast.checkpoint.events import Position, StoreAndRecord
from holdfast.checkpoint.updates import differences
from holdfast.clock import Clock
from holdfast.execution.failing import FailingSplits
from holdfast.formats.history import LostRows
from holdfast.graph.program import DEAD_LETTERS
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.deployment import DeployedLayout
from holdfast.jobmaster.batches.losses import LossLedger
from holdfast.jobmaster.batches.planner import Planner
from holdfast.jobmaster.batches.regional import RegionalPlanning
from holdfast.jobmaster.checkpoints.job_facts import JobFacts, NumberedRecord, identities, part_identities
from holdfast.jobmaster.checkpoints.job_time import JobTime
from holdfast.jobmaster.checkpoints.publisher import Publisher
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger
from holdfast.settings import AvailableNow, CheckpointConfig
from holdfast.sinks.base import PublishContext
from holdfast.sinks.dead_letters import DEAD_LETTER_SCHEMA
from holdfast.sources.base import EnumeratorContext
from holdfast.sources.objects import SourceObjects
from holdfast.watermarks import Watermarks

log = logger(__name__)


def facts_of(
    job: StartedJob,
    deployed: DeployedLayout,
    base: CheckpointRecord | None,
    time: JobTime,
    clock: Clock,
    losses: LossLedger,
) -> JobFacts:
    return JobFacts(
        job.stored.job_id,
        job.epoch,
        identities(job.program),
        lambda: deployed.now.parallelism,
        deployed.now.max_parallelism,
        0 if base is None else base.started_from,
        job.program.sink_watermarks,
        part_identities(job.program),
        job.settings.drop_state,
        () if base is None else tuple(base.origins),
        time.reading,
        partial(_declared_losses, job, deployed, clock, losses),
    )


def _declared_losses(
    job: StartedJob,
    deployed: DeployedLayout,
    clock: Clock,
    losses: LossLedger,
    command: StoreAndRecord,
    before: NumberedRecord | None,
) -> list[LostRows]:
    """Return the rows whose loss a record makes final, because it holds older state of missing TaskManagers."""
    absence = command.absence
    number, record = (-1, None) if before is None else before
    loss = LostRows(clock.now(), job.epoch, number, "" if absence is None else absence.reason)
    subtasks = [] if absence is None else deployed.now.subtasks_of(absence.missing)
    found = losses.declared(command.batch, subtasks, position_of(record), command.position, loss)
    if absence is not None:
        text = "%s: checkpoint %d has an older state of the missing TaskManagers %s; exactly-once has ended: %s"
        missing = ", ".join(map(str, sorted(absence.missing)))
        log.warning(text, job.settings.name, command.checkpoint_id, missing, found[-1])
    return found


def publishers_of(job: StartedJob) -> dict[str, Publisher]:
    program = job.program
    schemas = {**program.sink_schemas, DEAD_LETTERS: DEAD_LETTER_SCHEMA}
    publishers = {}
    for name, sink in program.all_sinks.items():
        keys = program.sink_keys.get(name, ())
        context = PublishContext(job.stored.job_id, name, job.store, schemas[name], keys)
        publishers[name] = Publisher(sink, context, job.store)
    return publishers


def planner_of(
    job: StartedJob, objects: SourceObjects, senders: Callable[[], int], clock: Clock, time: JobTime
) -> Planner:
    to_end = isinstance(job.settings.trigger, AvailableNow)
    goes_back, job_id = job.settings.checkpoint.retains_older, job.stored.job_id
    enumerators = {
        name: source.enumerator(EnumeratorContext(objects, name, job.epoch, clock, to_end, goes_back, job_id))
        for name, source in job.program.sources.items()
    }
    program = job.program
    settings, regions = job.settings, job.settings.regions
    waits = regions is not None and regions.holds_watermark
    watermarks = Watermarks(program.watermarks, program.operator_watermarks, program.operator_delays, waits)
    timed = any(spec.is_timed for spec in program.operators.values())
    regional = None
    if regions is not None:
        regional = RegionalPlanning(FailingSplits(regions, settings.failover, by_attempt=to_end), senders)
    limits, monotonic = settings.limits, clock.monotonic
    planner = Planner(enumerators, limits, senders, time, monotonic, watermarks, timed, regional)
    planner.go_by(settings.checkpoint.trigger)
    return planner


def log_restored(job: str, base: CheckpointRecord | None) -> None:
    """Log the checkpoint from which a job continues."""
    if base is None:
        log.info("%s: there is no checkpoint yet: begins with empty state", job)
    else:
        log.info("%s: goes on from checkpoint %d, which was taken after batch %d", job, base.checkpoint_id, base.batch)


def log_settings(job: str, base: CheckpointRecord | None, config: CheckpointConfig) -> None:
    """Log the checkpoint settings that differ from those of the base. The settings of this start are in force."""
    found = [] if base is None else differences(base.settings, config)
    if found:
        log.info("%s: checkpoint settings differ from those of the last checkpoint: %s", job, ", ".join(found))


def position_of(base: CheckpointRecord | None) -> Position | None:
    if base is None:
        return None
    return Position(base.batch_time_us, base.offsets, base.source_objects, base.watermarks, base.behind)
