"""A running job in a terminal: the figures of the page as text, redrawn until the job ends.

`query.show()` draws a query of this process; `holdfast top <url>` draws the page of another process.
"""

import json
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.errors import HoldfastError
from holdfast.observe.view import JobView
from holdfast.printable import printable_document
from holdfast.ui import api
from holdfast.ui.api import Json

Documents = tuple[Json, Json]
"""The JSON documents `job` and `checkpoints` of the page (`holdfast.ui.api`)."""

REFRESH_S = 0.5
CHECKPOINTS_SHOWN = 8
ANSWER_S_MAX = 10.0
"""Bound in seconds on the wait for an answer of the page."""
STYLES = {"completed": "green", "refused": "yellow", "declined softly": "yellow", "subsumed": "dim", "ended": "dim"}


def follow(read: Callable[[], Documents], console: Console | None = None, refresh_s: float = REFRESH_S) -> None:
    """Draw the documents that `read` returns until the job has ended, or until the user presses Ctrl-C."""
    shown = read()
    drawing = Live(screen(*shown), console=console, refresh_per_second=1 / refresh_s, transient=False)
    with drawing as live, suppress(KeyboardInterrupt):  # Ctrl-C ends the drawing, and the query goes on
        while shown[0]["is_active"]:
            time.sleep(refresh_s)
            shown = read()
            live.update(screen(*shown))


def documents(view: JobView) -> Documents:
    """Make the documents of a job in this process."""
    return api.job(view), api.checkpoints(view)


def fetched(url: str, token: str = "") -> Documents:
    """Fetch the documents of a job from its page. `url` is `query.uiUrl`; its token may be given as `token` instead.

    Raises `HoldfastError`.
    """
    page, _, query = url.partition("?")
    given = token or query.removeprefix("token=")
    headers = {"Authorization": f"Bearer {given}"} if given else {}
    try:
        job, checkpoints = (
            json.load(
                urllib.request.urlopen(
                    urllib.request.Request(f"{page.rstrip('/')}/api/v1/{name}", headers=headers), timeout=ANSWER_S_MAX
                )
            )
            for name in ("job", "checkpoints")
        )
    except (OSError, ValueError) as error:
        raise HoldfastError(
            f"{page}: no page of a running job answers there: {error}; give the URL that query.uiUrl names"
        ) from error
    return job, checkpoints


def screen(job: Json, checkpoints: Json) -> RenderableType:
    """Turn the documents of the page into text, in which no characters can control the terminal."""
    job, checkpoints = printable_document(job), printable_document(checkpoints)
    return Group(_head(job), _nodes(job), _checkpoints(checkpoints))


def _head(job: Json) -> RenderableType:
    style = "red" if job["error"] else "green" if job["is_active"] else "dim"
    since = "no checkpoint yet" if job["since_checkpoint_s"] is None else f"{job['since_checkpoint_s']:.1f} s ago"
    head = Text.assemble((job["name"], "bold"), "  ", (job["phase"] if job["is_active"] else "ended", style), "  ")
    head.append(f"{job['rows']:,} rows, {job['rows_per_s']:,.0f} rows/s, {job['batches_committed']:,} batches, ")
    head.append(f"{job['restarts']} restarts, last checkpoint {since}")
    return Group(head, Text(job["message"], style="dim" if job["message"] == "Processing" else "yellow"))


def _nodes(job: Json) -> RenderableType:
    table = Table("", "name", "rows/s", "lag", "state rows", "state", "watermark (UTC)", "to publish", box=box.SIMPLE)
    for column in (*table.columns[2:6], table.columns[7]):
        column.justify = "right"
    for node in job["nodes"]:
        table.add_row(
            node["kind"],
            node["name"],
            _count(node.get("rows_per_s")),
            _count(node.get("lag")),
            _count(node.get("state_rows")),
            _size(node.get("state_bytes")),
            _moment(node.get("watermark_us")),
            _count(node.get("unpublished_groups")),
        )
    return table


def _checkpoints(found: Json) -> RenderableType:
    counts = found["counts"]
    title = ", ".join(f"{counts[name]} {name}" for name in ("completed", "failed", "refused", "aborted"))
    columns = ("id", "outcome", "took", "sync", "async", "stored", "full size", "who and why")
    table = Table(*columns, title=f"checkpoints: {title}", title_justify="left", box=box.SIMPLE)
    for column in (table.columns[0], *table.columns[2:7]):
        column.justify = "right"
    for each in found["history"][: -CHECKPOINTS_SHOWN - 1 : -1]:
        times = [f"{1000 * each[name]:,.0f} ms" for name in ("duration_s", "sync_s", "async_s")]
        table.add_row(
            str(each["checkpoint_id"]),
            Text(each["outcome"], style=STYLES.get(each["outcome"], "red")),
            *times,
            _size(each["incremental_bytes"]),
            _size(each["full_bytes"]),
            Text(each["reason"], overflow="ellipsis", no_wrap=True),
        )
    return table


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _size(value: float | None) -> str:
    if value is None:
        return ""
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _moment(time_us: int | None) -> str:
    return "" if time_us is None else f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%d %H:%M:%S}"
