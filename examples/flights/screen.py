"""The screen of the demonstration: a progress bar with figures, events with their times, the final table."""

import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType

from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights.data import Row

RATE_WINDOW_S = 3.0


class Bar(Progress):
    """The bar, and a line of figures below it."""

    figures = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield self.figures


class Screen:
    """A context manager; the progress bar lives as long as it."""

    def __init__(self, rows: int) -> None:
        self.console = Console()
        self._rows = rows
        self._begun_s = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque([(self._begun_s, 0)])
        self._bar = Bar(
            SpinnerColumn(),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,} rows"),
            TimeElapsedColumn(),
            console=self.console,
        )
        self._task = self._bar.add_task("flights", total=rows)

    def __enter__(self) -> "Screen":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, rows: int, checkpoints_ms: list[float]) -> None:
        now_s = time.monotonic()
        self._recent.append((now_s, rows))
        while len(self._recent) > 2 and self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()
        since_s, before = self._recent[0]
        rate = max(0, rows - before) / max(now_s - since_s, 0.001)
        figures = f"  [cyan]{rate:,.0f} rows/s[/], [green]{len(checkpoints_ms)} checkpoints[/]"
        if checkpoints_ms:
            figures += f", p50 {quantile(checkpoints_ms, 0.5):,.0f} ms, p99 {quantile(checkpoints_ms, 0.99):,.0f} ms"
        self._bar.figures = figures
        self._bar.update(self._task, completed=rows)

    def say(self, words: str) -> None:
        """A line above the progress bar."""
        self.console.print(f"[dim]{time.monotonic() - self._begun_s:5.1f} s[/]  {words}")

    def table(self, rows: list[Row]) -> None:
        shown = Table(title="The Delta table", box=box.SIMPLE_HEAD, padding=(0, 0))
        for name in rows[0] if rows else ():
            shown.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
        for row in rows:
            shown.add_row(*(_cell(value) for value in row.values()))
        self.console.print(shown)


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _cell(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
