"""Followers: which process follows the logs of which subtasks, how far it has come, and which records are kept for it
meanwhile. Followers are standbys with state, and TaskManagers that gain subtasks by a rescale.

    a record is written, or a standby comes ─► HoldNewest ─► follow(order) ─► answered ─► LetGo, then the newest again
                                                                 └── no answer for `PIN_S_MAX` ─► LetGo

The record that a standby restores is held until the standby answers, is lost, or takes too long. A standby that takes
too long finds objects gone, and starts anew from the newest checkpoint, so a standby that hangs does not hold objects
for ever. Everything happens on threads of other parts, and no method waits. A TaskManager that gains subtasks follows
only these, whether it holds a place or not. Does not own: who takes a place, or gains what (`execution/places.py`).
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from holdfast.checkpoint.holding import LetGo
from holdfast.clock import Clock
from holdfast.errors import StaleCall, TaskManagerLost
from holdfast.execution import events as ev
from holdfast.execution.places import assign
from holdfast.formats.history import CheckpointStats
from holdfast.ids import NO_BATCH, CheckpointId, JournalNumber, ProcessId
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.deployment import DeployedLayout, Layout, share_of
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.processes.calls import Round
from holdfast.jobmaster.processes.taskmanagers import Lane, TaskManagers
from holdfast.journal.records import CheckpointRecord
from holdfast.observe.view import FollowerView
from holdfast.printable import logger
from holdfast.protocol.taskmanager import BaseCheckpoint, BaseOffer, FollowAnswer, FollowOrder

log = logger(__name__)

PIN_S_MAX = 60.0
"""Seconds for which a record is held for a standby that does not answer. A higher value lets slower standbys finish a
restore without starting again, and keeps the objects of a record for longer if a standby hangs."""
RETRY_S = 1.0
"""Seconds until a standby that could not follow is asked again. With a higher value, a store that fails gets fewer
reads."""
RECORDS_MAX = 10_000
"""Number of records whose size is remembered, to tell how far a standby is behind. A higher value takes more memory."""


class Share(NamedTuple):
    """Numbers of subtasks, the same for each operator, that a process follows together, of so many."""

    subtasks: tuple[int, ...]
    parallelism: int


@dataclass(frozen=True)
class _Recorded:
    number: JournalNumber
    new_bytes: int
    at_s: float


@dataclass
class _Standby:
    """The JobMaster's view of a process that follows."""

    places: tuple[int, ...] = ()
    """The places that it was last asked to follow; none for a process that gains subtasks."""
    shares: tuple[Share, ...] = ()
    """The subtasks of each of these places, or the subtasks that the process gains."""
    reached: Mapping[Share, JournalNumber | None] = field(default_factory=dict)
    answer: FollowAnswer | None = None
    under_way: bool = False
    pinned: JournalNumber | None = None
    until_s: float = 0.0
    """When the pin ends."""
    not_before_s: float = 0.0
    trouble: str = ""

    def has(self, shares: Sequence[Share], number: JournalNumber) -> bool:
        """True if it has the state of these subtasks at that record, or has as much of it as it can hold."""
        left_out = self.answer is not None and bool(self.answer.left_out)
        return self.shares == tuple(shares) and (
            all(self.reached.get(share) == number for share in shares)
            or (left_out and any(reached == number for reached in self.reached.values()))
        )

    @property
    def oldest(self) -> JournalNumber | None:
        """The oldest record that any of its shares has reached; None if some share has reached no record yet."""
        reached = [self.reached.get(share) for share in self.shares]
        found = [number for number in reached if number is not None]
        return min(found) if found and len(found) == len(reached) else None


