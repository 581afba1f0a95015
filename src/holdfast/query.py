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
from holdfast.jobmaster.batches.rescales import Rescale, WantedLayout
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
"""Seconds after the last compiled kernel for which the line of progress still mentions compilation."""
DRAWN_S_MAX = 1.0
"""Most seconds to wait until the line of progress of an ended query is wiped."""


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
        """The status, with PySpark's keys. `message` names the sink or the unreachable store for which the query waits.

        `splitsBehind` lists the splits that failed and have not caught up, with position and reason. `since` is the
        number of the checkpoint record at which the split got stuck. An empty reason means that the split advances
        again. `keptSettings` names the checkpoint settings that an update kept for later starts. `autoscale`: the
        advice of `Job(autoscale=…)`, None before the first advice. `rescale`: the progress of a rescale, or why the
        last one failed; None if there is neither. `materializedBy`: who materializes tables, None without
        `ChangelogConfig(materialized_by="follower")`. `standbyTaskManagers`: the number that serve now. `exactlyOnce`:
        False once rows were lost, until `acknowledge_losses`.
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
            "materializedBy": view.materialized_by,
            "standbyTaskManagers": view.standby,
            "exactlyOnce": view.is_exactly_once,
        }

    def view(self) -> JobView:
        """Return an immutable snapshot of the job, which the page and `holdfast top` show."""
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
        """The token with which commands such as `holdfast stop <uiUrl>` change this query; None without
        `Job(ui_control=…)`."""
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
        """Rows that were lost because the job continued without a TaskManager (`on_loss="drop"`), oldest first."""
        return self.view().losses

    def acknowledge_losses(self) -> None:
        """Acknowledge the losses so far: `status["exactlyOnce"]` is True again until the next loss."""
        self._master.acknowledge_losses()

    def show(self, console: "Console | None" = None) -> None:
        """Draw rows, lag and checkpoints in the terminal until the query ends, or until Ctrl-C, which only ends the
        drawing.

        `console`: the terminal; by default the one of this process. `holdfast top <uiUrl>` draws the same from
        another process.
        """
        from holdfast.ui.screen import documents, follow

        follow(lambda: documents(self.view()), console)

    def draw_progress(self) -> None:
        """Draw in a terminal or notebook the work for which the first batch waits; for an `available_now` run, its
        progress.

        The line is wiped when the batch is committed, or when the run has ended.
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
        """Take a checkpoint and copy it, with everything that a restart reads, into a folder. The query keeps running.

        `job.start(start_from=url)` begins a job from it. Without `storage_options`, those of the job's storage are
        used. `timeout` limits the complete call, for example to `"30min"`; without it, the call takes as long as the
        stores need. After an error or a time-out, the objects copied so far are deleted.

        Raises
        ------
        CheckpointFailed
            The checkpoint did not complete.
        HoldfastError
            The folder already holds a savepoint, or nothing has been processed yet.
        StorageError
            An object could not be copied. The folder is then not a savepoint, and the query keeps running.
        TimeoutError
            It took longer than `timeout`; the message says how far it was.
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

        The rows are the state at the end of a committed batch, whose number is in the table's metadata under
        `b"batch"`; they contain nothing of an uncommitted batch. The batch may be newer than the last checkpoint, so a
        crash may take the state back to before it. `state`, `key` and the columns are the same as for `hf.read_state`.

        Raises
        ------
        HoldfastError
            There is no such operator, state or key, or the state cannot be read by key.
        TaskManagerLost
            The owner has just ended; call again.
        """
        return self._master.read_state(operator, state, key)

    def rescale(
        self,
        *,
        task_managers: int | None = None,
        parallelism: int | None = None,
        senders: int | None = None,
        in_place: bool = False,
        timeout: Duration = "10min",
    ) -> Rescale:
        """Give the running job another layout: one or several of the three numbers. Returns at once.

        TaskManagers that gain subtasks follow the subtasks' logs while batches continue. Once they have nearly all of
        the state, the job takes a checkpoint between two batches, they read the rest from it, and the next batch uses
        the new layout. Subtasks that do not move keep their state in memory. With another `parallelism` each subtask
        has other key groups, so all state is read again, and exists twice for a while. Senders hold no state.

        A failure at any moment leaves either the previous layout or the new one. Later starts use the new one too,
        unless their `Job(task_managers=…, parallelism=…, senders=…)` differs from that of this start.

        `in_place`: True restores the gained subtasks while no batch runs, so no state exists twice, and holds no
        slots for more senders while there are more TaskManagers. `timeout`: time after which the rescale is abandoned.

        Raises
        ------
        SettingsError
            A number is not allowed, or a rescale is already running.
        JobRefused
            Spark has too few slots; the message has the numbers.
        """
        wanted = WantedLayout(task_managers, parallelism, senders)
        for name, value in wanted._asdict().items():
            if value is not None:
                whole_number(value, name, 1)
        if wanted == WantedLayout():
            raise SettingsError("rescale() names no number; give task_managers=…, parallelism=… or senders=…")
        limit_s = duration_s(timeout, "timeout")
        above_zero(limit_s, "timeout", timeout)
        return self._master.rescale(wanted, limit_s, in_place)

    def retry(self, split: str, *, source: str | None = None) -> None:
        """Try a failing or parked split again at once, and forget its failures. Returns before the attempt.

        `source`: the name of its source, if splits of several sources have this name. Raises `HoldfastError` if the
        split does not fail.
        """
        self._master.retry(split, source)

    def skip(self, split: str, position: int, *, source: str | None = None) -> None:
        """Make the row at a position of a failing split a dead letter, and try the split again at once.

        `source`: the split's source, if several sources have a split of that name. The row then reaches no sink. This
        needs `Job(bad_records="dead_letter")`. The next checkpoint records the skip, so that later starts skip the row
        too; after a crash before that checkpoint, call this method again. Raises `HoldfastError` if the split does not
        fail, has already passed the position, or ends before it.
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

        The other settings stay as they are. Changes apply at once, and only to this query: a later start uses its own
        `checkpoint`. With `keep=True`, these settings also override the `checkpoint` of later starts: the newest
        checkpoint is recorded again with them, without new output. Before the job's first checkpoint, that checkpoint
        records them. `forget=True` first drops all kept settings, so that they are again as `Job(checkpoint=…)`
        declares them.

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
        """Undo the batch in flight and end the query. The next start repeats the work since the last checkpoint.

        `with_savepoint`: URL of a folder. All committed work is first recorded and published; then the last checkpoint
        is copied there, and the query ends. A job that begins from this savepoint repeats no output and misses none.
        `timeout` limits the complete call, as in `savepoint`, including publication. `storage_options` are those of the
        savepoint's folder.

        With a savepoint, the errors of `savepoint` may be raised; the query then keeps running.
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
