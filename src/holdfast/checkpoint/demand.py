"""Requests for a checkpoint, and refusals to be cut at the last batch boundary.

    policy's trigger due ─┐               ┌─► nobody refuses: cut
                          ├─► wanted ─────┤
    somebody asks ────────┘      ▲        └─► refused: named once for each trigger ──┐
                                 └──────────── stays due until a later boundary ◄────┘

Does not own: the other conditions of a cut (progress, a free place, the pause), and how a refusal is counted.
"""

from dataclasses import dataclass

from holdfast.availability import Refusal, listed
from holdfast.checkpoint.triggers import CheckpointTrigger, Every, OnWatermark, TriggerSchedule, WatermarkSchedule
from holdfast.ids import CheckpointId

BY_POLICY = "policy"
BY_REQUEST = "request"
BY_SAVEPOINT = "savepoint"


@dataclass(frozen=True, slots=True)
class NotifyRefused:
    """A trigger came due and was refused at the last boundary: nothing was cut, and it stays due.

    The command comes once for each trigger, and once more if the first hard refusal comes after soft ones. `counted`: a
    refusal was hard, which counts as a failed checkpoint.
    """

    checkpoint_id: CheckpointId
    trigger: str
    refusals: tuple[Refusal, ...]
    counted: bool

    @property
    def reason(self) -> str:
        return f"refused by {listed(self.refusals)}"


class Demand:
    """The triggers that wait for a cut, and the answers given at the last boundary."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        """Requests that were not served yet."""
        self.refusals: tuple[Refusal, ...] = ()
        self._savepoints: set[str] = set()
        """The requests that are made for a savepoint."""
        self._schedule = TriggerSchedule()
        self._is_first = True
        """True if no trigger of the policy was answered since the start."""
        self.event_time = WatermarkSchedule()
        self._by_watermark = False
        """True if the last demand that was reported came from event time."""
        self._refused_requests = 0
        """Number of requests, counted from the oldest, whose refusal was reported."""
        self._refused_hard: set[str] = set()
        """Kinds of triggers whose current trigger was refused hard already."""
        self.is_held = False
        """True if a trigger of the policy was refused, and waits for another boundary."""

    @property
    def waits_for(self) -> tuple[Refusal, ...]:
        """Refusals that keep a trigger waiting; empty if none waits."""
        return self.refusals if self.is_held or self._refused_requests else ()

    def started(self, wall_s: float) -> None:
        self._schedule.served(wall_s)

    def due_s(
        self, trigger: CheckpointTrigger, wall_s: float, watermark_us: int | None, *, at_commit: bool
    ) -> float | None:
        """The demand of the policy's trigger that is due now; None if nothing is due."""
        self._by_watermark = isinstance(trigger, OnWatermark)
        if isinstance(trigger, OnWatermark):
            due_us = self.event_time.due_us(trigger, watermark_us, at_commit=at_commit)
            return None if due_us is None else due_us / 1e6
        if at_commit and self._is_first and isinstance(trigger, Every) and trigger.at_first_rows:
            return wall_s
        return self._schedule.due_s(trigger, wall_s, at_commit=at_commit)

    def next_due_s(self, trigger: CheckpointTrigger, wall_s: float) -> float | None:
        """The time at which the policy's trigger comes due by the clock; None if it does not, or is due already."""
        return self._schedule.next_due_s(trigger, wall_s)

    def answered(self, due_s: float) -> None:
        """Note that a cut or a refusal answered the policy's trigger; the next trigger comes due at its own time."""
        self._is_first = False
        if self._by_watermark:
            self.event_time.served(round(due_s * 1e6))
        else:
            self._schedule.served(due_s)

    def ask_for_savepoint(self, request_id: str) -> None:
        self.requests.append(request_id)
        self._savepoints.add(request_id)

    @property
    def asked_by(self) -> str:
        """The name that the history gives to a cut for these requests."""
        return BY_SAVEPOINT if self._savepoints.intersection(self.requests) else BY_REQUEST

    def take_requests(self) -> list[str]:
        taken, self.requests, self._refused_requests = self.requests, [], 0
        self._savepoints.clear()
        return taken

    def refuse_requests(self) -> bool:
        """Let the requests wait for another boundary. Return True if the refusal must be reported."""
        is_new, self._refused_requests = len(self.requests) > self._refused_requests, len(self.requests)
        return self._is_news(BY_REQUEST, is_new)

    def refuse_policy(self, is_new: bool) -> bool:
        """Let the policy's trigger wait for another boundary. Return True if the refusal must be reported."""
        self.is_held = True
        return self._is_news(BY_POLICY, is_new)

    def _is_news(self, trigger: str, is_new: bool) -> bool:
        """Return True if a refusal must be reported: once for each trigger, and again if it is hard for the first
        time."""
        is_hard = any(each.hard for each in self.refusals)
        is_news = is_new or (is_hard and trigger not in self._refused_hard)
        if is_new:
            self._refused_hard.discard(trigger)
        if is_hard:
            self._refused_hard.add(trigger)
        return is_news
