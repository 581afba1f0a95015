"""Threads that read the answers of senders: few while answers come soon, more while they do not.

    Give ──begin──► the call is under way ──► queue of answers ──► a reader takes an answer, and reads it to its end
                                                                    └─ nothing was taken for a look: more readers

A thread for each sender would cost the driver more than the orders: with hundreds of senders most of its time would be
switches between threads. A call that is under way is received by Flight whether somebody reads it or not, so a few
find answers that are there already. If units take long, each answer that comes soon has its own reader.
"""

import queue
import threading
from collections.abc import Callable

READERS_MIN = 4
"""Readers that stay. More begin calls side by side; fewer switch less."""
IDLE_S_MAX = 10.0
"""A reader beyond `READERS_MIN` ends after so many seconds without an answer."""

Reading = Callable[[], None]
"""Reads an answer to its end."""


class Readers:
    """Reads answers. Thread-safe, and never blocks a caller. `readers_max`: most answers that are under way at once."""

    def __init__(self, readers_max: int) -> None:
        self._readers_max = max(1, readers_max)
        self._answers: queue.SimpleQueue[Reading | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._taken = 0
        self._taken_at_look = 0
        self._closed = False

    def read(self, answer: Reading) -> None:
        """Have an answer read soon."""
        with self._lock:
            if self._closed:
                return
            self._answers.put(answer)
            if self._count < min(READERS_MIN, self._readers_max):
                self._start()

    def look(self) -> None:
        """Start as many readers again where answers wait and none was taken since the last look."""
        with self._lock:
            stands_still = self._taken == self._taken_at_look and not self._answers.empty()
            self._taken_at_look = self._taken
            if self._closed or not stands_still:
                return
            for _ in range(min(self._answers.qsize(), self._count, self._readers_max - self._count)):
                self._start()

    def close(self) -> None:
        """Read nothing further; an answer that is being read is left to itself."""
        with self._lock:
            self._closed = True
            for _ in range(self._count):
                self._answers.put(None)

    def _start(self) -> None:
        self._count += 1
        threading.Thread(target=self._read_all, name="holdfast-reader", daemon=True).start()

    def _read_all(self) -> None:
        while (answer := self._next()) is not None:
            self._taken += 1
            answer()

    def _next(self) -> Reading | None:
        """The next answer; None ends the reader."""
        while True:
            try:
                found = self._answers.get(timeout=IDLE_S_MAX)
            except queue.Empty:
                found = None
            with self._lock:
                if found is not None and not self._closed:
                    return found
                if self._closed or self._count > READERS_MIN:
                    self._count -= 1
                    return None
