"""Calls of a handle to the query of another process, and their answers as bytes.

    RemoteQuery ── QueryCall ──► QueryServant ──► Query
                ◄─ CallAnswer, or the LastWord of a query that has ended

The name of a call says the type of its answer, so that an answer is read without unpickling. The way of calls and
answers is the affair of others (`spark.session_mail`).
"""

import io
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.checkpoint.updates import DeclaredLayout
from holdfast.errors import HoldfastError
from holdfast.failure import Failure, failure_of
from holdfast.formats.history import CheckpointStats, SavepointStats
from holdfast.ids import Epoch
from holdfast.jobmaster.batches.progress import Totals
from holdfast.jobmaster.batches.rescales import Rescale
from holdfast.jobmaster.savepoints.savepoints import Savepoint
from holdfast.observe.view import JobView, LostRows
from holdfast.printable import logger
from holdfast.query import Query

log = logger(__name__)

CAUSES_MAX = 8
"""Bound on the chained causes of an error that travel with it."""
RESCALES_MAX = 16
"""Number of the newest rescales of a run whose state handles may ask for."""


@dataclass(frozen=True)
class RescaleFacts:
    """The state of a rescale at the moment of a call; `id` names the rescale in later calls."""

    id: str
    before: int
    layout: DeclaredLayout
    way: str
    is_done: bool
    error: str | None
    bytes_moved: int
    progress: str


READS: dict[str, Any] = {
    "status": dict[str, Any],
    "view": JobView,
    "lastProgress": dict[str, Any] | None,
    "recentProgress": list[dict[str, Any]],
    "metricsUrl": str | None,
    "uiUrl": str | None,
    "controlToken": str | None,
    "checkpoints": list[CheckpointStats],
    "totals": Totals,
    "taskManagers": list[dict[str, Any]],
    "restarts": list[str],
    "losses": tuple[LostRows, ...],
    "savepoints": list[SavepointStats],
}
"""The members of a query that only read, and the types of their answers. A query that has ended leaves their values."""
ANSWERS: dict[str, Any] = READS | {
    "acknowledge_losses": None,
    "processAllAvailable": None,
    "trigger_checkpoint": int | None,
    "savepoint": Savepoint,
    "read_state": pa.Table,
    "rescale": RescaleFacts,
    "rescale_facts": RescaleFacts,
    "retry": None,
    "skip": None,
    "update": None,
    "stop": Savepoint | None,
}
"""All calls that a handle may make, and the types of their answers."""


class QueryCall(NamedTuple):
    """A call of a query's member. It is pickled: settings are objects, and keys of states are of any type."""

    name: str
    given: tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}


class StartedQuery(msgspec.Struct, frozen=True):
    """Facts of a query that has started. `epoch`: 0 while it waits for the end of another leader."""

    id: str
    name: str
    run_id: str
    epoch: Epoch


class CallAnswer(msgspec.Struct, frozen=True):
    """The encoded value that a call returned, or its error."""

    value: bytes = b""
    failure: Failure | None = None


class LastWord(msgspec.Struct, frozen=True):
    """The end of a query: its error, and the encoded values of all `READS`."""

    failure: Failure | None = None
    reads: dict[str, bytes] = {}


def error_of(failure: Failure) -> Exception:
    """Make an error of the same class, if it is one of Holdfast's or Python's, with the same message and causes."""
    return failure.error(HoldfastError, (TimeoutError, ValueError, TypeError))


def encoded(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=_plain)


def decoded(name: str, value: bytes) -> Any:
    """Return the value that the call `name` returned."""
    return msgspec.msgpack.decode(value, type=ANSWERS[name], dec_hook=_made)


def _plain(value: Any) -> Any:
    if isinstance(value, pa.Table):
        with io.BytesIO() as file:
            with pa.ipc.new_stream(file, value.schema) as stream:
                stream.write_table(value)
            return file.getvalue()
    if hasattr(value, "item"):  # a scalar of NumPy
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def _made(kind: type, value: Any) -> Any:
    if kind is not pa.Table:
        raise NotImplementedError(f"{kind.__name__} does not travel")
    with pa.ipc.open_stream(value) as stream:
        return stream.read_all()


class QueryServant:
    """Carries out calls on a query of this process. Thread-safe."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._rescales: dict[str, Rescale] = {}
        self._numbers = itertools.count(1)

    def answer(self, call: QueryCall) -> bytes:
        """Return the encoded `CallAnswer`; errors are part of it."""
        try:
            return msgspec.msgpack.encode(CallAnswer(encoded(self._value(call))))
        except Exception as error:
            return msgspec.msgpack.encode(CallAnswer(failure=failure_of(error, causes_max=CAUSES_MAX)))

    def last_word(self) -> LastWord:
        """Describe a query that has ended."""
        error, reads = self._query.exception(), {}
        for name in READS:
            try:
                reads[name] = encoded(self._value(QueryCall(name)))
            except Exception as failed:
                log.debug("%s of a query that has ended is not kept: %s", name, failed)
        return LastWord(None if error is None else failure_of(error, causes_max=CAUSES_MAX), reads)

    def _value(self, call: QueryCall) -> Any:
        if call.name not in ANSWERS:
            raise HoldfastError(f"a query has no member {call.name!r} for handles; it has {', '.join(ANSWERS)}")
        if call.name == "rescale_facts":
            return _facts(call.given[0], self._rescale(call.given[0]))
        member = getattr(self._query, call.name)
        value = member(*call.given, **call.named) if callable(member) else member
        if isinstance(value, Rescale):
            rescale_id = f"{self._query.runId}-{next(self._numbers)}"
            self._rescales[rescale_id] = value
            for old in list(self._rescales)[:-RESCALES_MAX]:
                del self._rescales[old]
            return _facts(rescale_id, value)
        return value

    def _rescale(self, rescale_id: str) -> Rescale:
        if rescale_id not in self._rescales:
            raise HoldfastError(
                f"rescale {rescale_id} is not known to run {self._query.runId}: it belongs to a run that has ended, or "
                f"{RESCALES_MAX} others came after it; look at query.view() for the layout that the job has now"
            )
        return self._rescales[rescale_id]


def _facts(rescale_id: str, rescale: Rescale) -> RescaleFacts:
    layout = DeclaredLayout(rescale.task_managers, rescale.parallelism, rescale.senders)
    return RescaleFacts(
        rescale_id,
        rescale.before,
        layout,
        rescale.way,
        rescale.is_done,
        rescale.error,
        rescale.bytes_moved,
        rescale.progress,
    )
