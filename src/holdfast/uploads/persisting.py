"""A future in two steps: all that it will hold has names, later all of it is stored.

    asked ──names──► `named` is done ──stored──► done        an error, at any time, ends both

A checkpoint's manifest can be written from names, beside the objects that it names. An object's name is that of the
first attempt at it until it is stored; afterwards its name may be that of another attempt. So only the second result
may be kept or acknowledged.
"""

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class Persisting(Future[T]):
    """A future of something stored. `named` is done when this is, or earlier."""

    def __init__(self) -> None:
        super().__init__()
        self.named: Future[T] = Future()

    def name(self, result: T) -> None:
        """Give the result with the names of first attempts; nothing happens if it has a result already."""
        with suppress(InvalidStateError):
            self.named.set_result(result)

    def set_result(self, result: T) -> None:
        self.name(result)
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        with suppress(InvalidStateError):
            self.named.set_exception(exception)
        super().set_exception(exception)
