"""A Spark Connect session's settings as a mailbox between a JobMaster in the cluster and programs outside.

    program: set …mail.ask.<id> ──► the server keeps the session's settings ──► JobMaster: reads all, answers
             get …mail.answer.<id> ◄──                                      ◄── set …mail.answer.<id>

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

from holdfast.printable import logger

log = logger(__name__)

PREFIX = "holdfast.mail."
ASK, ANSWER = f"{PREFIX}ask.", f"{PREFIX}answer."
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

    def ask(self, request: bytes, gone: threading.Event) -> bytes | None:
        """Send a request, and wait for the answer. None: `gone` was set, and there is no answer."""
        number = uuid.uuid4().hex
        self.put(ASK + number, request)
        wait_s = POLL_S_MIN
        while True:
            is_over = gone.wait(wait_s)
            answer = self.get(ANSWER + number)
            if answer is not None:
                self.drop(ANSWER + number)
            if answer is not None or is_over:
                return answer
            wait_s = min(1.5 * wait_s, POLL_S_MAX)


class MailServer:
    """Answers the requests in a mailbox, each on its own thread, from construction until `close`."""

    def __init__(self, mail: SessionMail, answer: Callable[[bytes], bytes]) -> None:
        self._mail, self._answer = mail, answer
        self._closing = threading.Event()
        self._running: dict[str, threading.Thread] = {}
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
        found = self._mail.session.conf.getAll
        self._running = {name: thread for name, thread in self._running.items() if thread.is_alive()}
        asked = [name for name in found if name.startswith(ASK) and name not in self._running]
        for name in asked[: RUNNING_MAX - len(self._running)]:
            self._asked_s = time.monotonic()
            request = base64.b64decode(found[name])
            thread = threading.Thread(target=self._serve, args=(name, request), name="holdfast-mail-call", daemon=True)
            self._running[name] = thread
            thread.start()
        for name, at_s in list(self._answered_s.items()):
            if time.monotonic() - at_s > KEPT_S_MAX:
                del self._answered_s[name]
                self._mail.drop(name)

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
