"""Rescales of a running job: the user's request, the orders of the execution machine, and the hand-over.

    Query.rescale ─► slots ─► RescaleAsked ─► FollowMoves: a checkpoint, then gaining TaskManagers follow
                                              HandOver: at a batch boundary, a checkpoint of all, which they reach
                                              EndMoves: the new layout is recorded, for later starts

The rules are in `execution/rescaling.py`. Only one rescale is under way at a time.
Users ask for them, and the autoscaler (`advisor.py`).
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from holdfast import failpoints
from holdfast.availability import listed
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, RescaleFailed, SettingsError
from holdfast.execution import events as ev
from holdfast.execution import moves
from holdfast.execution.places import gained
from holdfast.ids import NO_BATCH, JournalNumber, ProcessId, Role
from holdfast.jobmaster.batches.conductor import Interruption
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.following import Following
from holdfast.jobmaster.batches.pace import IDLE_S_MIN
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.processes.cluster import Cluster
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.printable import logger
from holdfast.settings import OnLoss

log = logger(__name__)

HAND_OVER_S_MAX = 10.0
"""Bound in seconds on the pause of batches in which everything committed is recorded, and the TaskManagers that gain
subtasks catch up with the record. If they do not, batches continue, and the hand-over is tried again later. A higher
value lets more state be stored and read in the pause."""


class Rescale:
    """A rescale that `Query.rescale` began; the query continues meanwhile. Thread-safe.

    `task_managers`: the number that was asked for. `before`: the number at the call. `bytes_moved`: the bytes of state
    that were read so far.
    """

    def __init__(self, before: int, task_managers: int, bytes_moved: Callable[[], int]) -> None:
        self.before = before
        self.task_managers = task_managers
        self._bytes_moved = bytes_moved
        self._ended = threading.Event()
        self._error: str | None = None
        self._moved = 0
        self._step = "starting TaskManagers"

    @property
    def is_done(self) -> bool:
        """True once it has succeeded or failed."""
        return self._ended.is_set()

    @property
    def error(self) -> str | None:
        """The reason why the job still has the old layout; None if the rescale is under way or has succeeded."""
        return self._error

    @property
    def bytes_moved(self) -> int:
        """Bytes of state that TaskManagers have read for the subtasks that they gain."""
        return self._moved if self.is_done else self._bytes_moved()

    @property
    def progress(self) -> str:
        """The progress of the rescale, in words."""
        way = f"from {self.before} to {self.task_managers} TaskManagers"
        moved = f"{self.bytes_moved:,} bytes of state read"
        if not self.is_done:
            return f"{way}: {self._step}, {moved}"
        return f"{way}: done, {moved}" if self._error is None else f"{way}: failed: {self._error}"

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the job has the new layout, at most `timeout` seconds.

        Raises
        ------
        RescaleFailed
            The job still has the old layout.
        TimeoutError
            The rescale is still under way after `timeout` seconds.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the rescale goes on after {timeout:g} s: {self.progress}")
        if self._error is not None:
            raise RescaleFailed(f"rescale {self.progress}")

    def __repr__(self) -> str:
        return f"<Rescale {self.progress}>"

    def now(self, step: str) -> None:
        """Note the current step."""
        self._step = step

    def end(self, error: str | None) -> None:
        """Note that it has ended, with an `error` or None."""
        if not self.is_done:
            self._moved, self._error = self._bytes_moved(), error
            self._ended.set()


class Rescales:
    """The rescale that is under way, if any. Any thread calls `begin`; the work thread calls `hand_over`."""

    def __init__(
        self,
        job: StartedJob,
        cluster: Cluster,
        task_managers: TaskManagers,
        control: Control,
        following: Following,
        clock: Clock,
        tell: Callable[[ev.Event], None],
        interruption: Interruption,
        record: Callable[[int], None],
    ) -> None:
        self._job = job
        self._cluster = cluster
        self._task_managers = task_managers
        self._control = control
        self._following = following
        self._clock = clock
        self._interruption = interruption
        self._tell = tell
        self._record = record
        self._lock = threading.Lock()
        self._standby = job.settings.layout.standby
        task_managers.leave = self.leave
        self.newest: Rescale | None = None
        """The rescale that began last."""

    @property
    def text(self) -> str | None:
        """The progress of the rescale under way, or the reason why the last rescale failed."""
        newest = self.newest
        return None if newest is None or (newest.is_done and newest.error is None) else newest.progress

    @property
    def places(self) -> int:
        """Number of TaskManagers that hold places."""
        return self._task_managers.places

    @property
    def is_under_way(self) -> bool:
        """True while a rescale goes on."""
        return self.newest is not None and not self.newest.is_done

    def begin(self, task_managers: int, timeout_s: float) -> Rescale:
        """Begin a rescale. Raises `SettingsError`, or `JobRefused` where there are too few slots."""
        with self._lock:
            before = self._task_managers.places
            self._check(before, task_managers)
            self._cluster.resize(max(before, task_managers) + self._standby)
            made = self.newest = Rescale(before, task_managers, self._following.bytes_moved)
        parallelism = self._job.settings.layout.parallelism
        log.info("%s: rescale from %d to %d TaskManagers begins", self._job.settings.name, before, task_managers)
        self._tell(moves.RescaleAsked(task_managers, parallelism, self._clock.monotonic() + timeout_s))
        return made

    def leave(self, process: ProcessId) -> None:
        """Have another TaskManager take the place of one whose machine is about to be removed."""
        if self._job.settings.on_loss is OnLoss.DROP:
            return  # no other TaskManager may take its place, so it is lost like any other
        self._control.request_checkpoint()
        self._tell(moves.Leaving(process, self._job.settings.layout.parallelism))

    def _check(self, before: int, task_managers: int) -> None:
        settings = self._job.settings
        asked = f"rescale(task_managers={task_managers!r})"
        if not before:
            raise SettingsError(f"{asked}: this job has no TaskManagers, since it has no operator with state")
        if settings.on_loss is OnLoss.DROP:
            raise SettingsError(
                f"{asked}: a job with on_loss='drop' keeps its number of TaskManagers while it runs; stop it, and "
                "start it with another task_managers"
            )
        if task_managers > settings.layout.parallelism:
            raise SettingsError(
                f"{asked}: operators have parallelism={settings.layout.parallelism} subtasks, and each TaskManager "
                "holds one at least; start the job with a higher parallelism to use more TaskManagers"
            )
        if task_managers == before:
            raise SettingsError(f"{asked}: the job has {before} TaskManagers already")
        if self.newest is not None and self.is_under_way:
            raise SettingsError(f"{asked}: a rescale is under way, {self.newest.progress}; wait for its end")

    def follow(self, command: moves.FollowMoves) -> None:
        """Have the TaskManagers that gain subtasks follow them, from a checkpoint on."""
        self._now("moving state")
        moves = gained(command.before, command.after, self._job.settings.layout.parallelism)
        processes = {
            ProcessId(Role.TASK_MANAGER, number, command.live[number]): share for number, share in moves.items()
        }
        caught_up = partial(self._caught_up, command.after)
        self._following.move(processes, caught_up)
        if self._control.newest_number is None:
            self._control.request_checkpoint().add_done_callback(partial(self._nothing_to_follow, caught_up))

    def _caught_up(self, after: tuple[int, ...], number: JournalNumber | None) -> None:
        self._tell(moves.MovesFollow(after))

    def _nothing_to_follow(
        self, caught_up: Callable[[JournalNumber | None], None], done: "Future[JournalNumber | None]"
    ) -> None:
        if done.exception() is None and done.result() is None:
            caught_up(None)

    def hand_over(self) -> ev.Event:
        """Record everything committed, and have the TaskManagers that gain subtasks catch up with the record."""
        self._now("handing over")
        until_s = self._clock.monotonic() + HAND_OVER_S_MAX
        recorded = self._control.request_checkpoint()
        recorded.add_done_callback(lambda _: self._interruption.wake())
        try:
            if not self._await(recorded.done, until_s):
                return self._not_now(listed(self._control.refused_by) or "its checkpoint takes too long")
            number = recorded.result()
            self._following.look(self._clock.monotonic())
            if number is not None and not self._await(lambda: self._following.moves_have(number), until_s):
                return self._not_now(
                    "; ".join(self._following.troubles) or "those who gain subtasks are too far behind"
                )
        except HoldfastError as error:
            return self._not_now(str(error))
        failpoints.hit("jobmaster.hand.over")
        record = self._control.record(number)
        is_own = record is not None and record.epoch == self._job.epoch
        return moves.HandedOver(record.batch if record is not None and is_own else NO_BATCH)

    def _await(self, condition: Callable[[], bool], until_s: float) -> bool:
        """Wait for the condition. Returns False if it takes too long, the work must end, or a cut is refused here."""
        while not condition():
            refused = not self._control.checkpoint_under_way and self._control.refused_by
            if self._interruption.is_asked or refused or self._clock.monotonic() > until_s:
                return False
            self._interruption.nap(IDLE_S_MIN)
        return True

    def _not_now(self, reason: str) -> ev.Event:
        if self._interruption.is_asked:
            return ev.Interrupted()
        log.info("%s: the rescale waits: %s", self._job.settings.name, reason)
        return moves.NotHandedOver(reason)

    def end(self, command: moves.EndMoves) -> None:
        """Record the new layout, or give back the slots that only the new layout needed."""
        made, name = self.newest, self._job.settings.name
        if command.away:
            self._end_away(name, command.error)
            return
        if command.error is None:
            failpoints.hit("jobmaster.moved")
            self._record(command.task_managers)
        if made is not None:
            made.end(command.error)
            say = log.info if command.error is None else log.warning
            say("%s: rescale %s", name, made.progress)
        self._following.move({}, lambda number: None)
        if command.task_managers:
            self._cluster.resize(command.task_managers + self._standby)

    def _end_away(self, name: str, error: str | None) -> None:
        """End a move away from machines that are about to be removed."""
        if error is None:
            log.info("%s: no state is on machines that are to go", name)
        else:
            log.warning("%s: state stays on machines that are to go, until they have gone: %s", name, error)
        self._following.move({}, lambda number: None)

    def _now(self, step: str) -> None:
        if self.newest is not None:
            self.newest.now(step)
