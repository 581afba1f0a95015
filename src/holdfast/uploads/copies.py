"""What hears of each object that was stored: local recovery keeps copies of them (`recovery/local.py`)."""

from pathlib import Path
from typing import Protocol


class Copies(Protocol):
    """Thread-safe."""

    def keep(self, name: str, data: bytes | memoryview, file: Path | None = None) -> None:
        """An object was stored under that name. Never raises: a copy is a convenience.

        `file`, where there is one, holds the end of `data` and will not change: it can be linked.
        """
        ...
