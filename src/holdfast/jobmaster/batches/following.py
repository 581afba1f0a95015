"""Standbys with state: which standby follows which places, how far, and which records stay for them meanwhile.

    a record is written, or a standby comes ─► HoldNewest ─► follow(order) ─► answered ─► LetGo, and on with the newest
                                                                 └── no answer for `PIN_S_MAX` ─► LetGo

The record that a standby is taken to is held until the standby answers, is lost, or takes too long: it then finds
objects gone, and starts anew from the newest checkpoint. So a standby that hangs holds no object for ever. All of it
happens on others' threads, and nothing here waits. Does not own: who takes a place (`execution/places.py`).
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from holdfast.checkpoint.holding import LetGo
from holdfast.clock import Clock
from holdfast.errors import StaleCall, TaskManagerLost
from holdfast.execution import events as ev
from holdfast.execution.places import assign
from holdfast.formats.history import CheckpointStats
from holdfast.ids import JournalNumber, ProcessId
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.deployment import subtasks_of
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.processes.calls import Round
from holdfast.jobmaster.processes.taskmanagers import Lane, TaskManagers
from holdfast.observe.view import FollowerView
from holdfast.printable import logger
from holdfast.protocol.taskmanager import BaseCheckpoint, FollowAnswer, FollowOrder

log = logger(__name__)

PIN_S_MAX = 60.0
"""Seconds for which a record is held for a standby that does not answer. A higher value lets slower standbys finish a
restore without starting anew, and keeps the objects of a record for longer where a standby hangs."""
RETRY_S = 1.0
"""Seconds until a standby that could not follow is asked again. A higher value reads less from a store that fails."""
RECORDS_MAX = 10_000
"""Records of which the size is known, to say how far a standby is behind. A higher value takes more memory."""


@dataclass(frozen=True)
class _Recorded:
    number: JournalNumber
    new_bytes: int
    at_s: float


@dataclass
class _Standby:
    """A standby as the JobMaster knows it."""

    places: tuple[int, ...] = ()
    """The places it was last asked to follow."""
    reached: Mapping[int, JournalNumber | None] = field(default_factory=dict)
    answer: FollowAnswer | None = None
    under_way: bool = False
    pinned: JournalNumber | None = None
    until_s: float = 0.0
    """When the pin ends."""
    not_before_s: float = 0.0
    trouble: str = ""

    def has(self, places: Sequence[int], number: JournalNumber) -> bool:
        """True if it holds these places as of that record, or cannot."""
        left_out = self.answer is not None and bool(self.answer.left_out)
        return self.places == tuple(places) and (
            all(self.reached.get(place) == number for place in places)
            or (left_out and any(reached == number for reached in self.reached.values()))
        )


class Following:
    """Thread-safe. `look` is called often, `completed` with each record of this start."""

    def __init__(
        self,
        job: StartedJob,
        task_managers: TaskManagers,
        control: Control,
        clock: Clock,
        tell: Callable[[ev.Event], None],
    ) -> None:
        self._job = job
        self._task_managers = task_managers
        self._control = control
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._standbys: dict[ProcessId, _Standby] = {}
        self._assigned: Mapping[int, int] = {}
        """The number of the standby that follows each place."""
        self._told: Mapping[int, int] = {}
        self._recorded: deque[_Recorded] = deque(maxlen=RECORDS_MAX)

    @property
    def _is_wanted(self) -> bool:
        return self._job.settings.layout.standby_state

    def completed(self, stats: CheckpointStats) -> None:
        """Note a record, and take standbys to it."""
        if self._is_wanted:
            now_s = self._clock.monotonic()
            with self._lock:
                self._recorded.append(_Recorded(JournalNumber(stats.number), stats.incremental_bytes, now_s))
            self.look(now_s)

    def look(self, now_s: float) -> None:
        """Ask standbys that are behind to follow, and end pins that are too old."""
        newest = self._control.newest_number
        if not self._is_wanted or newest is None:
            return
        serving = {each.number: each for each in self._task_managers.standbys()}
        with self._lock:
            self._drop_lost(serving)
            places = range(self._job.settings.layout.task_managers)
            self._assigned = assign(places, self._assigned, list(serving))
            asked = [
                (process, own)
                for number, process in serving.items()
                if (own := tuple(place for place, by in self._assigned.items() if by == number))
                and self._is_due(process, own, newest, now_s)
            ]
            for process, own in asked:
                self._standbys[process].under_way, self._standbys[process].places = True, own
            late = [each for each in self._standbys.values() if each.pinned is not None and now_s > each.until_s]
        for standby in late:
            self._unpin(standby)
        for process, own in asked:
            self._control.hold_newest().add_done_callback(partial(self._held, process, own))
        self._tell_who_follows()

    def views(self) -> dict[ProcessId, FollowerView]:
        """How far the standbys are."""
        now_s = self._clock.monotonic()
        with self._lock:
            return {process: self._view(each, now_s) for process, each in self._standbys.items() if each.places}

    def _view(self, standby: _Standby, now_s: float) -> FollowerView:
        reached = [number for place in standby.places if (number := standby.reached.get(place)) is not None]
        oldest = min(reached) if reached else None
        behind = [each for each in self._recorded if oldest is None or each.number > oldest]
        return FollowerView(
            places=standby.places,
            number=oldest,
            followed=len(reached),
            checkpoints_behind=len(behind),
            bytes_behind=sum(each.new_bytes for each in behind),
            seconds_behind=now_s - behind[0].at_s if behind else 0.0,
            bytes_read=0 if standby.answer is None else standby.answer.bytes_read,
            memory_bytes=0 if standby.answer is None else standby.answer.memory_bytes,
            trouble=standby.trouble,
        )

    def gauges(self) -> dict[str, float]:
        """Metrics of all standbys together: of the standby that is furthest behind."""
        views = self.views().values()
        return {
            "followedPlaces": float(sum(each.followed for each in views)),
            "followerCheckpointsBehind": float(max((each.checkpoints_behind for each in views), default=0)),
            "followerBytesBehind": float(max((each.bytes_behind for each in views), default=0)),
            "followerMsBehind": max((each.seconds_behind for each in views), default=0.0) * 1000.0,
        }

    def _drop_lost(self, serving: Mapping[int, ProcessId]) -> None:
        """Forget standbys that hold a place now, or are gone. Their pins end with their calls."""
        for process in [each for each in self._standbys if serving.get(each.number) != each]:
            if not self._standbys[process].under_way:
                del self._standbys[process]

    def _is_due(self, process: ProcessId, places: Sequence[int], newest: JournalNumber, now_s: float) -> bool:
        standby = self._standbys.setdefault(process, _Standby())
        return not standby.under_way and now_s >= standby.not_before_s and not standby.has(places, newest)

    def _held(self, process: ProcessId, places: tuple[int, ...], held: "Future[JournalNumber | None]") -> None:
        """Give the order, now that its record is held."""
        number = None if held.exception() is not None else held.result()
        record = self._control.record(number)
        standby = self._standbys[process]
        if number is None or record is None:
            with self._lock:
                standby.under_way = False
            return
        with self._lock:
            standby.pinned, standby.until_s = number, self._clock.monotonic() + PIN_S_MAX
        job, layout = self._job, self._job.settings.layout
        order = FollowOrder(
            job_id=job.stored.job_id,
            epoch=job.epoch,
            task_manager=process.number,
            incarnation=process.incarnation,
            program=job.shipped,
            max_parallelism=layout.max_parallelism,
            places=[subtasks_of(place, layout, job.program, []) for place in places],
            number=number,
            base=BaseCheckpoint(record.epoch, record.checkpoint_id, record.batch),
            manifests=list(record.manifests),
            writers=sorted(record.writers()),
            drop_state=list(job.settings.drop_state),
        )
        asked = Round([process], lambda _, gateway: gateway.follow(order))
        asked.done.add_done_callback(lambda _: self._answered(process, places, asked))
        self._task_managers.begin(asked, Lane.FOLLOWING)

    def _answered(self, process: ProcessId, places: tuple[int, ...], asked: Round) -> None:
        standby = self._standbys[process]
        error, answer = asked.errors.get(process), asked.results.get(process)
        now_s = self._clock.monotonic()
        self._unpin(standby)
        with self._lock:
            standby.under_way = False
            if answer is not None:
                standby.answer = answer
                standby.reached = dict(zip(places, answer.numbers, strict=True))
                trouble = answer.left_out
            else:
                standby.not_before_s = now_s + RETRY_S
                trouble = "" if isinstance(error, TaskManagerLost | StaleCall) else str(error)
            is_new, standby.trouble = trouble not in ("", standby.trouble), trouble
        if is_new:
            log.warning("%s: standby %s: %s", self._job.settings.name, process.name, trouble)
        self._tell_who_follows()

    def _unpin(self, standby: _Standby) -> None:
        with self._lock:
            pinned, standby.pinned = standby.pinned, None
        if pinned is not None:
            self._control.post(LetGo(pinned))

    def _tell_who_follows(self) -> None:
        """Tell the machine which standby has state of which place."""
        with self._lock:
            follows = {
                place: process.number
                for process, standby in self._standbys.items()
                for place, number in standby.reached.items()
                if number is not None and self._assigned.get(place) == process.number
            }
            changed, self._told = follows != self._told, follows
        if changed:
            self._tell(ev.StandbysFollow(follows))
