"""Copies of many objects by the job's own processes, side by side; the bytes do not pass through the driver.

    names ─► Portions ──take──► a thread for each process ──copy──► TaskManagers, or senders where there are none
                ▲                          │
                └──── the process ended ◄──┘

If a process ends, its portion goes to the process that asks next, and is copied from the beginning. A put writes a
complete object, so a second copy of it changes nothing. `Portions` holds the rules and is pure; `SpreadCopy` waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Protocol

from holdfast.errors import HoldfastError, SenderLost, StaleCall, TaskManagerLost
from holdfast.storage.copying import COPIES_MAX, CopiedObject, CopyOrder

OBJECTS_A_PORTION = COPIES_MAX
"""Objects that a process is given at once. More of them save calls, and are copied again if the process ends."""
COPIER_LOSSES_MAX = 5
"""Number of processes that may end while they copy the same portion; one more ends the copy with its error. A higher
value tries for longer."""
LOOK_AGAIN_S = 0.2
"""Seconds between two looks for the successor of a process that has ended."""

NamePortion = tuple[str, ...]


class Copiers(Protocol):
    """Processes that copy, by number from 0 to `count` - 1. Thread-safe."""

    count: int

    def copy(self, number: int, order: CopyOrder) -> list[CopiedObject]:
        """Have a process copy. Raises `TaskManagerLost` or `SenderLost` if it does not serve, or ends meanwhile."""
        ...


class Portions:
    """The objects of a copy: those that wait, those that a process is copying, and those that are copied. Pure."""

    def __init__(self, names: Sequence[str]) -> None:
        ends = range(0, len(names), OBJECTS_A_PORTION)
        self._waiting: deque[NamePortion] = deque(tuple(names[each : each + OBJECTS_A_PORTION]) for each in ends)
        self._under_way: set[NamePortion] = set()
        self._losses: dict[NamePortion, int] = {}
        self.copies: dict[str, CopiedObject] = {}
        self.failure: Exception | None = None

    @property
    def is_over(self) -> bool:
        """True if everything is copied, or the copy has failed."""
        return self.failure is not None or not (self._waiting or self._under_way)

    def take(self) -> NamePortion | None:
        """Give out a portion; None if none waits. A portion that is under way may still come back later."""
        if not self._waiting or self.failure is not None:
            return None
        portion = self._waiting.popleft()
        self._under_way.add(portion)
        return portion

    def copied(self, portion: NamePortion, copies: Sequence[CopiedObject]) -> None:
        self._under_way.remove(portion)
        self.copies.update((each.name, each) for each in copies)

    def lost(self, portion: NamePortion, error: Exception) -> None:
        """Note that the process of a portion ended, so that another process copies it."""
        self._under_way.remove(portion)
        self._losses[portion] = self._losses.get(portion, 0) + 1
        if self._losses[portion] > COPIER_LOSSES_MAX:
            self.failed(error)
        self._waiting.append(portion)

    def failed(self, error: Exception) -> None:
        """Note an error that ends the copy; the first error counts."""
        self.failure = self.failure or error


class SpreadCopy:
    """A copy under way.

    `ended` returns True once the query, and with it its processes, has ended. `discard` is called after a copy that
    failed, once no process writes any more.
    """

    def __init__(
        self,
        copiers: Copiers,
        order: CopyOrder,
        ended: Callable[[], bool],
        progress: Callable[[int, int], None],
        discard: Callable[[], None],
    ) -> None:
        self._copiers = copiers
        self._order = order
        self._ended = ended
        self._progress = progress
        self._discard = discard
        self._working = copiers.count
        self._changed = threading.Condition()
        self._portions = Portions(order.names)

    def run(self, timeout_s: float | None = None) -> list[CopiedObject]:
        """Copy everything; return sizes and checksums in the order of the names.

        After a time-out or an interrupt, processes still finish the portions that they are copying, and `run` does not
        wait for that.

        Raises
        ------
        StorageError
            An object cannot be read or written.
        TaskManagerLost, SenderLost
            Processes kept ending over the same objects.
        HoldfastError
            The query has ended.
        TimeoutError
            The copy takes longer than `timeout_s`.
        """
        threads = ThreadPoolExecutor(self._copiers.count, thread_name_prefix="holdfast-copies")
        try:
            working = [threads.submit(self._work, number) for number in range(self._copiers.count)]
            if wait_for(working, timeout_s).not_done:
                self._give_up(TimeoutError("not everything was copied in time"))
        except KeyboardInterrupt:
            self._give_up(HoldfastError("the copy was interrupted"))
            raise
        finally:
            threads.shutdown(wait=False)
        if self._portions.failure is not None:
            raise self._portions.failure
        return [self._portions.copies[name] for name in self._order.names]

    def _work(self, number: int) -> None:
        try:
            self._hand_portions_to(number)
        finally:
            with self._changed:
                self._working -= 1
                discards = self._working == 0 and self._portions.failure is not None
            if discards:
                self._discard()

    def _give_up(self, error: Exception) -> None:
        """End the copy before its processes have finished; the last process at work discards the copies."""
        with self._changed:
            discards = self._working == 0 and self._portions.failure is None
            self._portions.failed(error)
            self._changed.notify_all()
        if discards:
            self._discard()

    def _hand_portions_to(self, number: int) -> None:
        """Hand portions to a process until the copy is over, even if another process takes its number meanwhile."""
        while (portion := self._next()) is not None:
            order = CopyOrder(self._order.target, self._order.storage_options, list(portion))
            try:
                copies = self._copiers.copy(number, order)
            except (TaskManagerLost, SenderLost, StaleCall) as error:
                self._note(self._portions.lost, portion, error)
                self._pause()
            except Exception as error:
                self._note(self._portions.failed, error)
            else:
                self._note(self._portions.copied, portion, copies)

    def _next(self) -> NamePortion | None:
        """Wait for a portion; None once the copy is over."""
        with self._changed:
            while (portion := self._portions.take()) is None and not self._is_over():
                self._changed.wait(LOOK_AGAIN_S)
            return portion

    def _pause(self) -> None:
        with self._changed:
            if not self._is_over():
                self._changed.wait(LOOK_AGAIN_S)

    def _is_over(self) -> bool:
        if self._ended():
            self._portions.failed(HoldfastError("the query ended before everything was copied"))
        return self._portions.is_over

    def _note(self, note: Callable[..., None], *facts: object) -> None:
        with self._changed:
            note(*facts)
            copies = self._portions.copies
            self._progress(len(copies), sum(each.size for each in copies.values()))
            self._changed.notify_all()
