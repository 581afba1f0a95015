"""News of checkpoints for sources: told on the batch loop's thread, which owns the enumerators, and at the end."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from holdfast.checkpoint.events import Position
from holdfast.ids import JournalNumber
from holdfast.jobmaster.batches.planner import Planner
from holdfast.printable import logger

log = logger(__name__)


class SourceNews:
    """Passes news to sources. Any thread calls `completed`, the batch loop `tell`; `end` is called once after the loop
    has ended."""

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
        """Note that a checkpoint at that position was recorded; `tell` follows, unless a newer checkpoint comes
        first."""
        with self._lock:
            self._newest = position

    def tell(self) -> None:
        """Tell the news, and request the checkpoint that planning waits for, under any policy; request it again after a
        failure."""
        with self._lock:
            newest, self._newest = self._newest, None
        if newest is not None:
            self._planner.completed(newest)
        if self._planner.awaits_record and (self._requested is None or self._requested.done()):
            self._requested = self._request_checkpoint()

    def end(self, newest: Position | None) -> None:
        """Tell of the newest record, since the next start may come late or never. An error is only logged."""
        if newest is None:
            return
        try:
            self._planner.completed(newest)
        except Exception as error:
            log.warning("%s: a source could not be told of the last checkpoint: %s", self._job, error)
