"""Calls of a function in this process: bounds on their number, duration and attempts, and the reaction to failures."""

import asyncio
import queue
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.back_off import doubled_s
from holdfast.calls.declared import AsyncFunction, CallContext, CallPlace, CallSettings
from holdfast.calls.kept import NOTHING, KeptAnswers
from holdfast.calls.loop import LoopThread
from holdfast.clock import Clock
from holdfast.errors import ServiceAway, UserFunctionError, in_user_code
from holdfast.printable import logger

_log = logger(__name__)

CHUNK = 1_024
"""Number of answers that are passed on together if their order does not matter. A higher value makes fewer and larger
batches."""
LOOK_S = 0.1
"""Seconds between two checks, while calls are under way, whether the rows are still wanted."""
RETRY_S_MAX = 30.0
"""The longest pause in seconds between two attempts at a call."""
CLOSE_S_MAX = 5.0
"""Seconds for which the close of a function is awaited; a longer close continues by itself."""


@dataclass(frozen=True)
class FailedCall:
    """The outcome of a call that failed for good. `reason`: the last error, and the number of attempts."""

    reason: str


class Caller:
    """Makes the calls of a function. Safe for use from several threads. `shown` names the function in messages."""

    def __init__(self, shown: str, function: AsyncFunction, settings: CallSettings, clock: Clock) -> None:
        self._shown = shown
        self._settings = settings
        self._thread = LoopThread(clock)
        self._function = function
        self._opened: asyncio.Task[None] | None = None
        self._rate = Rate()
        self._failed_in_a_row = 0
        self.kept = KeptAnswers(settings.kept_answers)

    def answers(self, items: Sequence[Any], answers: list[Any], place: CallPlace) -> Iterator[list[int]]:
        """Call the function for each item whose answer is still `NOTHING`, and put the answers into `answers`. Yields
        the places of answers as soon as they may be passed on: all at the end, or `CHUNK` by `CHUNK` as they come.

        Raises
        ------
        ServiceAway
            So many calls in a row have failed for good that the service counts as unreachable.
        UserFunctionError
            The function cannot be opened.
        """
        progress = _Progress(answers, self._settings.ordered)
        work = self._thread.submit(self._all(items, answers, place, progress))
        try:
            while True:
                try:
                    found = progress.news.get(timeout=LOOK_S)
                except queue.Empty:
                    place.check()
                    continue
                if found is None:
                    return
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            progress.is_over = True
            work.cancel()

    def close(self) -> None:
        """Close the function, and end the thread."""
        try:
            self._thread.submit(self._close()).result(CLOSE_S_MAX)
        except Exception as error:
            _log.warning("%s could not be closed: %s", self._shown, in_user_code(error))
        self._thread.close()

    # --- on the event loop ---------------------------------------------------------------------------------------

    async def _all(self, items: Sequence[Any], answers: list[Any], place: CallPlace, progress: "_Progress") -> None:
        try:
            await self._open(place)
            left = [number for number, answer in enumerate(answers) if answer is NOTHING]
            waiting = iter(left)
            if self._is_away:
                await self._work(items, answers, iter([next(waiting)] if left else []), place, progress)
            width = min(_share(self._settings.capacity, place), len(left))
            workers = [self._work(items, answers, waiting, place, progress) for _ in range(width)]
            await _side_by_side(workers, progress)
            progress.end()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            progress.news.put(error)

    async def _work(
        self, items: Sequence[Any], answers: list[Any], waiting: Iterator[int], place: CallPlace, progress: "_Progress"
    ) -> None:
        """Make one call after the other, until no call waits."""
        for number in waiting:
            answers[number] = answer = await self._answer(items[number], place, progress)
            if isinstance(answer, FailedCall):
                self._failed_in_a_row += 1
                if self._is_away:
                    raise ServiceAway(
                        f"{self._shown}: the last {self._failed_in_a_row} calls failed, so that the service counts as "
                        f"away: {answer.reason}. The batch waits, and asks again"
                    )
            else:
                self._failed_in_a_row = 0
            progress.add(number)

    @property
    def _is_away(self) -> bool:
        breaker = self._settings.breaker
        return breaker is not None and self._failed_in_a_row >= breaker

    async def _answer(self, item: Any, place: CallPlace, progress: "_Progress") -> Any:
        """Call the function, as often as the settings allow."""
        settings = self._settings
        attempts = 0
        while True:
            await self._rate.turn(settings.rate, place.side_by_side)
            attempts += 1
            try:
                return await _within(self._function.call(item), settings.timeout_s)
            except BaseException as raised:
                if progress.is_over:
                    raise
                error = raised
            if attempts > settings.retries or not isinstance(error, settings.retry_on):
                tried = "" if attempts == 1 else f", after {attempts} attempts"
                return FailedCall(f"{in_user_code(error)}{tried}")
            pause_s = doubled_s(settings.retry_delay_s, attempts, RETRY_S_MAX) * random.uniform(0.5, 1.0)
            await asyncio.sleep(pause_s)

    async def _open(self, place: CallPlace) -> None:
        """Open the function, unless that was done or is under way."""
        if self._opened is None:
            context = CallContext(_share(self._settings.capacity, place))
            self._opened = asyncio.get_running_loop().create_task(_opened(self._function, context))
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._opened = None
            raise UserFunctionError(f"{self._shown}: open() raised {in_user_code(error)}") from error

    async def _close(self) -> None:
        if self._opened is not None:
            await self._function.close()
            self._opened = None


