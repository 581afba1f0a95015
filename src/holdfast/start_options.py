"""Options of a single start, `job.start(…)`: where the job begins, which state it drops, and where it is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from holdfast.errors import SettingsError
from holdfast.quantities import Duration, above_zero, duration_s
from holdfast.settings import checked_restore_mode
from holdfast.stored_state.states import VALUES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ON_LEADER_STOP = ("end", "promote")


class StartKeywords(TypedDict, total=False):
    """The keywords of `job.start(…)`, as `StartOptions` describes them."""

    drop_state: Sequence[str]
    start_from: int | str | None
    restore_mode: str | None
    publish_again: bool
    forget_updates: bool
    initial_state: "Mapping[str, pa.Table | DataFrame | Mapping[str, pa.Table | DataFrame]] | None"
    ui_port: int | None
    standby: bool
    takeover_after: Duration
    on_leader_stop: str


@dataclass(frozen=True)
class StartOptions:
    """Options of a start.

    Parameters
    ----------
    drop_state
        Names of sources, operators and sinks whose stored state is dropped. A name that neither the job nor its storage
        knows is refused.
    start_from, publish_again
        `start_from` is the number of a retained checkpoint (`holdfast checkpoints`) to go back to, or the URL of a
        savepoint; None: the newest checkpoint. Rows after that checkpoint are processed again, and their output is
        published a second time. `publish_again=True` agrees to that; it is also needed if the storage was restored from
        a copy older than the sinks' targets. A job goes back to a number only once: later starts with the same number
        continue from the job's present position.
    forget_updates
        True: this start drops the settings that `query.update(…, keep=True)` kept, and uses only the job's
        `checkpoint`.
    restore_mode
        Only with the URL of a savepoint. `"no_claim"` (the default) begins a new job, with its own id, on a storage
        without checkpoints; `"claim"` takes the job of this storage back to the savepoint, as a number would.
    initial_state
        Rows with which the operators of a new storage begin, by operator: an Arrow table or a DataFrame with the key
        columns and the state's columns, as `read_state` returns them; or, for maps and lists, a dict of such tables by
        state. A job that has a checkpoint continues from the checkpoint instead.
    ui_port
        Port on which the driver serves a page that shows the running query, at `query.uiUrl`; 0: any free port; None:
        no page.
    standby
        True: this driver waits until the driver that leads the job ends or is silent, and then takes over. Its
        TaskManagers and senders are started at once. It cannot be combined with `start_from`, `drop_state` and
        `initial_state`.
    takeover_after
        With `standby=True`: time without a sign of life from the leader after which this driver takes over. A higher
        value delays the takeover. A lower value costs more requests, and may take over from a leader that is only slow,
        which ends that leader.
    on_leader_stop
        With `standby=True`: what to do when the leader is stopped normally: `"end"` stops waiting, `"promote"` takes
        over.

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
    standby: bool = False
    takeover_after: Duration = "3s"
    on_leader_stop: str = "end"

    def __post_init__(self) -> None:
        self._check_standby()
        check_port("ui_port", self.ui_port)
        checked_restore_mode(self.start_from, self.restore_mode)
        self.state_by_name()

    def given(self, options: StartKeywords) -> "StartOptions":
        """Return a copy with the given options replaced. Raises `SettingsError` for a name that does not exist."""
        unknown = sorted(set(options) - set(StartKeywords.__annotations__))
        if unknown:
            known = ", ".join(StartKeywords.__annotations__)
            raise SettingsError(f"{unknown[0]!r} is no setting of a job and no option of a start; these are: {known}")
        return replace(self, **options)

    def _check_standby(self) -> None:
        if not isinstance(self.standby, bool):
            raise SettingsError(f"standby={self.standby!r} is not allowed: True or False")
        above_zero(self.takeover_after_s, "takeover_after", self.takeover_after)
        if self.on_leader_stop not in ON_LEADER_STOP:
            raise SettingsError(f"on_leader_stop={self.on_leader_stop!r} is not allowed: 'end' or 'promote'")
        given = {"start_from": self.start_from, "drop_state": self.drop_state, "initial_state": self.initial_state}
        for name in [name for name, value in given.items() if value and self.standby]:
            raise SettingsError(
                f"{name} and standby=True are not allowed together: a driver in waiting goes on from the newest "
                "checkpoint of the leader. Start the leader with it"
            )

    @property
    def takeover_after_s(self) -> float:
        return duration_s(self.takeover_after, "takeover_after")

    @property
    def mode(self) -> str:
        """How a start uses a savepoint: `"no_claim"` or `"claim"`."""
        return checked_restore_mode(self.start_from, self.restore_mode)

    def state_by_name(self) -> dict[str, dict[str, pa.Table]]:
        """Return the rows to begin with, by operator and state. Rows without a state's name belong to the operator's
        values."""
        found: dict[str, dict[str, pa.Table]] = {}
        for operator, rows in (self.initial_state or {}).items():
            named = rows if isinstance(rows, Mapping) else {VALUES: rows}
            found[operator] = {state: _as_table(operator, each) for state, each in named.items()}
        return found


def check_port(field: str, port: object) -> None:
    """Raise `SettingsError` if the value is not a port."""
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
