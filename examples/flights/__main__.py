"""Replay the flights, kill a TaskManager after a third and the driver after two thirds, compare the result.

A second driver waits, on a Spark session of its own, and takes over from the driver that was killed.

Exit code 0: the table equals the direct computation, to the last row, and no process was left behind.
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated

import psutil
import pyarrow as pa
import typer
from deltalake import DeltaTable, QueryBuilder

from examples.flights.data import Row, computed_directly, in_order, rows_before, write_flights
from examples.flights.driver import Status
from examples.flights.processes import Driver, DriverFailed, end_all, left_over
from examples.flights.screen import Screen

POLL_S = 0.1
AT_ONCE_S_MAX = 30.0
ROWS_PER_BATCH = 6_000


class Recovery:
    """Begins with a kill, ends once rows beyond those before the kill are committed."""

    def __init__(self, before: Status, *, new_driver: bool) -> None:
        self._position = before.position
        self._restarts = -1 if new_driver else before.restarts
        self._begun_s = time.monotonic()

    def over(self, status: Status) -> bool:
        return status.restarts > self._restarts and status.position > self._position

    @property
    def duration_s(self) -> float:
        return time.monotonic() - self._begun_s


class Replay:
    """The job on its way through the input, and the kills on that way."""

    def __init__(self, folder: Path, rows: int, rows_per_batch: int, screen: Screen) -> None:
        self.seen: set[psutil.Process] = set()
        self._folder = folder
        self._rows = rows
        self._rows_per_batch = rows_per_batch
        self._screen = screen
        self._status = Status()
        self._earlier: list[Status] = []
        self._recovery: Recovery | None = None
        self._driver = Driver(folder, rows_per_batch, 1, self.seen)
        self._waiting: Driver | None = None

    def run(self) -> None:
        """Raises `DriverFailed`."""
        self._screen.say("starting Spark and the job")
        self._watch(1)
        self._screen.say("the first batch is committed; another driver starts, to wait")
        self._waiting = Driver(self._folder, self._rows_per_batch, 2, self.seen)
        self._watch(self._rows // 3)
        self._kill_a_task_manager()
        self._watch(self._rows * 2 // 3)
        self._kill_the_driver()
        self._watch(None)
        batches = sum(status.batches for status in (*self._earlier, self._status))
        self._screen.say(f"all rows are processed and published, in {batches} batches, repeated ones included")

    def _watch(self, rows: int | None) -> None:
        """Watch the driver until so many rows are processed; None: to the driver's end."""
        while not self._driver.ended():
            processed = self._look()
            if rows is not None and processed >= rows and self._recovery is None:
                return
            time.sleep(POLL_S)
        self._look()
        if rows is not None:
            raise DriverFailed(f"the job ended before it was to be killed, at {rows:,} rows")

    def _look(self) -> int:
        """Show how far the job is; the number of rows it has processed."""
        self._status = self._driver.status()
        processed = rows_before(self._folder / "flights.csv", self._status.position)
        checkpoints_ms = [one for status in (*self._earlier, self._status) for one in status.checkpoints_ms]
        self._screen.show(processed, checkpoints_ms)
        if self._recovery is not None and self._recovery.over(self._status):
            self._screen.say(f"[green]past that point again, {self._recovery.duration_s:.1f} s later[/]")
            self._recovery = None
        return processed

    def _kill_a_task_manager(self) -> None:
        deadline_s = time.monotonic() + AT_ONCE_S_MAX
        pid = None
        while pid is None and time.monotonic() < deadline_s and not self._driver.ended():
            processed = self._look()
            pid = next((self._driver.kill_task_manager(one) for one in self._status.task_managers), None)
        if pid is None:
            cause = ": the job has ended" if self._driver.ended() else f" at {self._status.task_managers}"
            raise DriverFailed(f"no TaskManager was found to kill{cause}")
        self._recovery = Recovery(self._status, new_driver=False)
        self._screen.say(f"[red]kill -9[/] of TaskManager 0, process {pid}, at {processed:,} rows")

    def _kill_the_driver(self) -> None:
        assert self._waiting is not None
        processed = self._look()
        pid = self._driver.kill()
        waits = "waits" if self._waiting.status().ready else "is still starting"
        self._screen.say(f"[red]kill -9[/] of the driver, process {pid}, at {processed:,} rows; the other {waits}")
        self._recovery = Recovery(self._status, new_driver=True)
        self._earlier.append(self._status)
        self._driver, self._waiting = self._waiting, None


def compare(found: list[Row], expected: list[Row], screen: Screen) -> bool:
    """True if the table equals the direct computation; print the differences."""
    differing = [row for row in found if row not in expected] + [row for row in expected if row not in found]
    if found == expected:
        screen.console.print(f"[bold green]Equal to a direct computation over the same file: all {len(found)} rows.[/]")
        return True
    screen.console.print(f"[bold red]Not equal to a direct computation: {len(differing)} rows differ.[/]")
    screen.table(differing)
    return False


def demonstrate(folder: Path, rows_max: int | None, rows_per_batch: int) -> bool:
    """Run the demonstration; True if all went as it should."""
    rows = write_flights(folder / "flights.csv", rows_max)
    screen = Screen(rows)
    replay = Replay(folder, rows, rows_per_batch, screen)
    try:
        with screen:
            replay.run()
        left = left_over(replay.seen)
    except DriverFailed as failure:
        screen.console.print(str(failure), style="bold red", markup=False)
        return False
    finally:
        end_all(replay.seen)
    table = QueryBuilder().register("delays", DeltaTable(folder / "delays"))
    found = in_order(pa.table(table.execute("select * from delays")).to_pylist())
    screen.table(found)
    for name in left:
        screen.console.print(f"[bold red]This process did not end by itself: {name}[/]")
    return compare(found, computed_directly(folder / "flights.csv"), screen) and not left


def main(
    rows: Annotated[int | None, typer.Option(help="Replay only the first of the 336,776 flights.")] = None,
    rows_per_batch: Annotated[int, typer.Option(help="At most so many flights in a batch.")] = ROWS_PER_BATCH,
    folder: Annotated[Path | None, typer.Option(help="Work in this empty folder and keep it.")] = None,
) -> None:
    """Replay real flights through a job that is killed twice, and compare its result with a direct computation."""
    if folder is not None:
        folder.mkdir(parents=True)
        well = demonstrate(folder.resolve(), rows, rows_per_batch)
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-flights-") as temporary:
            well = demonstrate(Path(temporary), rows, rows_per_batch)
    raise typer.Exit(0 if well else 1)


if __name__ == "__main__":
    typer.run(main)
