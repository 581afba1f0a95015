"""A rescale: another layout while batches continue, or a move away from machines about to be removed.

    RescaleAsked ──► processes start ──► FollowMoves ──MovesFollow──► at a batch boundary: HandOver, AskBase, Deploy
         │                                   ▲                                                      │
         └── out of time, or failed too often ──► EndMoves(error)      EndMoves ◄──Deployed─────────┤
                                             └────────── not handed over, or a restart ─────────────┘

The old layout stays in force until everything is deployed in the new layout: a failure before that takes the job back
to the old layout, a failure after it finds the new one. The machine makes the deployments; this module keeps the state
of the rescale, and decides when to deploy. In a rescale `in_place` no TaskManager follows: the deployment restores the
gained subtasks while no batch runs.
"""

from collections.abc import Mapping

from holdfast.execution import events as ev
from holdfast.execution import moves
from holdfast.execution.places import Places, gained, rescaled
from holdfast.ids import BatchNumber, Incarnation

ATTEMPTS_MAX = 3
"""Deployments of a new layout that may fail before the rescale is given up."""
PAUSE_S = 0.5
"""Seconds between two attempts to hand over. A higher value disturbs batches less if a source refuses a cut."""


class Rescaling:
    """The rescale that is under way, if any."""

    def __init__(self) -> None:
        self.asked: moves.RescaleAsked | None = None
        self.places: Places | None = None
        """The places of the new layout in the last order."""
        self.handed_over: BatchNumber | None = None
        """The last committed batch, during the time in which nothing is committed until the new layout is deployed."""
        self._before = Places()
        self._follows = False
        self._failures = 0
        self._not_before_s = 0.0
        self._reason = "too few TaskManagers have started"

    def begin(self, asked: moves.RescaleAsked) -> None:
        """Begin a rescale. None may be under way."""
        self.__init__()  # type: ignore[misc]
        self.asked = asked

    def target(
        self,
        before: Places,
        live: Mapping[int, Incarnation],
        staying: Mapping[int, Incarnation],
        follows: Mapping[int, int],
    ) -> list[ev.Command]:
        """Choose the places of the new layout, unless the chosen ones are still valid. `staying`: the live TaskManagers
        whose machine stays. `follows`: as in `rescaled`.
        """
        if self.asked is None or not before.still_held(live):
            return []
        if self.places is not None and before == self._before and self.places.still_held(staying):
            return []
        self.places = rescaled(self.asked.task_managers, before, staying, self.asked.parallelism, follows)
        self._before, self._follows = before, self.asked.in_place
        if self.places is None or self.asked.in_place:
            return []
        self._reason = "those who gain subtasks have not caught up"
        self._follows = not gained(before, self.places)
        return [moves.FollowMoves(before, self.places)]

    def again(self) -> None:
        """Choose the places again: TaskManagers may have dropped the state that they followed."""
        self.places, self.handed_over, self._follows = None, None, False

    def follow(self, holders: tuple[int, ...], parallelism: int) -> bool:
        """Note that all gaining TaskManagers have caught up; return True if this is new."""
        places = self.places
        is_meant = places is not None and (places.holders, places.parallelism) == (holders, parallelism)
        is_news = is_meant and not self._follows
        self._follows = self._follows or is_news
        return is_news

    def is_due(self, live: Mapping[int, Incarnation], now_s: float) -> bool:
        """True if the job should hand over at this batch boundary."""
        stands = self.places is not None and self.places.still_held(live)
        return stands and self._follows and now_s >= self._not_before_s

    def put_off(self, reason: str, now_s: float) -> None:
        """Hand over a little later."""
        self._reason, self._not_before_s, self.handed_over = reason, now_s + PAUSE_S, None

    def failed(self, reason: str) -> None:
        """Note that the new layout could not be deployed."""
        self._failures += 1
        self._reason = reason
        self.again()

    def over(self, now_s: float) -> str | None:
        """Return the reason for which the rescale must be given up; None if it may continue."""
        if self.asked is None or self.handed_over is not None:
            return None
        if self._failures >= ATTEMPTS_MAX:
            return f"it failed {self._failures} times; the last cause: {self._reason}"
        return f"it took too long: {self._reason}" if now_s > self.asked.until_s else None

    def end(self) -> None:
        """End the rescale: none is under way any more."""
        self.__init__()  # type: ignore[misc]
