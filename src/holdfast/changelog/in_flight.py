"""The bound on bytes that are encoded and not yet stored: whoever wants more waits until some are."""

import threading


class InFlight:
    """Bytes in flight, at most `bytes_max`; a single larger one goes alone. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    @property
    def bytes(self) -> int:
        with self._changed:
            return self._bytes

    def acquire(self, size_bytes: int) -> None:
        """Waits while the bound would be passed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size_bytes <= self._bytes_max)
            self._bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        with self._changed:
            self._bytes -= size_bytes
            self._changed.notify_all()
