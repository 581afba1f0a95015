"""A user's declaration of aggregates or of a function by key, checked, and made into an operator once its input is
known. Only then is it certain whether the key has a window, because the bounds of an earlier window count as one too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates.declared import Aggregate
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import OperatorInput, OperatorSpec
from holdfast.functions.process.declared import BatchFunction, ProcessFunction
from holdfast.functions.rows.policies import LatePolicy, RowHandling
from holdfast.functions.windows.aggregate import WindowSpec
from holdfast.functions.windows.declared import WINDOW_START, AnyWindow, SessionWindow
from holdfast.functions.windows.process import process_spec
from holdfast.functions.windows.session import SessionSpec
from holdfast.functions.windows.windowed import WindowEmit, Windowing
from holdfast.quantities import Duration, duration_us


@dataclass(frozen=True)
class WindowSettings:
    """The arguments of a keyed operator that belong to windows.

    Parameters
    ----------
    emit
        When a window emits; None: the operator's default.
    allowed_lateness, late
        As in `KeyedStream.aggregate`.
    """

    rows: RowHandling
    emit: str | None = None
    allowed_lateness: Duration = 0
    late: LatePolicy = "drop"

    @property
    def lateness_us(self) -> int:
        """The allowed lateness in microseconds. Raises `SettingsError`."""
        return duration_us(self.allowed_lateness, "allowed_lateness")

    def check(self, window: AnyWindow | None, key_columns: tuple[str, ...]) -> None:
        """Check the settings as far as the key is known at the declaration. Raises `SettingsError`."""
        if self.emit not in (None, "final", "changes", "every"):
            raise SettingsError(
                f"emit is {self.emit!r}; allowed are 'changes' and 'every', behind a window 'final' as well"
            )
        _ = self.lateness_us
        if window is not None:
            self.windowing()
        elif WINDOW_START not in key_columns:
            self.check_without_window()

    def check_without_window(self) -> None:
        """Check that nothing was set that belongs to windows. Raises `SettingsError`."""
        if self.lateness_us or self.late != "drop" or self.emit == "final":
            raise SettingsError(
                "allowed_lateness, late and emit='final' belong to windows: add hf.window(…) to key_by, or key by the "
                "window_start of windows with emit='final'"
            )

    def windowing(self) -> Windowing:
        """Make the windowing of an operator behind a window. Raises `SettingsError`."""
        self.rows.check_late(self.late)
        emit = cast(WindowEmit, self.emit or "final")
        return Windowing(emit, self.rows.bad_records, self.rows.combine, self.lateness_us, self.late)


@dataclass(frozen=True)
class AggregateSettings:
    """The arguments of `KeyedStream.aggregate`."""

    aggregates: Mapping[str, Aggregate]
    windows: WindowSettings
    changes: bool = False

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        """The operator of this input. Raises `SettingsError` or `JobRefused`."""
        found, aggregates = inputs[0], dict(self.aggregates)
        if found.window is not None:
            if self.changes or found.kind != "append":
                return self._over_changes(operator, found, aggregates)
            kind = SessionSpec if isinstance(found.window, SessionWindow) else WindowSpec
            return kind(operator, found, aggregates, self.windows.windowing())
        self.windows.check_without_window()
        emit = cast(Literal["changes", "every"], self.windows.emit or "changes")
        rows = self.windows.rows
        if self.changes or found.kind != "append":
            from holdfast.functions.changes.aggregate import ChangesAggregateSpec  # most jobs need none of it

            return ChangesAggregateSpec(
                operator, found, aggregates, emit, rows.bad_records, rows.combine, changes=self.changes
            )
        return AggregateSpec(operator, found, aggregates, emit, rows.bad_records, rows.combine)

    def _over_changes(self, operator: str, found: OperatorInput, aggregates: dict[str, Aggregate]) -> OperatorSpec:
        from holdfast.functions.windows.changes_window import ChangesWindowSpec  # most jobs need none of it

        windowing = self.windows.windowing()
        if self.changes and windowing.emit == "final":
            raise JobRefused(
                f"operator {operator!r}: changes=True behind a window needs emit='changes': the rows of closed windows "
                "are final"
            )
        if isinstance(found.window, SessionWindow):
            from holdfast.functions.windows.changes_session import ChangesSessionSpec  # most jobs need none of it

            return ChangesSessionSpec(operator, found, aggregates, windowing)
        return ChangesWindowSpec(operator, found, aggregates, windowing, self.changes)


@dataclass(frozen=True)
class FunctionSettings:
    """The arguments of `KeyedStream.process`."""

    function: ProcessFunction | BatchFunction
    output: pa.Schema
    windows: WindowSettings

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        """The operator of these inputs. Raises `SettingsError` or `JobRefused`."""
        if inputs[0].window is None:
            self.windows.check_without_window()
        return process_spec(operator, inputs, self.function, self.output, self.windows.windowing())
