"""The link of a program to a JobMaster in the cluster: its calls, and the watch over its end."""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import cloudpickle
import msgspec

from holdfast.errors import HoldfastError, RestartsExhausted, SessionStopped
from holdfast.failure import failure_of
from holdfast.printable import logger
from holdfast.query_calls import CAUSES_MAX, READS, CallAnswer, LastWord, QueryCall, StartedQuery, error_of
from holdfast.spark.connect_retries import is_away, notice_soon
from holdfast.spark.session_mail import ENDED, SAID, STARTED, SessionMail

log = logger(__name__)

LOOK_S = 1.0
"""Seconds between two looks at the JobMaster. A higher value notices its end later."""
AGAIN_S = 10.0
"""Seconds after which the start of a successor that has failed is tried again."""
AWAY_S_MAX = 600.0
"""Bound in seconds on the time for which the server may not answer before the handle ends. A higher value outlives
longer failures of the program's network, and notices later that the server is gone for good."""
LEAVE_S_MAX = 5.0
"""Bound in seconds on the wait for a look under way when the program ends."""
AWAY = "the Spark Connect server does not answer; the job goes on there if the server does"
"""The trouble of a handle, and the start of an error of its calls, while the server does not answer."""


class StartFailed(Exception):
    """A start of a successor has failed with the error that is its cause, and may be tried again."""


class DriverChannel:
    """A JobMaster in the cluster, as its hosting session shows it. `gone` is set once it answers no more."""

    def __init__(self, session: Any) -> None:
        self.session = session
        notice_soon(session)
        self.gone = threading.Event()
        self._mail = SessionMail(session)
        self._started: StartedQuery | None = None

    @property
    def started(self) -> StartedQuery:
        return self._started or self.look_at_start()

    def look_at_start(self) -> StartedQuery:
        """Read the start, which a driver in waiting writes again once it leads."""
        found = self._mail.get(STARTED)
        assert found is not None, "asked for after has_started"
        self._started = msgspec.msgpack.decode(found, type=StartedQuery)
        return self._started

    def has_started(self) -> bool:
        return self._mail.get(STARTED) is not None

    def said(self) -> str | None:
        """Return the step at which the start is."""
        found = self._mail.get(SAID)
        return None if found is None else found.decode()

    def last_word(self) -> LastWord | None:
        found = self._mail.get(ENDED)
        return None if found is None else msgspec.msgpack.decode(found, type=LastWord)

    def is_alive(self) -> bool:
        """True while the streaming query runs that hosts the JobMaster."""
        return bool(self.session.streams.active)

    def ask(self, call: QueryCall) -> bytes | None:
        """Return the value of a call; None if the JobMaster is gone. Raises the errors of the call."""
        try:
            answer = self._mail.ask(call.name, cloudpickle.dumps(tuple(call)), self.gone)
        except Exception:
            if not self.gone.is_set():
                raise
            answer = None  # its connection was closed meanwhile
        if answer is None:
            return None
        found = msgspec.msgpack.decode(answer, type=CallAnswer)
        if found.failure is not None:
            raise error_of(found.failure)
        return found.value

    def close(self, release: bool = False) -> None:
        """Close the connection. `release`: also end the hosting session, with everything that runs in it."""
        self.gone.set()
        try:
            if release:
                self.session.client.release_session()
            self.session.client.close()
        except Exception as error:
            log.debug("the hosting session was not released: %s", error)


