"""A user's declaration of an operator that selects rows of a key, checked, and made into the operator once its input is
known.
"""

from dataclasses import dataclass
from typing import get_args

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.operator import OperatorInput, OperatorSpec
from holdfast.functions.selecting.duplicates import DuplicatesSpec
from holdfast.functions.selecting.keyed_top import KeyedTopSpec
from holdfast.functions.selecting.last import LastSpec
from holdfast.functions.windows.declared import AnyWindow
from holdfast.functions.windows.declaring import RowHandling, WindowSettings
from holdfast.functions.windows.top import TopSpec, check_top
from holdfast.functions.windows.windowed import LatePolicy
from holdfast.units import Duration, duration_us


@dataclass(frozen=True)
class DuplicatesSettings:
    """The arguments of `Stream.drop_duplicates`. `within`: None to remember keys for ever."""

    within: Duration | None
    late: LatePolicy
    rows: RowHandling

    @property
    def within_us(self) -> int | None:
        """The time in microseconds for which a key is remembered. Raises `SettingsError`."""
        return None if self.within is None else duration_us(self.within, "within")

    def check(self, window: AnyWindow | None) -> None:
        """Check the settings at the declaration. Raises `SettingsError`."""
        if window is not None:
            raise SettingsError("drop_duplicates() is not for windows: name columns, and give within= for the time")
        if self.late not in get_args(LatePolicy) or (self.within_us is None and self.late != "drop"):
            raise SettingsError(
                f"drop_duplicates(late={self.late!r}): allowed are 'drop', 'dead_letter' and 'stream', with within="
            )
        self.rows.check_late(self.late)

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        """The operator of this input. Raises `JobRefused`."""
        return DuplicatesSpec(operator, inputs[0], self.within_us, self.late)


@dataclass(frozen=True)
class LastSettings:
    """The arguments of `KeyedStream.last`."""

    by: str

    def check(self, window: AnyWindow | None) -> None:
        """Check the settings at the declaration. Raises `SettingsError`."""
        check_top(1, self.by)
        if window is not None:
            raise SettingsError(
                "last() does not work behind a window: use .top(1, by=…), which gives one row for each window"
            )

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        """The operator of this input. Raises `JobRefused`."""
        return LastSpec(operator, inputs[0], self.by)


@dataclass(frozen=True)
class TopSettings:
    """The arguments of `KeyedStream.top`. Raises `SettingsError` when made."""

    n: int
    by: str
    ties: bool
    least: bool
    windows: WindowSettings

    def __post_init__(self) -> None:
        check_top(self.n, self.by)

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        """The operator of this input. Raises `SettingsError` or `JobRefused`."""
        found = inputs[0]
        if found.window is not None:
            return TopSpec(operator, found, self.n, self.by, self.ties, self.least, self.windows.windowing())
        self.windows.check_without_window()
        if self.ties:
            raise JobRefused(
                f"operator {operator!r}: top(ties=True) belongs to windows, since without an end equal rows "
                "have no bound: add hf.window(…) to key_by, or leave ties out"
            )
        return KeyedTopSpec(operator, found, self.n, self.by, self.least, self.windows.rows.combine)
