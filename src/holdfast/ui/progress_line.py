"""A line in a terminal or notebook that shows the current step of a start, and the progress of an `available_now` run.

The line is overwritten, and erased at its end. If standard error is neither a terminal nor a notebook, for example a
log file, nothing is drawn.
"""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TextIO

from holdfast.printable import logger, printable
from holdfast.quantities import size_text

if TYPE_CHECKING:
    from holdfast.observe.view import JobView

REFRESH_S = 0.25
"""Seconds between two updates of the line. A lower value is more up to date and costs more."""
BAR_CHARACTERS = 20
WIPED = "\r\x1b[K"

_log = logger(__name__)


class Compiling(NamedTuple):
    """The number of kernels that the job's processes have compiled, and the seconds since the first of them."""

    kernels: int
    seconds: float


def terminal() -> TextIO | None:
    """Return standard error if a person reads it: a terminal, or the output of a notebook's cell."""
    stream = sys.stderr
    return stream if stream is not None and (is_notebook(stream) or stream.isatty()) else None


def is_notebook(stream: TextIO) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


class ProgressLine:
    """A line on a stream; without a stream, nothing is drawn. Thread-safe."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._shown = ""

    def say(self, text: str) -> None:
        """Draw a text in place of the current text of the line."""
        with self._lock:
            if self._stream is None or text == self._shown:
                return
            wiped, self._shown = self._wiped(), text
            width = shutil.get_terminal_size().columns - 1
            self._write(wiped + printable(text)[:width])

    def wipe(self) -> None:
        with self._lock:
            if self._stream is not None and self._shown:
                wiped, self._shown = self._wiped(), ""
                self._write(wiped)

    def _wiped(self) -> str:
        """Return characters that erase the line. A notebook does not know a terminal's control sequences, and shows
        old characters until others overwrite them."""
        if self._stream is None or not is_notebook(self._stream):
            return WIPED
        return f"\r{' ' * len(printable(self._shown))}\r"

    def _write(self, text: str) -> None:
        try:
            assert self._stream is not None
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:  # a terminal that is gone, or a stream that was closed
            _log.debug("the progress line ends: %s", error)
            self._stream = None


def wait_of(view: "JobView", processes: int, compiling: Compiling) -> str | None:
    """Return the work that a start waits for; None once its first batch is committed, or the job has ended."""
    if view.batches or not view.is_active:
        return None
    if compiling.kernels:
        said = f"compiling, once for this kind of machine: {compiling.kernels} kernels, {compiling.seconds:.0f} s"
    elif len(view.processes) < processes:
        said = f"starting processes, {len(view.processes)} of {processes}"
    elif view.phase in ("deploying", "joining") and view.restored is not None:
        said = f"restoring {_restored(view) if view.restoring is None else view.restoring}"
    else:
        said = "first batch" if view.phase in ("running", "committing") else view.message.lower()
    return f"{view.name}: {said}"


def _restored(view: "JobView") -> str:
    sizes = [each.full_bytes for each in view.checkpoints if each.number == view.restored]
    return f"checkpoint {view.restored}" + (f", {size_text(sizes[-1])}" if sizes else "")


def way_of(view: "JobView", rows: int, seconds: float) -> str | None:
    """Return a bar with rows, lag and estimate for a run that ends with its input; None once it has ended."""
    if not view.is_active:
        return None
    lag = sum(sum(splits.values()) for splits in view.lag.values())
    share = rows / (rows + lag) if rows + lag else 0.0
    filled = round(BAR_CHARACTERS * share)
    bar = "█" * filled + "░" * (BAR_CHARACTERS - filled)
    left = f", {seconds * lag / rows:.0f} s left" if rows and lag else ""
    return f"{view.name}: {bar} {rows:,} rows, lag {lag:,}{left}"


@contextmanager
def starting(name: str) -> Iterator[Callable[[str], None]]:
    """Provide a function that shows the current step of a start; the line is erased at the end."""
    line = ProgressLine(terminal())
    try:
        yield lambda step: line.say(f"{name}: {step}")
    finally:
        line.wipe()


def follow_texts(texts: Callable[[], str | None], stopped: Callable[[float], bool]) -> threading.Thread | None:
    """Draw texts on a thread of its own until a text is None or the job has `stopped`; None if nobody reads them."""
    stream = terminal()
    if stream is None:
        return None
    thread = threading.Thread(target=_follow, args=(ProgressLine(stream), texts, stopped), daemon=True)
    thread.start()
    return thread


def _follow(line: ProgressLine, texts: Callable[[], str | None], stopped: Callable[[float], bool]) -> None:
    try:
        while (text := texts()) is not None:
            line.say(text)
            if stopped(REFRESH_S):
                break
    except Exception as error:
        _log.debug("the progress line ends: %s", error)
    finally:
        line.wipe()
