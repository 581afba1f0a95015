"""`last` and `top` as a user declares them: checked, and made into the operator once its input is known."""

from dataclasses import dataclass

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.operator import OperatorInput, OperatorSpec
from holdfast.functions.ranking.greatest import check_top
from holdfast.functions.ranking.keyed_top import KeyedTopSpec
from holdfast.functions.ranking.last import LastSpec
from holdfast.functions.ranking.window_top import TopSpec
from holdfast.functions.windows.declared import AnyWindow
from holdfast.functions.windows.declaring import WindowSettings


@dataclass(frozen=True)
class LastSettings:
    """The arguments of `KeyedStream.last`."""

    by: str
    changes: bool = False

    def check(self, window: AnyWindow | None) -> None:
        """Check the settings at the declaration. Raises `SettingsError`."""
        check_top(1, self.by)
        if window is not None:
            raise SettingsError(
                "last() does not work behind a window: use .top(1, by=…), which gives one row for each window"
            )

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        """The operator of this input. Raises `JobRefused`."""
        plain = LastSpec(operator, inputs[0], self.by)
        if not self.changes and plain.input.kind == "append":
            return plain
        from holdfast.functions.changes.ranked import RankedChangesSpec  # most jobs need none of it

        return RankedChangesSpec(operator, plain.input, f"last(by={self.by!r})", by=self.by, changes=self.changes)


@dataclass(frozen=True)
class TopSettings:
    """The arguments of `KeyedStream.top`. Raises `SettingsError` when made."""

    n: int
    by: str
    ties: bool
    least: bool
    windows: WindowSettings
    changes: bool = False

    def __post_init__(self) -> None:
        check_top(self.n, self.by)

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        """The operator of this input. Raises `SettingsError` or `JobRefused`."""
        found = inputs[0]
        if found.window is not None:
            if self.changes:
                raise JobRefused(
                    f"operator {operator!r}: top(changes=True) behind a window is not possible: its rows are final"
                )
            return TopSpec(operator, found, self.n, self.by, self.ties, self.least, self.windows.windowing())
        self.windows.check_without_window()
        if self.ties:
            raise JobRefused(
                f"operator {operator!r}: top(ties=True) belongs to windows, since without an end equal rows "
                "have no bound: add hf.window(…) to key_by, or leave ties out"
            )
        plain = KeyedTopSpec(operator, found, self.n, self.by, self.least, self.windows.rows.combine)
        if not self.changes and found.kind == "append":
            return plain
        from holdfast.functions.changes.ranked import RankedChangesSpec  # most jobs need none of it

        shown = f"top({self.n}, by={self.by!r})"
        return RankedChangesSpec(operator, found, shown, self.n, self.by, self.least, True, self.changes)
