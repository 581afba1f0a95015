"""Rescales of a running job: the user's request, the orders of the execution machine, and the hand-over.

    Query.rescale ─► slots ─► RescaleAsked ─► FollowMoves: a checkpoint, then gaining TaskManagers follow
                                              HandOver: at a batch boundary, a checkpoint of all, which they reach
                                              EndMoves: the new layout is recorded, for later starts
                                              then senders, which hold no state: as many as were asked for

The rules are in `execution/rescaling.py`. Only one rescale is under way at a time.
Users ask for them, and the autoscaler (`advisor.py`).
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from holdfast import failpoints
from holdfast.availability import listed
from holdfast.checkpoint.updates import DeclaredLayout
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, RescaleFailed, SettingsError
from holdfast.execution import events as ev
from holdfast.execution import moves
from holdfast.execution.places import Places, gained
from holdfast.ids import NO_BATCH, JournalNumber, ProcessId, Role
from holdfast.jobmaster.batches.conductor import Interruption
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.deployment import DeployedLayout
from holdfast.jobmaster.batches.following import Following, Share
from holdfast.jobmaster.batches.pace import IDLE_S_MIN
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.processes.cluster import Cluster
from holdfast.jobmaster.processes.senders import Senders
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.printable import logger
from holdfast.settings import OnLoss

log = logger(__name__)

HAND_OVER_S_MAX = 10.0
"""Bound in seconds on the pause of batches in which everything committed is recorded, and the TaskManagers that gain
subtasks catch up with the record. If they do not, batches continue, and the hand-over is tried again later. A higher
value lets more state be stored and read in the pause."""


class WantedLayout(NamedTuple):
    """The numbers that a rescale asks for; None: as it is."""

    task_managers: int | None = None
    parallelism: int | None = None
    senders: int | None = None

    def over(self, layout: DeclaredLayout) -> DeclaredLayout:
        """Return a layout with these numbers in it."""
        return layout._replace(**{name: value for name, value in self._asdict().items() if value is not None})


class Rescale:
    """A rescale that `Query.rescale` began; the query continues meanwhile. Thread-safe.

    `task_managers`, `parallelism`, `senders`: the layout that was asked for; a number that was not asked for stays.
    `before`: the number of TaskManagers at the call. `bytes_moved`: the bytes of state that were read so far.
    """

    def __init__(self, before: DeclaredLayout, after: DeclaredLayout, bytes_moved: Callable[[], int]) -> None:
        self.before = before.task_managers
        self.task_managers, self.parallelism, self.senders = after
        self.way = way_in_words(before, after)
        """The numbers that change, in words."""
        self._bytes_moved = bytes_moved
        self._ended = threading.Event()
        self._error: str | None = None
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
        return self._bytes_moved()

    @property
    def progress(self) -> str:
        """The progress of the rescale, in words."""
        moved = f"{self.bytes_moved:,} bytes of state read"
        if not self.is_done:
            return f"{self.way}: {self._step}, {moved}"
        return f"{self.way}: done, {moved}" if self._error is None else f"{self.way}: failed: {self._error}"

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

    def moved(self) -> None:
        """Note that no more state is read."""
        bytes_moved = self._bytes_moved()
        self._bytes_moved = lambda: bytes_moved

    def end(self, error: str | None) -> None:
        """Note that it has ended, with an `error` or None."""
        if not self.is_done:
            self.moved()
            self._error = error
            self._ended.set()


def way_in_words(before: DeclaredLayout, after: DeclaredLayout) -> str:
    """Word the numbers of a layout that change."""
    units = ("TaskManagers", "subtasks of each operator", "senders")
    changed = [(was, is_now, unit) for was, is_now, unit in zip(before, after, units, strict=True) if was != is_now]
    return ", ".join(f"from {was} to {is_now} {unit}" for was, is_now, unit in changed)


class Rescales:
    """The rescale that is under way, if any. Any thread calls `begin`; the work thread calls `hand_over`."""

    def __init__(
        self,
        job: StartedJob,
        cluster: Cluster,
        task_managers: TaskManagers,
        senders: Senders,
        deployed: DeployedLayout,
        control: Control,
        following: Following,
        clock: Clock,
        tell: Callable[[ev.Event], None],
        interruption: Interruption,
        record: Callable[[DeclaredLayout], None],
    ) -> None:
        self._job = job
        self._cluster = cluster
        self._task_managers = task_managers
        self._senders = senders
        self._deployed = deployed
        self._control = control
        self._following = following
        self._clock = clock
        self._interruption = interruption
        self._tell = tell
        self._record = record
        self._lock = threading.Lock()
        self._standby = job.settings.layout.standby
        self._asked = job.settings.declared.with_kept(job.kept)
        """The layout that the code, or the last rescale, asks for."""
        task_managers.leave = self.leave
        self.newest: Rescale | None = None
        """The rescale that began last."""
        self._wanted, self._before, self._until_s = WantedLayout(), self._asked, 0.0
        """The numbers that the newest rescale asked for, the layout before it, and when it is given up."""
        self._awaits_senders = False
        """True while it waits only for senders."""

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
    def parallelism(self) -> int:
        """Number of subtasks of each operator, the most TaskManagers that can hold places."""
        return self._deployed.now.parallelism

    @property
    def _layout(self) -> DeclaredLayout:
        """The layout that there is now."""
        return DeclaredLayout(self.places, self.parallelism, self._cluster.residents)

    @property
    def is_under_way(self) -> bool:
        """True while a rescale goes on."""
        return self.newest is not None and not self.newest.is_done

    def begin(self, wanted: WantedLayout, timeout_s: float, in_place: bool = False) -> Rescale:
        """Begin a rescale. Raises `SettingsError`, or `JobRefused` if there are too few slots."""
        until_s = self._clock.monotonic() + timeout_s
        with self._lock:
            before = self._layout
            after = wanted.over(before)
            self._check(wanted, before, after)
            self._take_slots(wanted, before, after, in_place)
            made = self.newest = Rescale(before, after, self._following.bytes_moved)
            self._wanted, self._before, self._until_s = wanted, before, until_s
        log.info("%s: rescale %s begins", self._job.settings.name, made.way)
        if after[:2] == before[:2]:
            self._settle()
        else:
            self._tell(moves.RescaleAsked(after.task_managers, after.parallelism or 1, until_s, in_place=in_place))
        return made

    def _take_slots(self, wanted: WantedLayout, before: DeclaredLayout, after: DeclaredLayout, in_place: bool) -> None:
        """Hold slots for both layouts; in place, for the larger number of TaskManagers and the smaller of senders."""
        most = max(before.task_managers, after.task_managers) + self._standby
        if wanted.senders is None:
            self._cluster.resize(most)
            return
        both = before.senders or 0, wanted.senders
        try:
            if in_place:
                self._cluster.resize(after.task_managers + self._standby, wanted.senders)
            self._cluster.resize(most, min(both) if in_place else max(both))
        except HoldfastError:
            self._have_senders(before.senders)
            raise
        if in_place:
            self._senders.want(min(both))

    def leave(self, process: ProcessId) -> None:
        """Have another TaskManager take the place of one whose machine is about to be removed."""
        if self._job.settings.on_loss is OnLoss.DROP:
            return  # no other TaskManager may take its place, so it is lost like any other
        self._control.request_checkpoint()
        self._tell(moves.Leaving(process))

    def _check(self, wanted: WantedLayout, before: DeclaredLayout, after: DeclaredLayout) -> None:
        numbers = ", ".join(f"{name}={value}" for name, value in wanted._asdict().items() if value is not None)
        asked, most = f"rescale({numbers})", self._job.settings.layout.max_parallelism
        if not before.task_managers and wanted[:2] != (None, None):
            raise SettingsError(f"{asked}: this job has no TaskManagers, since it has no operator with state")
        if after.parallelism is not None and after.parallelism > most:
            raise SettingsError(
                f"{asked}: this storage was made with {most} key groups, and each subtask has one at least; start on "
                "a new storage with a higher max_parallelism to use more subtasks"
            )
        if after.task_managers > (after.parallelism or 0) and before.task_managers:
            raise SettingsError(
                f"{asked}: operators have parallelism={after.parallelism} subtasks, and each TaskManager holds one at "
                "least; ask for a higher parallelism as well"
            )
        if wanted.senders is not None and not before.senders:
            raise SettingsError(f"{asked}: this job has no senders that stay, which another number could replace")
        if after == before:
            raise SettingsError(f"{asked}: the job has this layout already")
        if self.newest is not None and self.is_under_way:
            raise SettingsError(f"{asked}: a rescale is under way, {self.newest.progress}; wait for its end")

    def follow(self, command: moves.FollowMoves) -> None:
        """Have the TaskManagers that gain subtasks follow them, from a checkpoint on."""
        self._now("moving state")
        failpoints.hit("jobmaster.follow")
        after = command.after
        processes = {
            ProcessId(Role.TASK_MANAGER, number, after.live[number]): Share(subtasks, after.parallelism)
            for number, subtasks in gained(command.before, after).items()
        }
        caught_up = partial(self._caught_up, after)
        self._following.move(processes, caught_up)
        if self._control.newest_number is None:
            self._control.request_checkpoint().add_done_callback(partial(self._nothing_to_follow, caught_up))

    def _caught_up(self, after: Places, number: JournalNumber | None) -> None:
        self._tell(moves.MovesFollow(after.holders, after.parallelism))

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
        """Record the new layout, or give back what only the new one needed."""
        if command.away:
            self._end_away(self._job.settings.name, command.error)
            return
        if self.newest is not None:
            self.newest.moved()
        if command.error is None:
            failpoints.hit("jobmaster.moved")
            self._settle()
        else:
            self.give_up(command.error)
        self._following.move({}, lambda number: None)

    def _settle(self) -> None:
        """Record the layout, now that the state has moved, and have as many senders as were asked for."""
        wanted = self._wanted
        self._asked = wanted.over(self._asked)
        self._record(self._asked)
        self._have_senders(wanted.senders)
        if wanted.senders is None:
            self._end(None)
        else:
            self._now("starting senders")
            self._awaits_senders = True

    def _have_senders(self, count: int | None) -> None:
        """Hold slots for the places that there are and so many senders; None: as many as there are."""
        if count is not None and count > self._cluster.residents:  # the cluster may wait for executors
            threading.Thread(target=self._hold, args=(count,), name="holdfast-rescale", daemon=True).start()
        else:
            self._hold(count)

    def _hold(self, senders: int | None) -> None:
        try:
            self._cluster.resize(self.places + self._standby, senders)
        except HoldfastError as error:
            log.warning("%s: %s", self._job.settings.name, error)
            return
        if senders is not None:
            self._senders.want(senders)

    def look(self, now_s: float) -> None:
        """End a rescale that waits only for its senders, once they are in service. Called often, by a single thread."""
        wanted = self._wanted.senders
        if not self._awaits_senders or wanted is None:
            return
        if self._senders.serving >= wanted:
            self._end(None)
        elif now_s > self._until_s:
            self._end(f"{self._senders.serving} of {wanted} senders serve; the others are still being started")

    def give_up(self, error: str) -> None:
        """End a rescale that goes on, if any, and give back the slots that only the new layout needed."""
        if not self.is_under_way:
            return
        self._end(error)
        self._have_senders(self._before.senders if self._wanted.senders is not None else None)

    def _end(self, error: str | None) -> None:
        made, self._awaits_senders = self.newest, False
        if made is not None:
            made.end(error)
            say = log.info if error is None else log.warning
            say("%s: rescale %s", self._job.settings.name, made.progress)

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
