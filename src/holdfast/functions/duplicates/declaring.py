"""`drop_duplicates` as a user declares it: checked, and made into the operator once its input is known."""

from dataclasses import dataclass
from typing import get_args

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.duplicates.duplicates import DuplicatesSpec
from holdfast.functions.operator import OperatorInput, OperatorSpec
from holdfast.functions.rows.policies import LatePolicy, RowHandling
from holdfast.functions.windows.declared import AnyWindow
from holdfast.quantities import Duration, duration_us


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
        found = inputs[0]
        if found.kind == "append":
            return DuplicatesSpec(operator, found, self.within_us, self.late)
        from holdfast.functions.changes.ranked import RankedChangesSpec  # most jobs need none of it

        shown = f"drop_duplicates({', '.join(map(repr, found.key_columns))})"
        if self.within_us is not None:
            raise JobRefused(
                f"operator {operator!r}: {shown} over a stream of changes has within=, which depends on the rows that "
                "were given before, and these may be deleted; leave it out: a key's row goes when its input is deleted"
            )
        return RankedChangesSpec(operator, found, shown)
