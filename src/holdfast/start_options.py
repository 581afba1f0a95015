"""Options of a single start, `job.start(…)`: where the job begins, which state it gives up, where it is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from holdfast.errors import SettingsError
from holdfast.settings import checked_restore_mode
from holdfast.stored_state.states import VALUES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StartKeywords(TypedDict, total=False):
    """The keywords of `job.start(…)`, as `StartOptions` describes them."""

    drop_state: Sequence[str]
    start_from: int | str | None
    restore_mode: str | None
    publish_again: bool
    forget_updates: bool
    initial_state: "Mapping[str, pa.Table | DataFrame | Mapping[str, pa.Table | DataFrame]] | None"
    ui_port: int | None


@dataclass(frozen=True)
class StartOptions:
    """Options of a start.

    Parameters
    ----------
    drop_state
        Names of sources, operators and sinks whose stored state is given up. A name that neither the job nor its
        storage has is refused.
    start_from, publish_again
        Number of a retained checkpoint (`holdfast checkpoints`) to go back to; None: the newest. Rows after it are
        processed anew, and their output is published a second time, to which `publish_again=True` agrees, as it does
        for a storage that was restored from a copy older than the sinks' targets. A job goes
        back to a number once: later starts with the same number go on from where the job is. Or the URL of a savepoint.
    forget_updates
        True: this start takes back the settings that `query.update(…, keep=True)` kept: `checkpoint` counts alone.
    restore_mode
        With the URL of a savepoint: `"no_claim"` (the default) begins a new job, with an id of its own, on a storage
        without checkpoints; `"claim"` takes the job of this storage back to the savepoint, as a number does.
    initial_state
        Rows from which operators of a new storage begin, by operator: an Arrow table or a DataFrame with the key
        columns and the state's columns, as `read_state` gives them; or a dict of these by state, for maps and lists. A
        job that has a checkpoint goes on from that.
    ui_port
        Port on which the driver serves a page that shows the running query, at `query.uiUrl`; 0: any free port; None:
        no page.

    Raises
    ------
    SettingsError
        A value is not allowed; the error names the option.
    """

    drop_state: Sequence[str] = ()
    start_from: int | str | None = None
    restore_mode: str | None = None
    publish_again: bool = False
    forget_updates: bool = False
    initial_state: Mapping[str, Any] | None = None
    ui_port: int | None = None

    def __post_init__(self) -> None:
        check_port("ui_port", self.ui_port)
        checked_restore_mode(self.start_from, self.restore_mode)
        self.state_by_name()

    def given(self, options: StartKeywords) -> "StartOptions":
        """Return these options with others in their place. Raises `SettingsError` for a name that does not exist."""
        unknown = sorted(set(options) - set(StartKeywords.__annotations__))
        if unknown:
            known = ", ".join(StartKeywords.__annotations__)
            raise SettingsError(f"{unknown[0]!r} is no setting of a job and no option of a start; these are: {known}")
        return replace(self, **options)

    @property
    def mode(self) -> str:
        """How a savepoint is taken: `"no_claim"` or `"claim"`."""
        return checked_restore_mode(self.start_from, self.restore_mode)

    def state_by_name(self) -> dict[str, dict[str, pa.Table]]:
        """Return the rows to begin with, by operator and state; rows that name no state are those of its values."""
        found: dict[str, dict[str, pa.Table]] = {}
        for operator, rows in (self.initial_state or {}).items():
            named = rows if isinstance(rows, Mapping) else {VALUES: rows}
            found[operator] = {state: _as_table(operator, each) for state, each in named.items()}
        return found


def check_port(field: str, port: object) -> None:
    """Raise `SettingsError` if a setting is no port."""
    if port is not None and (not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535):
        raise SettingsError(f"{field}={port!r} is not allowed: a port from 0 (any) to 65535, or None")


def _as_table(operator: str, rows: Any) -> pa.Table:
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    table = rows.toArrow() if hasattr(rows, "toArrow") else rows
    if not isinstance(table, pa.Table):
        raise SettingsError(
            f"initial_state of operator {operator!r} is a {type(rows).__name__}; expected an Arrow table or a DataFrame"
        )
    return table
