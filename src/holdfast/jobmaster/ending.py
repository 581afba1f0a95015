"""The end of a start: every part is closed, and every waiting caller is informed."""

from collections.abc import Callable
from concurrent.futures import Future

from holdfast import errors
from holdfast.execution import events as ev
from holdfast.jobmaster.assembly import MasterParts
from holdfast.jobmaster.batches.declared import position_of
from holdfast.printable import logger

log = logger(__name__)

PARKED_SHOWN_MAX = 20
"""Parked splits that the last line of the log names."""


class Ending:
    """The end of this start. `runs`: see `Commands`."""

    def __init__(self, parts: MasterParts, runs: "Future[None]") -> None:
        self._parts = parts
        self._runs = runs
        self._is_stopped_early = False
        self.error: Exception | None = None
        """The error that ended the query."""
        self.on_close: Callable[[], None] = lambda: None
        """Called last."""

    @property
    def outcome(self) -> Exception | None:
        """Error for those who wait when the query ends; None if everything was processed."""
        stopped = errors.QueryFailed("the query was stopped") if self._is_stopped_early else None
        return self.error or stopped

    def end(self, command: ev.End) -> None:
        """End this start; the last action of the conductor's thread."""
        parts, name = self._parts, self._parts.name
        self.error = command.error
        self._is_stopped_early = command.error is None and not command.complete
        try:
            if command.complete:
                parts.sweeper.finish()
        except Exception as error:
            self.error = error
        if self.error is not None:
            told = parts.waiters.somebody_waits() or not self._runs.done()
            parts.ended.log_error(name, self.error, told=told)
        elif self._is_stopped_early:
            log.info("%s: stopped", name)
        else:
            log.info("%s: ended: everything available was processed and published", name)
            self._log_parked()
        self.close()
        parts.ended.set()
        parts.waiters.end(self.outcome)
        if not self._runs.done():
            self._runs.set_exception(self.outcome or errors.QueryFailed("the query has ended"))

    def _log_parked(self) -> None:
        """Log the splits that the query leaves unread."""
        parked = [f"{each.source}/{each.split}" for each in self._parts.planner.splits_behind({}) if each.parked]
        if parked:
            shown = ", ".join(parked[:PARKED_SHOWN_MAX])
            text = "%s: ended without %d parked splits (%s), which the next start tries again"
            log.warning(text, self._parts.name, len(parked), shown)

    def close(self) -> None:
        """Close every part, even if others fail to close, so that the query always ends."""
        parts = self._parts
        parts.closing.set()
        closes = [
            parts.control.close,
            self._tell_sources,
            parts.task_managers.stop,
            parts.senders.stop,
            parts.cluster.stop,
            parts.planner.close,
            parts.sweeper.close,
            self.on_close,
        ]
        for close in closes:
            try:
                close()
            except Exception:
                log.exception("%s: a part of the query could not be closed; its end goes on", parts.name)

    def _tell_sources(self) -> None:
        """Tell sources of the newest record; not after a takeover by another JobMaster, since they may delete data."""
        if not self._parts.facts.is_fenced:
            self._parts.news.end(position_of(self._parts.control.newest_record))
