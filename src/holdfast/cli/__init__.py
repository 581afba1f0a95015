"""The `holdfast` command: it looks after a job's storage from outside, whether the job runs or not.

    holdfast verify <storage>            reads everything that the retained checkpoints refer to; writes nothing
    holdfast checkpoints <storage>       lists the last checkpoints, also those that failed, with their reasons
    holdfast operators <storage>         lists the operators of a checkpoint, their states, rows and bytes
    holdfast state <storage> <operator>  shows the rows of an operator's state, or writes them to a file
    holdfast diff <storage> <a> <b>      counts the rows that changed between two checkpoints, per operator
    holdfast top <url>                   follows a running query by its page, in the terminal
    holdfast stop <url>                  stops a running query; update, trigger, savepoint, retry, skip: `control.py`
    holdfast kernels compile             compiles kernels beforehand, for an image or an archive
    holdfast gc <storage> [--dry-run]    deletes the remains of epochs before the newest takeover
    holdfast --version                   prints the version

Exit code 0: no problem; 1: a problem was found and printed; 2: the command line was not understood. Output for scripts
goes to stdout (`--json`: a single document), progress to stderr. The rules are in `maintenance/` and `stored_state/`.

Files in reading order: `common`, `state`, `control`, `kernels`, `__main__`.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import DownloadColumn, TextColumn, TransferSpeedColumn
from rich.table import Table

import holdfast
from holdfast.cleanup.observation import observe
from holdfast.cleanup.observation import plan as plan_cleaning
from holdfast.cleanup.plan import CleanupPlan, carry_out
from holdfast.cli import control
from holdfast.cli import kernels as kernel_commands
from holdfast.cli import state as state_commands
from holdfast.cli.common import (
    JsonOption,
    Options,
    SafeConsole,
    Storage,
    open_storage_of,
    print_json,
    progress,
    say,
    told,
)
from holdfast.errors import HoldfastError
from holdfast.formats.history import CheckpointStats, SavepointStats, read_stored
from holdfast.formats.store_use import LaneRates, StoreUse, rates
from holdfast.ids import Epoch
from holdfast.journal.job import read_job
from holdfast.journal.other_storages import check_owners, other_urls
from holdfast.maintenance.report import Report
from holdfast.maintenance.verify import verify as verify_storage
from holdfast.store_prices import StorePrices
from holdfast.ui.screen import fetched, follow

app = typer.Typer(
    help="Look after the storage of a Holdfast job.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)

Prices = Annotated[
    str,
    typer.Option(
        metavar="PUTS,GETS,MONTH",
        help="Prices of 1,000 puts or listings, of 1,000 reads, and of a GB kept for a month; by default "
        "0.005,0.0004,0.023.",
    ),
]
HISTORY_WIDTH = 140
"""Width in characters of the table of checkpoints, even if the terminal is narrower or there is no terminal."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Look after the storage of a Holdfast job."""


@app.command()
def verify(storage: Storage, option: Options = None, json: JsonOption = False) -> None:
    """Read everything that the retained checkpoints, or a savepoint, refer to, and report problems. Writes nothing."""
    with told():
        store = open_storage_of(storage, option)
        with progress(DownloadColumn(), TransferSpeedColumn()) as bar:
            task = bar.add_task("reading", total=None)
            report = verify_storage(store, lambda done, total: bar.update(task, completed=done, total=total))
        if json:
            print_json({"ok": report.ok, **msgspec.to_builtins(report)})
        else:
            _print_report(report)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def checkpoints(storage: Storage, option: Options = None, prices: Prices = "", json: JsonOption = False) -> None:
    """List the last triggers and savepoints, and the newest start's requests to the storage with their price. The
    running job updates the list every 10 s."""
    with told():
        by = _prices(prices)
        store = open_storage_of(storage, option)
        found, others = read_stored(store), other_urls(store)
    lanes = [] if found.use is None else list(rates(found.use, by))
    if json:
        use = None if found.use is None else {**asdict(found.use), "lanes": [each._asdict() for each in lanes]}
        document = {"checkpoints": found.checkpoints, "savepoints": found.savepoints, "store_use": use}
        document["other_storages"] = others
        print_json(msgspec.to_builtins(document))
    else:
        _print_history(found.checkpoints)
        if found.use is not None:
            _print_use(found.use, lanes, by)
        if found.savepoints:
            _print_savepoints(found.savepoints)
        if others:
            say(f"objects of this job lie, or lay, in other storages too: {', '.join(others)}")