class Following:
    """Thread-safe. `look` is called often, `completed` with each record of this start."""

    def __init__(
        self,
        job: StartedJob,
        task_managers: TaskManagers,
        control: Control,
        clock: Clock,
        tell: Callable[[ev.Event], None],
        deployed: DeployedLayout,
    ) -> None:
        self._job = job
        self._deployed = deployed
        self._task_managers = task_managers
        self._control = control
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._standbys: dict[ProcessId, _Standby] = {}
        self._assigned: Mapping[int, int] = {}
        """The number of the standby that follows each place."""
        self._told: Mapping[int, int] = {}
        self._moves: Mapping[ProcessId, Share] = {}
        """The subtasks that processes will gain."""
        self._caught_up: Callable[[JournalNumber], None] = lambda number: None
        self._bytes_read: dict[ProcessId, int] = {}
        """Total bytes that each process has read so far."""
        self._bytes_before: dict[ProcessId, int] = {}
        """Bytes that each process which gains subtasks had read before it began to gain them."""
        self._recorded: deque[_Recorded] = deque(maxlen=RECORDS_MAX)

    @property
    def _is_wanted(self) -> bool:
        return self._job.settings.layout.standby_state

    def completed(self, stats: CheckpointStats) -> None:
        """Note a record, and ask all followers to advance to it."""
        now_s = self._clock.monotonic()
        with self._lock:
            self._recorded.append(_Recorded(JournalNumber(stats.number), stats.incremental_bytes, now_s))
        self.look(now_s)

    def move(self, gained: Mapping[ProcessId, Share], caught_up: Callable[[JournalNumber], None]) -> None:
        """Have these processes follow, from now on, the subtasks that they gain; an empty mapping ends all moves.

        `caught_up` is called with each record that all of them have reached, if it is the newest.
        """
        with self._lock:
            before, self._moves, self._caught_up = self._moves, dict(gained), caught_up
            self._bytes_before = {
                each: self._bytes_before.get(each, self._bytes_read.setdefault(each, 0)) for each in gained
            }
            for process in (*before, *gained):
                if (known := self._standbys.get(process)) is not None:
                    known.reached = {}
        for process in [each for each in before if each not in gained]:
            self._give(process, (), JournalNumber(0), None)  # the process drops all that it follows
        self.look(self._clock.monotonic())

    def moves_have(self, number: JournalNumber | None) -> bool:
        """True if all processes that gain subtasks have their state at that record."""
        with self._lock:
            found = [self._standbys.get(process) for process in self._moves]
            return all(each is not None and each.oldest == number for each in found)

    def bytes_moved(self) -> int:
        """Bytes that processes have read from the store for the subtasks that they gain."""
        with self._lock:
            return sum(self._bytes_read[each] - before for each, before in self._bytes_before.items())

    @property
    def troubles(self) -> list[str]:
        """The reasons why processes do not follow the subtasks that they gain."""
        with self._lock:
            found = [(process, self._standbys.get(process)) for process in self._moves]
            return [f"{process.name}: {each.trouble}" for process, each in found if each is not None and each.trouble]

    def look(self, now_s: float) -> None:
        """Ask standbys that are behind to follow, and end pins that are too old."""
        newest = self._control.newest_number
        if newest is None or not (self._is_wanted or self._moves):
            return
        standbys = self._task_managers.standbys() if self._is_wanted else []
        layout = self._deployed.now
        with self._lock:
            serving = {each.number: each for each in standbys if each not in self._moves}
            self._drop_lost([*serving.values(), *self._moves])
            self._assigned = assign(range(layout.task_managers), self._assigned, list(serving))
            of_standbys = {
                process: tuple(place for place, by in self._assigned.items() if by == number)
                for number, process in serving.items()
            }
            asked = [
                process
                for process, places in [*of_standbys.items(), *((each, ()) for each in self._moves)]
                if self._is_due(process, places, self._shares(process, places, layout), newest, now_s)
            ]
            late = [each for each in self._standbys.values() if each.pinned is not None and now_s > each.until_s]
        for standby in late:
            self._unpin(standby)
        for process in asked:
            self._control.hold_newest().add_done_callback(partial(self._held, process))
        self._tell_who_follows()

    def _shares(self, process: ProcessId, places: Sequence[int], layout: Layout) -> tuple[Share, ...]:
        """Return the subtasks that a process should follow: those of its places, or those that it gains."""
        gained = self._moves.get(process)
        return tuple(_share(layout, place) for place in places) if gained is None else (gained,)

    def views(self) -> dict[ProcessId, FollowerView]:
        """Return how far each standby has come."""
        now_s = self._clock.monotonic()
        with self._lock:
            return {process: self._view(each, now_s) for process, each in self._standbys.items() if each.places}

    def _view(self, standby: _Standby, now_s: float) -> FollowerView:
        reached = [number for share in standby.shares if (number := standby.reached.get(share)) is not None]
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

    @property
    def materialized_by(self) -> str | None:
        """The processes that materialize tables, in words; None unless followers should."""
        places = self._deployed.now.task_managers
        if not self._job.settings.changelog.by_follower or not places:
            return None
        with self._lock:
            alone = places - len(self._told)
        if not alone:
            return "followers"
        return f"owners, in {alone} of {places} TaskManagers: no standby follows them at the moment"

    def gauges(self) -> dict[str, float]:
        """Metrics of all standbys together: of the standby that is furthest behind."""
        views = self.views().values()
        return {
            "followedPlaces": float(sum(each.followed for each in views)),
            "followerCheckpointsBehind": float(max((each.checkpoints_behind for each in views), default=0)),
            "followerBytesBehind": float(max((each.bytes_behind for each in views), default=0)),
            "followerMsBehind": max((each.seconds_behind for each in views), default=0.0) * 1000.0,
        }

    def _drop_lost(self, wanted: Collection[ProcessId]) -> None:
        """Forget processes that should not follow any more, or have ended. Their pins end with their calls."""
        for process in [each for each in self._standbys if each not in wanted]:
            if not self._standbys[process].under_way:
                del self._standbys[process]

    def _is_due(
        self,
        process: ProcessId,
        places: tuple[int, ...],
        shares: tuple[Share, ...],
        newest: JournalNumber,
        now_s: float,
    ) -> bool:
        """Return True if the process must be asked now, and note that it is being asked."""
        standby = self._standbys.setdefault(process, _Standby())
        if standby.under_way or now_s < standby.not_before_s or standby.has(shares, newest):
            return False
        standby.under_way, standby.places, standby.shares = True, places, shares
        return True

    def _held(self, process: ProcessId, held: "Future[JournalNumber | None]") -> None:
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
            shares = standby.shares
        asked = self._give(process, shares, number, record)
        asked.done.add_done_callback(lambda _: self._answered(process, shares, asked))

    def _give(
        self,
        process: ProcessId,
        shares: Sequence[Share],
        number: JournalNumber,
        record: CheckpointRecord | None,
    ) -> Round:
        job, layout = self._job, self._job.settings.layout
        base = BaseCheckpoint(job.epoch, CheckpointId(0), NO_BATCH)
        materializes = job.settings.changelog.by_follower and process not in self._moves
        order = FollowOrder(
            job_id=job.stored.job_id,
            epoch=job.epoch,
            task_manager=process.number,
            incarnation=process.incarnation,
            program=job.shipped,
            max_parallelism=layout.max_parallelism,
            places=[
                share_of(share.subtasks, replace(layout, parallelism=share.parallelism), job.program, [])
                for share in shares
            ],
            number=number,
            base=base if record is None else BaseCheckpoint(record.epoch, record.checkpoint_id, record.batch),
            manifests=[] if record is None else list(record.manifests),
            writers=[] if record is None else sorted(record.writers()),
            drop_state=list(job.settings.drop_state),
            beside=not shares or process in self._moves,
            changelog=job.settings.changelog if materializes else None,
        )
        asked = Round([process], lambda _, gateway: gateway.follow(order))
        return self._task_managers.begin(asked, Lane.FOLLOWING)

    def _answered(self, process: ProcessId, shares: tuple[Share, ...], asked: Round) -> None:
        standby = self._standbys[process]
        error, answer = asked.errors.get(process), asked.results.get(process)
        now_s = self._clock.monotonic()
        self._unpin(standby)
        with self._lock:
            standby.under_way = False
            if answer is not None:
                standby.answer = answer
                self._bytes_read[process] = answer.bytes_read
                standby.reached = dict(zip(shares, answer.numbers, strict=True))
                trouble = answer.left_out
            else:
                standby.not_before_s = now_s + RETRY_S
                trouble = "" if isinstance(error, TaskManagerLost | StaleCall) else str(error)
            is_new, standby.trouble = trouble not in ("", standby.trouble), trouble
        if is_new:
            log.warning("%s: %s follows others: %s", self._job.settings.name, process.name, trouble)
        newest = self._control.newest_number
        if process in self._moves and newest is not None and self.moves_have(newest):
            self._caught_up(newest)
        self._tell_who_follows()

    def offered(self, offer: BaseOffer) -> bool:
        """Give a table that a follower has stored to the TaskManager that hosts it now, which refuses it if it is not
        its own."""
        hosts, subtask = self._deployed.now.hosts, offer.base.subtask
        self._control.offered(offer, hosts[subtask] if subtask < len(hosts) else None)
        return True

    def _unpin(self, standby: _Standby) -> None:
        with self._lock:
            pinned, standby.pinned = standby.pinned, None
        if pinned is not None:
            self._control.post(LetGo(pinned))

    def _tell_who_follows(self) -> None:
        """Tell the machine which standby has state of which place."""
        layout = self._deployed.now
        with self._lock:
            follows = {
                place: process.number
                for process, standby in self._standbys.items()
                for place, share in zip(standby.places, standby.shares, strict=False)
                if standby.reached.get(share) is not None
                and share == _share(layout, place)
                and self._assigned.get(place) == process.number
            }
            changed, self._told = follows != self._told, follows
        if changed:
            self._tell(ev.StandbysFollow(follows))


def _share(layout: Layout, place: int) -> Share:
    """The subtasks of a place."""
    return Share(layout.share(place), layout.parallelism)
