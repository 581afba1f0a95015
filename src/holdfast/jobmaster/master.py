"""The JobMaster: a user's calls to a running start.

    start() ─► take over ─► `Started` ─► execution machine ─commands─► processes, work, coordinator, log
                                          ▲                                    │
                                          └──────────── events ◄───────────────┘

Two loops: `conductor` around the execution machine (batches, restarts), `control` around the coordinator (checkpoints).
The rules are in `execution/` and `checkpoint/`. `assembly` makes the parts, `commands` carries out the commands of the
execution machine, `reports` passes on the reports of the control loop, `gateway` takes the calls of processes, and
`ending` ends the start.
"""

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

import pyarrow as pa

from holdfast import errors
from holdfast.availability import Refusal
from holdfast.clock import Clock
from holdfast.execution import events as ev
from holdfast.formats.history import SavepointStats
from holdfast.ids import JournalNumber, Role
from holdfast.jobmaster.assembly import ClusterMaker, assemble
from holdfast.jobmaster.batches.declared import log_restored, log_settings, position_of
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.progress import Progress
from holdfast.jobmaster.batches.rescales import Rescale, WantedLayout
from holdfast.jobmaster.checkpoints.found import found_records, records_of
from holdfast.jobmaster.commands import Commands
from holdfast.jobmaster.ending import Ending
from holdfast.jobmaster.reports import ControlReports
from holdfast.jobmaster.savepoints.savepoints import Savepoint
from holdfast.jobmaster.view import view_of
from holdfast.journal.fence import TakenOver
from holdfast.observe.view import JobView, graph_of
from holdfast.printable import logger
from holdfast.protocol.taskmanager import ExchangeRoute
from holdfast.settings import CheckpointConfig
from holdfast.stored_state import live
from holdfast.ui.site import HttpUrls

log = logger(__name__)

CLOSE_S_MAX = 5.0
"""Bound in seconds for which `stop` waits for a last record; without the record, the next start publishes some output
again."""


