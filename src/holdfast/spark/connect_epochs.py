"""Epochs of a streaming DataFrame on Spark Connect: the server calls `foreachBatch`, and the call is forwarded here.

    Spark's server, `epoch_forwarding`                       this program
    foreachBatch(rows, id) ─── connects, sends the id ─────► EpochWriter.store
    tasks store the parts  ◄── name of a segment ───────────   (id is in the spool: passed over)
                           ─── descriptions of the parts ──► head is stored: THE EPOCH COUNTS
    returns: Spark commits ◄── stored ──────────────────────

Invariants
- Only this program stores heads. So a query that goes on at the server after the program's death adds nothing: its next
  call finds nobody, and Spark does not commit.
- A connection lasts as long as a call, and both sides show certificates made of a secret (`taskmanager/security`). If
  it breaks, the call has failed on both sides, or the epoch counts and is passed over when Spark repeats it.
"""

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.code_shipping import pickled
from holdfast.ports import ANY, Endpoint, PortRange, listening
from holdfast.printable import logger
from holdfast.sources.spark_stream.epoch_calls import ARROW_ROWS, ARROW_ROWS_MAX, PartStorer, StoreEpoch
from holdfast.sources.spark_stream.storing import PARTS_DDL
from holdfast.spark import epoch_forwarding
from holdfast.spark.epoch_forwarding import CONNECT_S_MAX, CallMessages, Forward, ProgramAddress, context_of, watch
from holdfast.spark.shipping import shipped_by_value
from holdfast.taskmanager.security import HOST, credentials, new_secret

log = logger(__name__)

ACCEPT_AGAIN_S = 1.0
"""Seconds after which the program accepts calls again if it could not, for instance without free file descriptors."""
CALLS_MAX = 8
"""Bound on calls at once. Spark makes a call at a time; a call of a query that was replaced may still run."""


class CallsFromServer:
    """Implements `EpochCalls` for a session of Spark Connect. `own` gives a DataFrame of the job's session."""

    look_s = 1.0

    def __init__(self, own: Callable[[Any], Any], host: str, ports: PortRange = ANY) -> None:
        self._own = own
        self._host = host
        self._ports = ports
        self._server: socket.socket | None = None
        self._program: ProgramAddress
        self._room = threading.Semaphore(CALLS_MAX)
        self._calls: set[socket.socket] = set()
        self._closed = threading.Event()

    def writing(self, rows: Any, store: StoreEpoch, parts: PartStorer) -> Any:
        if self._server is None:
            self._listen(store)
        forward = Forward(self._program, pickled(parts), PARTS_DDL, {ARROW_ROWS: ARROW_ROWS_MAX})
        with shipped_by_value([epoch_forwarding]):
            return self._own(rows).writeStream.foreachBatch(forward)

    def close(self) -> None:
        self._closed.set()
        for each in [self._server, *self._calls]:
            if each is not None:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # ends waits of other threads, which a close does not
                each.close()

    def _listen(self, store: StoreEpoch) -> None:
        endpoint = Endpoint(self._host, port_range=self._ports)
        self._server = server = listening(endpoint, "the calls of a streaming DataFrame", CALLS_MAX)
        own = credentials(new_secret())
        self._program = ProgramAddress(server.getsockname()[:2], HOST, own.authority, own.certificate + own.key)
        context = context_of(self._program, is_server=True)
        threading.Thread(
            target=self._accept, args=(server, context, store), name="holdfast-epochs", daemon=True
        ).start()

    def _accept(self, server: socket.socket, context: ssl.SSLContext, store: StoreEpoch) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = server.accept()
            except OSError as error:
                if not self._closed.is_set():
                    log.warning("a call for an epoch was not accepted: %s", error)
                self._closed.wait(ACCEPT_AGAIN_S)
                continue
            self._room.acquire()
            answer = threading.Thread(target=self._answer, args=(connection, context, store), daemon=True)
            answer.start()

    def _answer(self, connection: socket.socket, context: ssl.SSLContext, store: StoreEpoch) -> None:
        try:
            connection.settimeout(CONNECT_S_MAX)
            with context.wrap_socket(connection, server_side=True) as line:
                self._calls.add(line)
                try:
                    if not self._closed.is_set():
                        answer_call(line, store)
                finally:
                    self._calls.discard(line)
        except (OSError, ValueError) as error:  # a stranger, or a server that is gone: Spark repeats the call
            log.info("a call for an epoch ended: %s", error)
        finally:
            self._room.release()


def answer_call(line: socket.socket, store: StoreEpoch) -> None:
    """Serve a call: have the epoch stored that it names, and answer that it is, or why it is not."""
    with CallMessages(line) as messages:
        batch_id = int(messages.receive())
        watch(line)

        def tasks(name: str, number: int, query: str) -> Any:
            messages.send({"store": [name, number, query]})
            return messages.receive()

        try:
            store(tasks, batch_id)
        except Exception as error:
            messages.send({"failed": str(error)})
        else:
            messages.send({"stored": batch_id})
