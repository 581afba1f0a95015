"""The checkpoints of a query as a list that is readable in a terminal and in a notebook."""

from datetime import UTC, datetime

from holdfast.formats.history import CheckpointStats
from holdfast.ui.notebook import html_table

COLUMNS = ("id", "record", "at (UTC)", "trigger", "outcome", "took", "stored bytes", "full bytes", "who and why")


class CheckpointList(list[CheckpointStats]):
    """A list of triggers and their outcomes, oldest first. It is displayed as a table."""

    def __repr__(self) -> str:
        rows = [COLUMNS, *map(_cells, self)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        return html_table("Checkpoints", COLUMNS, map(_cells, self))


def _cells(each: CheckpointStats) -> tuple[str, ...]:
    return (
        str(each.checkpoint_id),
        str(each.number) if each.number >= 0 else "-",
        f"{datetime.fromtimestamp(each.at_s, UTC):%Y-%m-%d %H:%M:%S}",
        each.trigger,
        each.outcome,
        f"{1000 * each.duration_s:,.0f} ms",
        f"{each.incremental_bytes:,}",
        f"{each.full_bytes:,}",
        each.reason,
    )
