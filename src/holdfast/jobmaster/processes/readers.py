"""Threads that read the answers of senders: few threads while answers come soon, more while they do not.

    Give ──begin──► the call is under way ──► queue of answers ──► a reader takes an answer, and reads it to its end
                                                                    └─ no answer was taken between two looks: more

A thread for each sender would cost the driver more than the orders: with hundreds of senders, it would spend most of
its time on switches between threads. Flight receives the answer to a call even if no thread reads it yet, so a few
readers mostly find answers that are there already. If units take long, readers are added until waiting answers are read
at once.
"""

import queue
import threading
from collections.abc import Callable

READERS_MIN = 4
"""Number of readers that never end. More readers begin more calls side by side; fewer switch less."""
IDLE_S_MAX = 10.0
"""Seconds without an answer after which a reader beyond `READERS_MIN` ends."""

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

    def allow(self, readers_max: int) -> None:
        """Allow more answers to be under way at once."""
        with self._lock:
            self._readers_max = max(self._readers_max, readers_max)

    def look(self) -> None:
        """If answers wait and no answer was taken since the last look, double the number of readers, within the
        bounds."""
        with self._lock:
            stands_still = self._taken == self._taken_at_look and not self._answers.empty()
            self._taken_at_look = self._taken
            if self._closed or not stands_still:
                return
            for _ in range(min(self._answers.qsize(), self._count, self._readers_max - self._count)):
                self._start()

    def close(self) -> None:
        """Read no further answer; a reader that is reading an answer finishes by itself."""
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