@app.command()
def top(url: control.Url, token_file: control.TokenFile = None, token: control.Token = "") -> None:
    """Follow a running query in the terminal: rows, lag, state, checkpoints. Ctrl-C ends the display, not the query."""
    with told():
        follow(lambda: fetched(url, control.token_of(token, token_file)))


app.add_typer(kernel_commands.app, name="kernels")

for _change in (control.update, control.trigger, control.savepoint, control.retry, control.skip, control.stop):
    app.command()(_change)


@app.command()
def gc(
    storage: Storage,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the objects that would be deleted, and delete nothing.")
    ] = False,
    option: Options = None,
    json: JsonOption = False,
) -> None:
    """Delete objects that belong to finished epochs and that the newest checkpoint does not need.

    An epoch is finished once a later start of the job has taken over, or once its own start has ended in order.

    An epoch is over once another job's start has taken over, or once the job that it belongs to has ended in order.

    This is safe while the job runs. Objects with unknown names are left alone and reported.
    """
    with told():
        store = open_storage_of(storage, option)
        with progress(TextColumn("{task.completed}/{task.total}")) as bar:
            task = bar.add_task("listing", total=None)
            observed = observe(store)
            if observed is None:
                raise HoldfastError(f"{store.url}: the job has no journal yet, so there is nothing to clean up")
            check_owners(store, read_job(store).job_id)
            plan = plan_cleaning(store, observed)
            bar.update(task, description="deleting")
            deleted = 0
            if not dry_run:
                deleted = carry_out(
                    store, plan, progress=lambda done, total: bar.update(task, completed=done, total=total)
                )
        epoch = Epoch(observed.taken.epoch - observed.ended)
        if json:
            print_json(_plan_as_json(plan, epoch, dry_run, deleted))
        else:
            say("\n".join(plan.lines()))
            said = f"epoch {epoch} has ended" if observed.ended else f"epoch {epoch} lives"
            say(f"{said}; " + ("nothing was deleted" if dry_run else f"deleted: {deleted}"))


def _print_report(report: Report) -> None:
    console = SafeConsole(soft_wrap=True, highlight=False)
    console.print(f"job {report.job!r} ({report.job_id}), epoch {report.epoch}, {report.storage}", markup=False)
    for each in report.checkpoints:
        console.print(
            f"checkpoint {each.number} (epoch {each.epoch}): batch {each.batch}, {each.tables} tables of "
            f"{each.task_managers} TaskManagers, {each.state_bytes:,} bytes of state"
        )
    table = Table("what", "objects", "bytes", "wrong")
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, count in report.read.items():
        table.add_row(kind, f"{count.objects:,}", f"{count.bytes:,}", str(count.problems or "-"))
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", markup=False)
    for problem in report.problems:
        console.print(f"\n{problem.object}\n  found     {problem.found}\n  expected  {problem.expected}", markup=False)
    wrong = len(report.problems)
    console.print(f"\n{wrong} things are wrong" if wrong > 1 else "\n1 thing is wrong" if wrong else "all is well")


