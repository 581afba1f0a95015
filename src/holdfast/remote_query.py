"""Handle of a query whose JobMaster runs in the cluster: each member is a call to the query there.

A JobMaster that is lost may be replaced by another, to which later calls go. Once the query has ended, the handle shows
the values that the query left (`LastWord`).
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from holdfast.errors import HoldfastError, QueryFailed, RescaleFailed
from holdfast.formats.history import SavepointStats
from holdfast.jobmaster.batches.progress import Totals
from holdfast.jobmaster.batches.rescales import Rescale
from holdfast.jobmaster.savepoints.savepoints import Savepoint
from holdfast.observe.view import JobView, LostRows
from holdfast.quantities import Duration
from holdfast.query import Query
from holdfast.query_calls import LastWord, QueryCall, RescaleFacts, StartedQuery, decoded, error_of
from holdfast.settings import CheckpointConfig
from holdfast.ui.checkpoint_list import CheckpointList

POLL_S = 0.5
"""Seconds between two questions about a rescale that somebody waits for."""


class DriverLink(Protocol):
    """The way to the JobMaster in the cluster. Thread-safe."""

    @property
    def started(self) -> StartedQuery:
        """The start of the query that answers now."""
        ...

    @property
    def last_word(self) -> LastWord | None:
        """The end of the query; None while it runs."""
        ...

    @property
    def trouble(self) -> str:
        """The reason why nobody answers at the moment; empty if the JobMaster does."""
        ...

    def ask(self, call: QueryCall) -> bytes | None:
        """Return the answer to a call, as the query encoded it. None: the query has ended. Raises `HoldfastError`."""
        ...

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end of the query; True if it has ended."""
        ...


