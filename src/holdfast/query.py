"""Handle of a running query, with the names of PySpark's `StreamingQuery`."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from holdfast.availability import listed
from holdfast.errors import HoldfastError, QueryFailed, SettingsError, described
from holdfast.hidden import chained
from holdfast.jobmaster.batches.progress import Totals
from holdfast.jobmaster.batches.rescales import Rescale
from holdfast.jobmaster.master import JobMaster
from holdfast.jobmaster.savepoints.savepoints import Savepoint
from holdfast.kernels.shelf import SHELF
from holdfast.observe.view import JobView, LostRows, SavepointStats
from holdfast.quantities import Duration, above_zero, duration_s, whole_number
from holdfast.settings import AvailableNow, CheckpointConfig
from holdfast.ui import api
from holdfast.ui.checkpoint_list import CheckpointList
from holdfast.ui.notebook import html_table
from holdfast.ui.progress_line import Compiling, follow_texts, wait_of, way_of

if TYPE_CHECKING:
    from rich.console import Console

COMPILING_S = 3.0
"""Time in seconds after the last compiled kernel for which the line of progress still speaks of compilation."""
DRAWN_S_MAX = 1.0
"""Bound in seconds on the wait until the line of progress of a query that has ended is wiped."""


class Query:
    """A started job. Thread-safe."""

    def __init__(self, master: JobMaster, on_end: Callable[[], None]) -> None:
        self._led = master
        self._on_end = on_end
        self._drawing: threading.Thread | None = None

    @property
    def _master(self) -> JobMaster:
        return self._led

    @property
    def id(self) -> str:
        """Id of the job: the same over restarts on the same storage."""
        return self._master.job.stored.job_id

    @property
    def runId(self) -> str:
        """Id of this start: new for every start."""
        return self._master.run_id

    @property
    def name(self) -> str:
        return self._master.job.settings.name

    @property
    def isActive(self) -> bool:
        return self._master.active

    def __repr__(self) -> str:
        message, totals = self.view().message, self.totals
        return (
            f"<Query {self.name!r}, run {self.runId}: {message}; {totals.rows:,} rows in {totals.batches:,} batches, "
            f"{totals.completed_checkpoints:,} checkpoints, {len(self.restarts)} restarts>"
        )

    @property
    def status(self) -> dict[str, Any]:
        """Status with PySpark's keys. `message` names a sink or an unreachable store that the query waits for.

        `splitsBehind` lists splits that failed and have not caught up, with position and reason; `since` is the number
        of the checkpoint record since which each stands. An empty reason says that the split advances again.
        `keptSettings`: checkpoint settings that an update kept for later starts, in words.
        `autoscale`: the advice of `Job(autoscale=…)`, None before there is any. `rescale`: how far a rescale is, or
        why the last one failed; None if there is nothing to say. `standbyTaskManagers`: how many serve now.
        `exactlyOnce`: False once rows were lost, until `acknowledge_losses`.
        """
        view = self.view()
        return {
            "message": view.message,
            "isDataAvailable": any(sum(splits.values()) for splits in view.lag.values()),
            "isTriggerActive": view.is_active and not view.paused_by,
            "splitsBehind": [asdict(each) for each in view.behind],
            "keptSettings": dict(view.kept),
            "autoscale": view.advice,
            "rescale": view.rescale,
            "standbyTaskManagers": view.standby,
            "exactlyOnce": view.is_exactly_once,
        }

    def view(self) -> JobView:
        """The job as it is now, as an immutable value, which the page and `holdfast top` show."""
        return self._master.view()

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """The last committed batch, with PySpark's keys, plus `lag` per split for each source."""
        last = self._master.progress.last()
        return None if last is None else {"id": self.id, "runId": self.runId, **last}

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        """The last 100 committed batches, oldest first."""
        return [{"id": self.id, "runId": self.runId, **entry} for entry in self._master.progress.recent()]

    @property
    def metricsUrl(self) -> str | None:
        """URL at which Prometheus finds the metrics of this query while it runs; None without `Job(metrics_port=…)`."""
        return self._master.http.metrics

    @property
    def uiUrl(self) -> str | None:
        """URL of the page that shows this query while it runs; None without `start(ui_port=…)`."""
        return self._master.http.page

    @property
    def controlToken(self) -> str | None:
        """Token with which `holdfast stop <uiUrl>` and others change this query; None without `Job(ui_control=…)`."""
        return self._master.http.control_token

    @property
    def checkpoints(self) -> CheckpointList:
        """The last 100 triggers of this start, oldest first, each with its `outcome`.

        The storage keeps such a list over restarts: `holdfast checkpoints <storage>`.
        """
        return CheckpointList(self._master.progress.outcomes())

    @property
    def totals(self) -> Totals:
        """Rows, bad rows, batches and checkpoints since the start."""
        return self._master.progress.totals()

    @property
    def taskManagers(self) -> list[dict[str, Any]]:
        """TaskManagers that serve now: `task_manager`, `incarnation`, `address`."""
        return [msgspec.structs.asdict(route) for route in self._master.routes()]

    @property
    def restarts(self) -> list[str]:
        """Reasons of the restarts from a checkpoint since the start, oldest first."""
        return [each.reason for each in self._master.progress.restarts()]

    @property
    def losses(self) -> tuple[LostRows, ...]:
        """Rows that were lost because the job went on without a TaskManager (`on_loss="drop"`), oldest first."""
        return self.view().losses

    def acknowledge_losses(self) -> None:
        """Note that the losses so far are known: `status["exactlyOnce"]` is True again until the next one."""
        self._master.acknowledge_losses()

    def show(self, console: "Console | None" = None) -> None:
        """Draw rows, lag and checkpoints in the terminal until the query ends, or until Ctrl-C, which ends only this.

        `console`: the terminal; by default the one of this process. `holdfast top <uiUrl>` draws the same from
        another process.
        """
        from holdfast.ui.screen import documents, follow

        follow(lambda: documents(self.view()), console)

    def draw_progress(self) -> None:
        """Draw in a terminal or notebook the work that the first batch waits for; of an `available_now` run, its way.

        The line is wiped once the batch is committed, or the run has ended.
        """
        ends, began_s = isinstance(self._master.job.settings.trigger, AvailableNow), time.monotonic()

        def text() -> str | None:
            view = self.view()
            now_s = time.monotonic()
            is_compiling = now_s - SHELF.taken_last_s < COMPILING_S
            compiling = Compiling(SHELF.taken if is_compiling else 0, now_s - SHELF.taken_since_s)
            waiting = wait_of(view, self._master.job.settings.layout.processes, compiling)
            if waiting is not None or not ends:
                return waiting
            return way_of(view, self.totals.rows, time.monotonic() - began_s)

        self._drawing = follow_texts(text, self._master.wait)

    def _repr_html_(self) -> str:
        job = api.job(self.view())
        facts = {"phase": job["phase"], "message": job["message"], "rows": f"{job['rows']:,}"}
        facts |= {"rows/s": f"{job['rows_per_s']:,.0f}", "batches": f"{job['batches_committed']:,}"}
        facts |= {"completed checkpoints": self.totals.completed_checkpoints, "restarts": job["restarts"]}
        page = {} if self.uiUrl is None or not self.isActive else {"page": self.uiUrl}
        return html_table(f"Query {self.name}", ("", ""), (facts | page).items())

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds for the end; True if the query has ended. Raises `QueryFailed` if it ended
        with an error."""
        ended = self._master.wait(timeout)
        if ended:
            self._on_end()
            if self._drawing is not None:
                self._drawing.join(DRAWN_S_MAX)
            if self._master.error is not None:
                raise self._failed() from self._master.error
        return ended

    def processAllAvailable(self) -> None:
        """Block until all input available now is processed, checkpointed and published. Raises `QueryFailed`."""
        try:
            self._master.process_all_available().result()
        except Exception as error:
            raise self._failed() from error

    def trigger_checkpoint(self, timeout: Duration | float | None = None) -> int | None:
        """Take a checkpoint of everything committed so far, independent of the trigger.

        If a source or sink refuses the current batch boundary, the checkpoint waits for a later boundary. Returns the
        number of the newest record afterwards (None: nothing has been recorded yet). Raises `CheckpointFailed`, or
        `TimeoutError` after `timeout`: a duration such as `"30s"`, or a number of seconds.
        """
        limit_s = timeout if isinstance(timeout, int | float) else _limit_s(timeout)
        try:
            return self._master.trigger_checkpoint().result(limit_s)
        except FutureTimeout as error:
            refused_by = self._master.refused_by
            reason = f"; it waits: {listed(refused_by)}" if refused_by else ""
            raise TimeoutError(f"the checkpoint did not complete within {limit_s:g} s{reason}") from error

    def savepoint(
        self, url: str, *, timeout: Duration | None = None, storage_options: Mapping[str, str] | None = None
    ) -> Savepoint:
        """Take a checkpoint and copy it, with all that a restart reads, into a folder; the query goes on meanwhile.

        `job.start(start_from=url)` begins a job from it. Without `storage_options` those of the job's storage are used.
        `timeout`: time for the whole call, for example `"30min"`; without it, the call takes as long as the stores do.
        Whatever was copied before an error or the end of that time is deleted.

        Raises
        ------
        CheckpointFailed
            The checkpoint did not complete.
        HoldfastError
            The folder holds a savepoint already, or nothing has been processed yet.
        StorageError
            An object could not be copied. The folder is not a savepoint then, and the query goes on.
        TimeoutError
            It took longer than `timeout`; names how far it was.
        """
        return self._master.savepoint(url, self._options(storage_options), _limit_s(timeout))

    @property
    def savepoints(self) -> list[SavepointStats]:
        """The last 20 savepoints of the job, oldest first, also of earlier starts and those that failed."""
        return list(self._master.savepoints)

    def _options(self, given: Mapping[str, str] | None) -> Mapping[str, str]:
        return self._master.job.storage_options if given is None else given

    def read_state(self, operator: str, state: str | None = None, *, key: Mapping[str, Any]) -> pa.Table:
        """Read the state of a key from the TaskManager that owns it, in a single call, while the query runs.

        The rows are those at the end of a committed batch, whose number is in the table's metadata under `b"batch"`;
        nothing of a batch that is not committed is among them. The batch may be newer than the last checkpoint, so a
        crash may take the state back to before it. `state`, `key` and the columns: as of `hf.read_state`.

        Raises
        ------
        HoldfastError
            There is no operator, state or key of that kind; or the state cannot be read by key.
        TaskManagerLost
            The owner has just ended: ask again.
        """
        return self._master.read_state(operator, state, key)

    def rescale(self, *, task_managers: int, timeout: Duration = "10min") -> Rescale:
        """Give the job another number of TaskManagers while it runs; returns at once.

        TaskManagers that gain subtasks follow their logs while batches go on. Once they have nearly all of the state,
        the job takes a checkpoint between two batches, they read what is new in it, and the next batch has the new
        layout. Subtasks that stay where they are go on in memory. A failure at any moment leaves the layout of before
        or the new one; later starts have the new one too, unless their `Job(task_managers=…)` differs from that of this
        start. `timeout`: time after which it is given up.

        Raises
        ------
        SettingsError
            The number is not allowed, or a rescale is under way.
        JobRefused
            Spark has too few slots; the message has the numbers.
        """
        whole_number(task_managers, "task_managers", 1)
        limit_s = duration_s(timeout, "timeout")
        above_zero(limit_s, "timeout", timeout)
        return self._master.rescale(task_managers, limit_s)

    def retry(self, split: str, *, source: str | None = None) -> None:
        """Try a split that fails or is parked at once, with its failures forgotten. Returns before it is tried.

        `source`: the name of its source, if splits of several sources have this name. Raises `HoldfastError` if the
        split does not fail.
        """
        self._master.retry(split, source)

    def skip(self, split: str, position: int, *, source: str | None = None) -> None:
        """Put the row at a position of a failing split aside as a dead letter, and try the split at once.

        `source`: the split's source, where several sources have a split of that name. The row is in no sink,
        then. Needs `Job(bad_records="dead_letter")`. The next checkpoint records it, so that
        later starts put the row aside too; after a crash before that checkpoint, ask again. Raises `HoldfastError` if
        the split does not fail, has passed the position already, or ends before it.
        """
        self._master.retry(split, source, position)

    def update(
        self,
        *,
        checkpoint: CheckpointConfig | None = None,
        keep: bool = False,
        forget: bool = False,
        **settings: object,
    ) -> None:
        """Change checkpoint settings while the query runs: all of them, or single ones by the names of their fields.

            query.update(trigger=hf.every("1min"), timeout="5min")

        The others stay as they are. They hold at once, for this query: a later start goes by its own `checkpoint`.
        With `keep=True` later starts apply these settings over their own `checkpoint`, too: the newest checkpoint is
        recorded again with them, without new output. Before the job's first checkpoint, that checkpoint records them.
        `forget=True` first takes back all that was kept: these settings are as `Job(checkpoint=…)` declares them again.

        Raises
        ------
        SettingsError
            A name or a value is not allowed, or the setting cannot be changed while a query runs; nothing changes then.
        """
        self._master.update(checkpoint, settings, keep, forget)

    def exception(self) -> QueryFailed | None:
        """The error that ended the query; None if there is none."""
        return None if self._master.error is None else self._failed()

    def stop(
        self,
        *,
        with_savepoint: str | None = None,
        timeout: Duration | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Savepoint | None:
        """Undo the batch in flight and end; work since the last checkpoint is repeated at the next start.

        `with_savepoint`: URL of a folder. What was committed is first recorded and published; then its last checkpoint
        is copied there, and the query ends. A job that begins from this savepoint repeats no output and leaves none
        out. `timeout`: time for the whole call, as of `savepoint`, publication included. `storage_options`: those of
        the savepoint's folder.

        With a savepoint the errors of `savepoint` are raised; the query goes on then.
        """
        if timeout is not None and with_savepoint is None:
            raise SettingsError("stop(timeout=…) limits a savepoint; name its folder, too: with_savepoint=<url>")
        try:
            if with_savepoint is not None:
                options, limit_s = self._options(storage_options), _limit_s(timeout)
                return self._master.stop_with_savepoint(with_savepoint, options, limit_s)
            self._master.stop()
            return None
        finally:
            if not self.isActive:
                self._on_end()

    def _failure(self) -> Exception | None:
        return self._master.error

    def _failed(self) -> QueryFailed:
        error = self._failure()
        if isinstance(error, HoldfastError):
            # The message is complete; the traceback through Holdfast's own threads is in the log, at DEBUG.
            error = error.with_traceback(None)
        failed = QueryFailed(f"query {self.name!r} ended: {described(error)}" if error else "stopped")
        failed.__cause__ = error if isinstance(error, HoldfastError) or error is None else chained(error)
        return failed


def _limit_s(timeout: Duration | None) -> float | None:
    """Seconds of a savepoint's time-out. Raises `SettingsError`."""
    return None if timeout is None else duration_s(timeout, "timeout")