class JobMaster:
    """A running start of a job. `start` raises errors that are known at once; later, `error` has the error that ended
    the query."""

    def __init__(self, job: StartedJob, make_cluster: ClusterMaker, clock: Clock, taken: TakenOver) -> None:
        self.job = job
        self.run_id = str(uuid.uuid4())
        """Id of this start, new for each start."""
        self.http = HttpUrls(None, None, None)
        self.parts = assemble(job, make_cluster, clock, taken)
        self._graph = graph_of(job.program)
        self._started_s = clock.now()
        self._runs: Future[None] = Future()
        self._ending = Ending(self.parts, self._runs)
        self._commands = Commands(self.parts, self._runs, self._ending.end)

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Deploy and begin. If an error keeps the job from starting, end everything and raise the error."""
        parts, settings, taken = self.parts, self.job.settings, self.parts.taken
        log.info("%s: starts on %s, as epoch %d", parts.name, self.job.store.url, taken.epoch)
        try:
            # Read before the sources begin: objects that they give up stay in the store if a retained record names
            # them.
            base = found_records(self.job.store, taken, self.job.manifests.load)
            parts.control.open(base, records_of(taken), ControlReports(parts))
            parts.planner.begin(position_of(taken.base))
            parts.sweeper.start()
        except BaseException:
            self._ending.close()
            raise
        parts.conductor.start(self._commands.execute)
        layout = settings.layout
        wanted = {Role.TASK_MANAGER: layout.task_managers, Role.SENDER: parts.cluster.residents}
        now_s, number = parts.clock.monotonic(), taken.base_number
        parts.facts.tell(ev.Started(now_s, wanted, number, layout.standby, layout.parallelism))
        try:
            self._runs.result()
        except BaseException:
            parts.facts.tell(ev.StopAsked())
            parts.ended.wait()
            raise
        live.running(self.job.store.url, self.read_state, parts.ended.is_set)
        log_restored(parts.name, taken.base)
        parts.updating.log_kept()
        log_settings(parts.name, taken.base, settings.checkpoint)

    def on_close(self, call: Callable[[], None]) -> None:
        """Set the function that is called last when this start ends."""
        self._ending.on_close = call

    def stop(self, timeout_s: float | None = None) -> None:
        """Undo the batch in flight and end; work since the last checkpoint is repeated at the next start."""
        parts = self.parts
        if self.active and not parts.closing.is_set():
            wait_for([parts.control.request_close()], CLOSE_S_MAX)
        parts.facts.tell(ev.StopAsked())
        parts.ended.wait(timeout_s)

    def wait(self, timeout_s: float | None) -> bool:
        return self.parts.ended.wait(timeout_s)

    @property
    def active(self) -> bool:
        return not self.parts.ended.is_set()

    @property
    def error(self) -> Exception | None:
        return self._ending.error

    @property
    def outcome(self) -> Exception | None:
        """Error for those who wait when the query ends; None if everything was processed."""
        return self._ending.outcome

    # --- what there is to see -----------------------------------------------------------------------------------------

    def view(self) -> JobView:
        """The job as it is now."""
        return view_of(self.parts, self._graph, self.run_id, self._started_s, self._commands.base, self.error)

    @property
    def progress(self) -> Progress:
        return self.parts.progress

    @property
    def refused_by(self) -> tuple[Refusal, ...]:
        """Refusals that make a checkpoint wait for a later batch boundary."""
        return self.parts.control.refused_by

    @property
    def savepoints(self) -> tuple[SavepointStats, ...]:
        """Outcomes of the last savepoints, oldest first."""
        return self.parts.control.history.savepoints()

    def routes(self) -> list[ExchangeRoute]:
        """TaskManagers that serve now."""
        return self.parts.task_managers.routes()

    def acknowledge_losses(self) -> None:
        """Note that a user has acknowledged the losses."""
        self.parts.control.history.acknowledge_losses()

    # --- requests -----------------------------------------------------------------------------------------------------

    def process_all_available(self) -> "Future[None]":
        """Return a promise that is kept once everything available at the call is processed and published."""
        parts = self.parts
        promise = parts.waiters.add()
        if parts.ended.is_set():
            parts.waiters.end(self._ending.outcome)
        parts.conductor.interruption.wake()
        return promise

    def trigger_checkpoint(self) -> "Future[JournalNumber | None]":
        return self.parts.control.request_checkpoint()

    def savepoint(self, url: str, storage_options: Mapping[str, str], timeout_s: float | None) -> Savepoint:
        """Take a checkpoint, and copy it while it is held."""
        return self.parts.savepoints.write(url, storage_options, timeout_s)

    def stop_with_savepoint(self, url: str, storage_options: Mapping[str, str], timeout_s: float | None) -> Savepoint:
        """Publish everything, copy the last checkpoint, and stop."""
        return self.parts.savepoints.write_at_end(url, storage_options, self.stop, timeout_s)

    def read_state(self, operator: str, state: str | None, key: Mapping[str, Any]) -> pa.Table:
        """Return the committed rows of a key."""
        if not self.active:
            raise errors.HoldfastError(
                f"query {self.job.settings.name!r} has ended; read a checkpoint: hf.read_state(…)"
            )
        return self.parts.reads.read(operator, state, key)

    def rescale(self, wanted: WantedLayout, timeout_s: float, in_place: bool) -> Rescale:
        """Begin to give the job another layout."""
        if not self.active:
            raise errors.HoldfastError(f"query {self.parts.name!r} has ended; start it with another layout")
        return self.parts.rescales.begin(wanted, timeout_s, in_place)

    def retry(self, split: str, source: str | None, skipped: int | None = None) -> None:
        """Try a split that failed at once, and put its row at `skipped` aside. Raises `HoldfastError`."""
        if skipped is not None and self.job.program.dead_letters is None:
            raise errors.HoldfastError(
                f"split {split!r}: a skipped row is kept as a dead letter: start with Job(bad_records='dead_letter')"
            )
        self.parts.planner.ask_for_split(split, source, skipped)
        self.parts.conductor.interruption.wake()

    def restart(self, reason: str) -> None:
        """Make the job restart from its newest checkpoint."""
        self.parts.facts.failover(reason)

    def update(
        self, checkpoint: CheckpointConfig | None, changes: Mapping[str, object], keep: bool, forget: bool
    ) -> None:
        """Change checkpoint settings."""
        parts = self.parts
        parts.updating.update(parts.control, parts.planner, checkpoint, changes, keep, forget)