class RemoteQuery(Query):
    """A started job whose JobMaster runs in the cluster. Thread-safe."""

    def __init__(self, link: DriverLink) -> None:
        self._link = link
        self._on_end: Callable[[], None] = lambda: None
        self._drawing: threading.Thread | None = None

    def _ask(self, name: str, *given: Any, **named: Any) -> Any:
        """Return the value of a member of the query in the cluster. Raises the errors of the member."""
        answer = None if self._link.last_word is not None else self._link.ask(QueryCall(name, given, named))
        if answer is not None:
            return decoded(name, answer)
        word = self._link.last_word
        if word is None or name not in word.reads:
            raise HoldfastError(f"query {self.name!r} has ended, and {name} needs one that runs; start the job again")
        return decoded(name, word.reads[name])

    @property
    def id(self) -> str:
        return self._link.started.id

    @property
    def runId(self) -> str:
        return self._link.started.run_id

    @property
    def name(self) -> str:
        return self._link.started.name

    @property
    def isActive(self) -> bool:
        return self._link.last_word is None

    @property
    def status(self) -> dict[str, Any]:
        trouble = self._link.trouble
        if trouble:
            return {"message": trouble, "isDataAvailable": False, "isTriggerActive": False}
        found: dict[str, Any] = self._ask("status")
        return found

    def view(self) -> JobView:
        found: JobView = self._ask("view")
        return found

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._ask("lastProgress")
        return found

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("recentProgress")
        return found

    @property
    def metricsUrl(self) -> str | None:
        found: str | None = self._ask("metricsUrl")
        return found

    @property
    def uiUrl(self) -> str | None:
        found: str | None = self._ask("uiUrl")
        return found

    @property
    def controlToken(self) -> str | None:
        found: str | None = self._ask("controlToken")
        return found

    @property
    def checkpoints(self) -> CheckpointList:
        return CheckpointList(self._ask("checkpoints"))

    @property
    def totals(self) -> Totals:
        found: Totals = self._ask("totals")
        return found

    @property
    def taskManagers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("taskManagers")
        return found

    @property
    def restarts(self) -> list[str]:
        found: list[str] = self._ask("restarts")
        return found

    @property
    def losses(self) -> tuple[LostRows, ...]:
        found: tuple[LostRows, ...] = self._ask("losses")
        return found

    @property
    def savepoints(self) -> list[SavepointStats]:
        found: list[SavepointStats] = self._ask("savepoints")
        return found

    def acknowledge_losses(self) -> None:
        self._ask("acknowledge_losses")

    def draw_progress(self) -> None:
        """Draw nothing: each picture would be a call to the cluster. `show` draws on demand."""

    def awaitTermination(self, timeout: float | None = None) -> bool:
        ended = self._link.wait(timeout)
        failed = self.exception() if ended else None
        if failed is not None:
            raise failed from failed.__cause__
        return ended

    def processAllAvailable(self) -> None:
        self._ask("processAllAvailable")

    def trigger_checkpoint(self, timeout: Duration | float | None = None) -> int | None:
        number: int | None = self._ask("trigger_checkpoint", timeout)
        return number

    def savepoint(
        self, url: str, *, timeout: Duration | None = None, storage_options: Mapping[str, str] | None = None
    ) -> Savepoint:
        made: Savepoint = self._ask("savepoint", url, timeout=timeout, storage_options=storage_options)
        return made

    def read_state(self, operator: str, state: str | None = None, *, key: Mapping[str, Any]) -> pa.Table:
        return self._ask("read_state", operator, state, key=dict(key))

    def rescale(
        self,
        *,
        task_managers: int | None = None,
        parallelism: int | None = None,
        senders: int | None = None,
        in_place: bool = False,
        timeout: Duration = "10min",
    ) -> Rescale:
        wanted = {"task_managers": task_managers, "parallelism": parallelism, "senders": senders}
        return RemoteRescale(self._ask, self._ask("rescale", **wanted, in_place=in_place, timeout=timeout))

    def retry(self, split: str, *, source: str | None = None) -> None:
        self._ask("retry", split, source=source)

    def skip(self, split: str, position: int, *, source: str | None = None) -> None:
        self._ask("skip", split, position, source=source)

    def update(
        self,
        *,
        checkpoint: CheckpointConfig | None = None,
        keep: bool = False,
        forget: bool = False,
        **settings: object,
    ) -> None:
        self._ask("update", checkpoint=checkpoint, keep=keep, forget=forget, **settings)

    def exception(self) -> QueryFailed | None:
        word = self._link.last_word
        if word is None or word.failure is None:
            return None
        found = error_of(word.failure)
        if isinstance(found, QueryFailed):
            return found
        failed = QueryFailed(f"query {self.name!r} ended: {found}")
        failed.__cause__ = found
        return failed

    def stop(
        self,
        *,
        with_savepoint: str | None = None,
        timeout: Duration | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Savepoint | None:
        """Stop the query in the cluster, with the arguments `with_savepoint`, `timeout` and `storage_options` of
        `Query.stop`; nothing of the job runs there afterwards."""
        named = {"with_savepoint": with_savepoint, "timeout": timeout, "storage_options": storage_options}
        answer = None if self._link.last_word is not None else self._link.ask(QueryCall("stop", (), named))
        self._link.wait(None)
        if answer is not None:
            made: Savepoint | None = decoded("stop", answer)
            return made
        if with_savepoint is not None:
            raise HoldfastError(
                f"query {self.name!r} has ended, and made no savepoint for this call; start the job again, and call "
                "stop(with_savepoint=…) on it"
            )
        return None


class RemoteRescale(Rescale):
    """A rescale of a query in the cluster, whose facts are asked for until it is done."""

    def __init__(self, ask: Callable[..., Any], facts: RescaleFacts) -> None:
        self._ask, self._facts = ask, facts
        self.before, self.way = facts.before, facts.way
        self.task_managers, self.parallelism, self.senders = facts.layout

    def _now(self) -> RescaleFacts:
        if not self._facts.is_done:
            self._facts = self._ask("rescale_facts", self._facts.id)
        return self._facts

    @property
    def is_done(self) -> bool:
        return self._now().is_done

    @property
    def error(self) -> str | None:
        return self._now().error

    @property
    def bytes_moved(self) -> int:
        return self._now().bytes_moved

    @property
    def progress(self) -> str:
        return self._now().progress

    def wait(self, timeout: float | None = None) -> None:
        began_s = time.monotonic()
        while not self.is_done:
            if timeout is not None and time.monotonic() - began_s > timeout:
                raise TimeoutError(f"the rescale goes on after {timeout:g} s: {self.progress}")
            time.sleep(POLL_S)
        if self._facts.error is not None:
            raise RescaleFailed(f"rescale {self._facts.progress}")