async def _opened(function: AsyncFunction, context: CallContext) -> None:
    await function.open(context)


def _share(capacity: int, place: CallPlace) -> int:
    return max(1, capacity // place.side_by_side)


async def _side_by_side(work: Iterable[Any], progress: "_Progress") -> None:
    """Run coroutines until all have ended, or one has failed; the others are cancelled then."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        progress.is_over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _within(call: Any, timeout_s: float | None) -> Any:
    """Await a call; raise `TimeoutError` if it takes longer. `asyncio.wait_for` would make a task for each call."""
    if timeout_s is None:
        return await call
    task = asyncio.current_task()
    assert task is not None
    expired: list[bool] = []
    handle = asyncio.get_running_loop().call_later(timeout_s, _expire, task, expired)
    try:
        return await call
    except asyncio.CancelledError:
        if not expired:
            raise
        if hasattr(task, "uncancel"):
            task.uncancel()
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    finally:
        handle.cancel()


def _expire(task: "asyncio.Task[Any]", expired: list[bool]) -> None:
    expired.append(True)
    task.cancel()


class Rate:
    """Spaces calls evenly, so that all processes together do not exceed a rate."""

    def __init__(self) -> None:
        self._next_s = 0.0

    async def turn(self, rate: float | None, side_by_side: int) -> None:
        """Wait for the turn of a call. `rate`: calls a second of the whole job; None: there is no limit."""
        if rate is None:
            return
        now_s = asyncio.get_running_loop().time()
        turn_s = max(self._next_s, now_s)
        self._next_s = turn_s + side_by_side / rate
        if turn_s > now_s:
            await asyncio.sleep(turn_s - now_s)


class _Progress:
    """Progress of the calls for some items, for the caller's thread. `news` has the places of answers that may be
    passed on, and at the end None or an error. `is_over`: True once no further answers are wanted, so that a cancelled
    call does not count as failed.
    """

    def __init__(self, answers: list[Any], ordered: bool) -> None:
        self.news: queue.SimpleQueue[list[int] | BaseException | None] = queue.SimpleQueue()
        self.is_over = False
        self._ordered = ordered
        self._places = [number for number, answer in enumerate(answers) if answer is not NOTHING]

    def add(self, number: int) -> None:
        self._places.append(number)
        if not self._ordered and len(self._places) >= CHUNK:
            self.news.put(self._places)
            self._places = []

    def end(self) -> None:
        self.news.put(sorted(self._places) if self._ordered else self._places)
        self.news.put(None)