def _print_history(entries: list[CheckpointStats]) -> None:
    console = _wide_console()
    columns = (
        "epoch",
        "id",
        "record",
        "at (UTC)",
        "trigger",
        "outcome",
        "took",
        "delay",
        "sync",
        "async",
        "new",
        "all",
        "retries",
    )
    table = Table(*columns)
    for column in table.columns[6:]:
        column.justify = "right"
    for each in entries:
        number = str(each.number) if each.number >= 0 else "-"
        times = [f"{1000 * s:,.0f} ms" for s in (each.duration_s, each.start_delay_s, each.sync_s, each.async_s)]
        sizes = [f"{each.incremental_bytes:,}", f"{each.full_bytes:,}"]
        ids = [str(each.epoch), str(each.checkpoint_id)]
        repeats = f"{each.retries}+{each.hedges}" if each.hedges else str(each.retries or "-")
        table.add_row(*ids, number, _utc(each.at_s), each.trigger, each.outcome, *times, *sizes, repeats)
    console.print(table)
    for each in entries:
        if each.reason:
            counted = ", counted as failed" if each.counted else ""
            console.print(f"{each.epoch}/{each.checkpoint_id} {each.outcome}{counted}: {each.reason}", markup=False)


def _print_use(use: StoreUse, lanes: list[LaneRates], prices: StorePrices) -> None:
    console = _wide_console()
    columns = ("requests to the storage", "an hour", "bytes", "a checkpoint", "bytes", f"{prices.currency} an hour")
    table = Table(*columns)
    for column in table.columns[1:]:
        column.justify = "right"
    for each in lanes:
        by_checkpoint = ("-", "-")
        if each.requests_per_checkpoint is not None and each.bytes_per_checkpoint is not None:
            by_checkpoint = (f"{each.requests_per_checkpoint:,.2f}", f"{each.bytes_per_checkpoint:,.0f}")
        by_hour = (f"{each.requests_per_hour:,.0f}", f"{each.bytes_per_hour:,.0f}")
        table.add_row(each.lane, *by_hour, *by_checkpoint, f"{each.cost_per_hour:,.4f}")
    console.print(table)
    shown = f"{use.seconds:,.0f} s and {use.checkpoints:,} checkpoints of the newest start"
    console.print(f"over {shown}; {use.kept_bytes:,} bytes are kept, and their price is in the last line")


def _prices(text: str) -> StorePrices:
    if not text:
        return StorePrices()
    try:
        puts, gets, month = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter("expected three numbers, PUTS,GETS,MONTH", param_hint="--prices") from None
    return StorePrices(per_1000_puts=puts, per_1000_gets=gets, per_gb_month=month)


def _print_savepoints(savepoints: list[SavepointStats]) -> None:
    console = _wide_console()
    table = Table("savepoint", "epoch", "record", "at (UTC)", "outcome", "took", "objects", "bytes")
    for column in table.columns[5:]:
        column.justify = "right"
    for row, each in enumerate(savepoints, 1):
        record = str(each.checkpoint) if each.checkpoint >= 0 else "-"
        figures = (f"{each.duration_s:,.2f} s", f"{each.objects:,}", f"{each.size_bytes:,}")
        table.add_row(str(row), str(each.epoch), record, _utc(each.at_s), each.outcome, *figures)
    console.print(table)
    for row, each in enumerate(savepoints, 1):
        reason = f", {each.outcome}: {each.reason}" if each.reason else ""
        console.print(f"savepoint {row}: {each.url}{reason}", markup=False)


def _wide_console() -> Console:
    return SafeConsole(width=max(HISTORY_WIDTH, Console().width), soft_wrap=True, highlight=False)


def _utc(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"


def _plan_as_json(plan: CleanupPlan, epoch: Epoch, dry_run: bool, deleted: int) -> dict[str, object]:
    return {
        "epoch": epoch,
        "dry_run": dry_run,
        "records": [int(number) for number in plan.expired],
        "objects": [{"name": info.name, "bytes": info.size} for info in plan.deleted],
        "kept": plan.kept,
        "unknown": plan.unknown,
        "deleted": deleted,
    }


for _command in (state_commands.operators, state_commands.state, state_commands.diff):
    app.command()(_command)


def main() -> None:
    """Run the console script."""
    app()
