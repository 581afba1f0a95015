"""A running job as facts, for people."""

from holdfast.checkpoint.updates import in_words
from holdfast.errors import described
from holdfast.formats.history import with_losses
from holdfast.ids import JournalNumber
from holdfast.jobmaster.assembly import MasterParts
from holdfast.jobmaster.processes.shown import dead_letters_of, processes_now, restoring_now
from holdfast.observe.view import JobGraph, JobView


def view_of(
    parts: MasterParts,
    graph: JobGraph,
    run_id: str,
    started_s: float,
    restored: JournalNumber | None,
    error: Exception | None,
) -> JobView:
    """The job as it is now."""
    job, control, progress, planner = parts.job, parts.control, parts.progress, parts.planner
    layout, newest = parts.deployed.now, control.newest_record
    watermarks, is_active = progress.watermarks(), not parts.ended.is_set()
    return JobView(
        name=parts.name,
        job_id=job.stored.job_id,
        run_id=run_id,
        epoch=job.epoch,
        storage=job.store.url,
        started_s=started_s,
        now_s=parts.clock.now(),
        phase=parts.machine.phase.value,
        is_active=is_active,
        error=None if error is None else described(error),
        paused_by=parts.machine.paused_by,
        refused_by=control.refused_by,
        outage=parts.outages.message,
        clock=parts.time.message if is_active else "",
        savepoints=parts.savepoints.under_way,
        savepoint_history=control.history.savepoints(),
        source_messages=planner.source_messages(),
        graph=graph,
        parallelism=layout.parallelism,
        max_parallelism=layout.max_parallelism,
        settings=in_words(parts.updating.now),
        kept=parts.updating.kept,
        batches=progress.batches(),
        lag=progress.lag(),
        source_watermarks=watermarks["source"],
        operator_watermarks=watermarks["operator"],
        checkpoints=control.history.entries(),
        restored=restored,
        restoring=restoring_now(parts.task_managers),
        restarts=progress.restarts(),
        advice=parts.advisor.advice,
        rescale=parts.rescales.text,
        materialized_by=parts.following.materialized_by,
        losses=tuple(with_losses(control.history.losses(), parts.losses.not_final)),
        dropping=parts.losses.dropped,
        processes=processes_now(parts.task_managers, parts.senders, progress.last_metrics(), parts.following.views()),
        dead_letters=dead_letters_of(job.program),
        bad_reasons=progress.bad_reasons(),
        hot_keys=progress.hot_keys(),
        sink_rows=progress.sink_rows(),
        backlog=control.backlog,
        behind=planner.splits_behind({} if newest is None else newest.behind),
        metrics=progress.picture(),
        events=parts.event_log.recent(),
        prices=job.settings.prices,
    )
