"""What sources are told of checkpoints: on the batch loop's thread, which owns the enumerators, and at the end."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from holdfast.checkpoint.events import Position
from holdfast.ids import JournalNumber
from holdfast.jobmaster.planner import Planner

log = logging.getLogger(__name__)


class SourceNews:
    """`completed` is any thread's to call, `tell` the batch loop's, `end` is called once when that has ended."""

    def __init__(
        self, job: str, planner: Planner, request_checkpoint: Callable[[], "Future[JournalNumber | None]"]
    ) -> None:
        self._request_checkpoint = request_checkpoint
        self._requested: Future[JournalNumber | None] | None = None
        self._job = job
        self._planner = planner
        self._lock = threading.Lock()
        self._newest: Position | None = None

    def completed(self, position: Position) -> None:
        """A checkpoint at that position was recorded; `tell` follows, unless a newer one comes first."""
        with self._lock:
            self._newest = position

    def tell(self) -> None:
        """Also asks for the checkpoint that planning waits for, under any policy; again where it failed."""
        with self._lock:
            newest, self._newest = self._newest, None
        if newest is not None:
            self._planner.completed(newest)
        if self._planner.awaits_record and (self._requested is None or self._requested.done()):
            self._requested = self._request_checkpoint()

    def end(self, newest: Position | None) -> None:
        """Tell of the newest record: the next start may be long in coming, or never come. An error is only logged."""
        if newest is None:
            return
        try:
            self._planner.completed(newest)
        except Exception as error:
            log.warning("%s: a source could not be told of the last checkpoint: %s", self._job, error)