class ClusterLink:
    """Implements `remote_query.DriverLink`. `successor` returns the channel to a new JobMaster after the end of one, or
    raises `StartFailed`."""

    def __init__(
        self,
        channel: DriverChannel,
        successor: Callable[[DriverChannel], DriverChannel],
        losses_max: int,
        losses_window_s: float,
    ) -> None:
        self.started = channel.started
        self.last_word: LastWord | None = None
        self.trouble = ""
        self._successor, self._losses_max, self._losses_window_s = successor, losses_max, losses_window_s
        self._lost_s: deque[float] = deque(maxlen=losses_max + 1)
        self._changed = threading.Condition()
        self._channel = channel
        self._stops = False
        self._leaves = threading.Event()
        """Set once this program ends, or the query has."""
        self._thread = threading.Thread(target=self._watch, name="holdfast-cluster-driver", daemon=True)
        self._thread.start()
        _links.add(self)

    def ask(self, call: QueryCall) -> bytes | None:
        while True:
            with self._changed:
                self._stops = self._stops or (call.name == "stop" and self._channel.gone.is_set())
                self._changed.wait_for(lambda: not self._channel.gone.is_set() or self.last_word is not None)
                channel = self._channel
            if self.last_word is not None:
                return None
            self._stops = self._stops or call.name == "stop"
            try:
                answer = channel.ask(call)
            except BaseException as error:
                self._stops = False  # a refused stop has changed nothing
                if is_away(error):
                    raise HoldfastError(
                        f"{AWAY}. Whether {call.name} was carried out is not known: call again"
                    ) from error
                raise
            if answer is not None:
                return answer
            if call.name not in READS and not self._stops:
                raise HoldfastError(
                    f"the JobMaster in the cluster was lost while it carried out {call.name}; whether it did is not "
                    "known: look at query.status, and call again"
                )

    def wait(self, timeout_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.last_word is not None, timeout_s)

    def _watch(self) -> None:
        answered_s = time.monotonic()
        while not self._leaves.wait(LOOK_S):
            try:
                is_alive = self._channel.is_alive()  # before the last word, so that it is not missed
                word = self._channel.last_word()
                if not self.started.epoch:
                    self.started = self._channel.look_at_start()
                answered_s, self.trouble = time.monotonic(), ""
            except Exception as error:
                if is_away(error) and time.monotonic() - answered_s < AWAY_S_MAX:
                    if not self.trouble:
                        log.warning("%s: %s: %s", self.started.name, AWAY, str(error)[:500])
                    self.trouble = AWAY
                    continue
                lost = SessionStopped(f"the Spark Connect server does not answer, or the session has ended: {error}")
                self._end(LastWord(failure_of(lost, causes_max=CAUSES_MAX)))
                return
            if word is not None:
                self._end(word)
            elif not is_alive:
                self._replace()
                answered_s = time.monotonic()

    def _end(self, word: LastWord) -> None:
        with self._changed:
            self.last_word, self.trouble = word, ""
            self._channel.gone.set()
            self._changed.notify_all()
        self._leaves.set()
        self._channel.close()

    def _replace(self) -> None:
        """Find a successor of the JobMaster that was lost."""
        lost, name = self._channel, self.started.name
        lost.gone.set()
        if self._stops:
            self._end(LastWord())
            return
        self.trouble = "the JobMaster in the cluster was lost; waiting for its successor"
        log.warning("%s: %s", name, self.trouble)
        try:
            channel = self._next(lost)
        except Exception as error:
            self._end(LastWord(failure_of(error, causes_max=CAUSES_MAX)))
            return
        if channel is None:
            self._end(LastWord())
            return
        with self._changed:
            self._channel, self.started, self.trouble = channel, channel.started, ""
            self._changed.notify_all()
        lost.close(release=True)

    def _next(self, lost: DriverChannel) -> DriverChannel | None:
        """Return the channel to a successor; None if the query is to stop, or this program ends."""
        failed: BaseException | None = None
        for _ in range(self._losses_max + 1):
            self._lost_s.append(time.monotonic())
            self._check_losses(failed)
            try:
                return self._successor(lost)
            except StartFailed as error:
                failed = error.__cause__
            self.trouble = f"the JobMaster in the cluster was lost, and its start is tried again: {failed}"
            log.warning("%s: %s", self.started.name, self.trouble)
            if self._leaves.wait(AGAIN_S) or self._stops:
                return None
        assert failed is not None
        raise failed

    def _check_losses(self, failed: BaseException | None) -> None:
        if len(self._lost_s) > self._losses_max and self._lost_s[-1] - self._lost_s[0] < self._losses_window_s:
            raise RestartsExhausted(
                f"the JobMaster in the cluster was lost {len(self._lost_s)} times within {self._losses_window_s:g} s, "
                "with starts that failed, more often than FailoverConfig(losses_max=…) allows; look at the log of "
                "Spark's driver"
            ) from failed

    def leave(self) -> None:
        """Close the connection of a program that ends. gRPC may otherwise wait for ever as Python shuts down."""
        self._leaves.set()
        self._thread.join(LEAVE_S_MAX)
        self._channel.close()


_links: "WeakSet[ClusterLink]" = WeakSet()


def _leave_all() -> None:
    for each in list(_links):
        each.leave()


atexit.register(_leave_all)
