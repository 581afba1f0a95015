"""A long-running sender: runs units from the JobMaster, order by order.

Program, store and connections to TaskManagers stay warm between orders. Each unit is reported as soon as it has ended,
whatever its outcome. Spark-free and Flight-free: `resident_server` is the way in.

Invariants
- An order has the number of the attempt under which its units were given. An order is refused if it is not newer than
  the last one, or was cancelled before it came, so a repeated call changes nothing.
- Orders run singly. A newer order waits until the last has ended; the JobMaster cancels the last first.
- The work of a cancelled or forgotten order never counts, since the JobMaster never names its attempts.
"""

import threading
from collections.abc import Iterator
from typing import Protocol

import msgspec

from holdfast.errors import StaleCall
from holdfast.exchange.connections import Connections
from holdfast.exchange.delivery import expect_outputs, run_unit
from holdfast.exchange.links import FlightLinks
from holdfast.exchange.task import LevelRequest, Links, UnitResult
from holdfast.failpoints import hit
from holdfast.graph.plan import Unit
from holdfast.graph.program import Program
from holdfast.protocol.taskmanager import CopyingGateway, ExchangeRoutes
from holdfast.storage.copying import CopiedObject, CopyOrder, carry_out
from holdfast.storage.store import ObjectStore


class OrderCommon(msgspec.Struct, frozen=True, array_like=True):
    """The part that all orders of a level share: what is done, and the addresses of the TaskManagers."""

    request: LevelRequest
    routes: ExchangeRoutes


class Order(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Units for a sender under an attempt. `common`: an encoded `OrderCommon`, which the JobMaster encodes once."""

    common: msgspec.Raw
    attempt: int
    units: list[Unit]


class SenderGateway(CopyingGateway, Protocol):
    """Requests of the JobMaster to a sender. Each raises `SenderLost` if the sender cannot be reached."""

    def run(self, order: Order) -> Iterator[UnitResult]:
        """Begin to work off units; return without waiting for a result.

        The iterator has each result as soon as the unit has ended, and raises `StaleCall` once the order is cancelled.
        """
        ...

    def cancel(self, attempt: int) -> None:
        """End the order of that attempt, and those before it, as soon as possible. Does not wait for the end."""
        ...

    def split(self, attempt: int) -> str:
        """Return the split that the order of that attempt is reading; empty if it reads none, or is not the last
        order."""
        ...


class LinkMaker(Protocol):
    """Makes links: over connections that stay open, or to TaskManagers in the same process."""

    def links(self, routes: ExchangeRoutes) -> Links: ...


class WarmLinks:
    """Makes links over Flight (`LinkMaker`), whose connections stay open."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def links(self, routes: ExchangeRoutes) -> FlightLinks:
        """Make links along `routes`; close connections that are no longer in them."""
        self._connections.keep_only(routes)
        return FlightLinks(routes, self._connections)


class ResidentSender:
    """`SenderGateway`. Safe for use from several threads."""

    def __init__(self, program: Program, store: ObjectStore, links: LinkMaker, local_dir: str | None = None) -> None:
        self.stopped = threading.Event()
        self._program = program
        self._store = store
        self._links = links
        self._local_dir = local_dir
        self._turn = threading.Lock()
        self._numbers = threading.Lock()
        self._begun = 0
        self._split = ""
        self._cancelled = 0

    def run(self, order: Order) -> Iterator[UnitResult]:
        self._begin(order.attempt)
        with self._turn:
            common = msgspec.msgpack.decode(order.common, type=OrderCommon)
            links = self._links.links(common.routes)
            expect_outputs(order.units, common.request, self._program, links)
            for unit in order.units:
                self._check(order.attempt)
                hit("sender.unit.before")
                result = run_unit(
                    unit,
                    common.request,
                    self._program,
                    links,
                    self._store,
                    lambda: self._check(order.attempt),
                    self._reads,
                    self._local_dir,
                )
                self._split = ""
                self._check(order.attempt)
                hit("sender.unit.after")
                yield result

    def cancel(self, attempt: int) -> None:
        with self._numbers:
            self._cancelled = max(self._cancelled, attempt)

    def copy(self, order: CopyOrder) -> list[CopiedObject]:
        hit("process.copy")
        return carry_out(self._store, order)

    def split(self, attempt: int) -> str:
        return self._split if attempt == self._begun else ""

    def _reads(self, split: str) -> None:
        self._split = split

    def stop(self) -> None:
        """End the process and the order in progress."""
        self.cancel(self._begun)
        self.stopped.set()

    def _begin(self, attempt: int) -> None:
        with self._numbers:
            if attempt <= self._begun:
                raise StaleCall(f"attempt {attempt}: this sender has begun attempt {self._begun}")
            self._begun = attempt

    def _check(self, attempt: int) -> None:
        if attempt <= self._cancelled:
            raise StaleCall(f"attempt {attempt} was cancelled")
