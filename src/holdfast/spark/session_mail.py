"""A Spark Connect session's settings as a mailbox between a JobMaster in the cluster and programs outside.

    program: set …mail.ask.<call>.<id> ──► the server keeps the session's settings ──► JobMaster: reads all, answers
             get …mail.answer.<call>.<id> ◄──                               ◄── set …mail.answer.<call>.<id>

Both sides reach the server, whatever else they reach. A request takes no slot and no request of the object store.
Whoever may open this session on the server, which the server decides by user and token, may also run any code there.
The JobMaster's questions keep the session alive, and with it the streaming query that hosts the JobMaster.
"""

import base64
import copy
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.printable import logger

log = logger(__name__)

PREFIX = "holdfast.mail."
ASK, ANSWER = f"{PREFIX}ask.", f"{PREFIX}answer."
STOP = f"{ASK}stop."
SAID, STARTED, ENDED = f"{PREFIX}said", f"{PREFIX}started", f"{PREFIX}ended"
"""The words of a JobMaster: the step of its start, its `StartedQuery`, and its `LastWord`."""

POLL_S_MIN, POLL_S_MAX = 0.05, 0.5
"""Seconds between two looks for an answer: first, and after some looks."""
AWAKE_S, IDLE_S = 0.1, 1.0
"""Seconds between two looks for requests: while programs ask, and otherwise. A first request waits up to `IDLE_S`."""
AWAKE_S_MAX = 10.0
"""Seconds after a request for which the JobMaster looks often."""
RUNNING_MAX = 16
"""Bound on the requests that are carried out at a time. Further requests wait in the mailbox."""
STOPS_MAX = 4
"""Bound on the requests to stop that are carried out beside those, which may all be stuck."""
KEPT_S_MAX = 120.0
"""Seconds after which an answer that nobody took is thrown away."""


def same_session(spark: Any, session_id: str) -> Any:
    """Return a session object for the session with that id of the same server and user. A session that the server does
    not know is made, empty."""
    from pyspark.sql.connect.session import SparkSession

    connection = copy.deepcopy(spark.client._builder)
    connection.set("session_id", session_id)
    return SparkSession(connection=connection, userId=spark.client._user_id)


class SessionMail:
    """The mailbox in a session. Thread-safe. Raises Spark's errors if the server does not answer."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def put(self, name: str, body: bytes) -> None:
        self.session.conf.set(name, base64.b64encode(body).decode())

    def get(self, name: str) -> bytes | None:
        found = self.session.conf.get(name, None)
        return None if found is None else base64.b64decode(found)

    def drop(self, name: str) -> None:
        self.session.conf.unset(name)

    def clear(self) -> None:
        """Throw everything away: a clone of a session has its mail, too."""
        for name in [each for each in self.session.conf.getAll if each.startswith(PREFIX)]:
            self.drop(name)

    def ask(self, name: str, request: bytes, gone: threading.Event) -> bytes | None:
        """Send a request, the call of `name`, and wait for the answer. None: `gone` was set, and there is no answer.

        Raises `HoldfastError` if the answer was thrown away.
        """
        number = f"{name}.{uuid.uuid4().hex}"
        self.put(ASK + number, request)
        wait_s = POLL_S_MIN
        while True:
            is_over = gone.wait(wait_s)
            # The request is dropped after its answer was written, so it is looked at first.
            is_carried_out = wait_s >= POLL_S_MAX and not is_over and self.get(ASK + number) is None
            answer = self.get(ANSWER + number)
            if answer is not None:
                self.drop(ANSWER + number)
            if answer is not None or is_over:
                return answer
            if is_carried_out:
                raise HoldfastError(
                    f"the JobMaster in the cluster carried out {name}, and its answer is gone: nobody took it within "
                    f"{KEPT_S_MAX:g} s (this machine may have slept), or it could not be written; look at "
                    "query.status, and call again"
                )
            wait_s = min(1.5 * wait_s, POLL_S_MAX)


class MailServer:
    """Answers the requests in a mailbox, each on its own thread, from construction until `close`."""

    def __init__(self, mail: SessionMail, answer: Callable[[bytes], bytes]) -> None:
        self._mail, self._answer = mail, answer
        self._closing = threading.Event()
        self._running: dict[str, threading.Thread] = {}
        """The requests that are carried out, and those that were, until a look shows them no longer."""
        self._answered_s: dict[str, float] = {}
        self._asked_s = -AWAKE_S_MAX
        self._thread = threading.Thread(target=self._run, name="holdfast-mail", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        failed = 0
        while not self._closing.is_set():
            try:
                self._look()
                failed = 0
            except Exception as error:
                failed += 1
                if failed == 1:
                    log.warning("requests of programs outside cannot be read: %s", str(error)[:500])
            is_awake = not failed and time.monotonic() - self._asked_s < AWAKE_S_MAX
            self._closing.wait(AWAKE_S if is_awake else IDLE_S)

    def _look(self) -> None:
        over = [name for name, thread in self._running.items() if not thread.is_alive()]  # before the look
        found = self._mail.session.conf.getAll
        left = [name for name in over if name in found]
        running = len(self._running) - len(over)
        for name in set(over).difference(left):
            del self._running[name]
        for name in [name for name in found if name.startswith(ASK) and name not in self._running]:
            if running < RUNNING_MAX + STOPS_MAX * name.startswith(STOP):
                running += 1
                self._begin(name, base64.b64decode(found[name]))
        for name in left:  # neither the answer nor its end could be written: the program outside learns that it is over
            self._mail.drop(name)
        for name, at_s in list(self._answered_s.items()):
            if time.monotonic() - at_s > KEPT_S_MAX:
                del self._answered_s[name]
                self._mail.drop(name)

    def _begin(self, name: str, request: bytes) -> None:
        self._asked_s = time.monotonic()
        thread = threading.Thread(target=self._serve, args=(name, request), name="holdfast-mail-call", daemon=True)
        self._running[name] = thread
        thread.start()

    def _serve(self, name: str, request: bytes) -> None:
        try:
            answer = self._answer(request)
            answered = ANSWER + name.removeprefix(ASK)
            self._mail.put(answered, answer)
            self._answered_s[answered] = time.monotonic()
            self._mail.drop(name)
        except Exception as error:
            log.warning("a request of a program outside was not answered: %s", str(error)[:500])

    def close(self, seconds: float) -> None:
        """Read no further requests, and wait up to `seconds` for those that are being carried out."""
        self._closing.set()
        until_s = time.monotonic() + seconds
        for each in [self._thread, *self._running.values()]:
            each.join(max(0.0, until_s - time.monotonic()))
