"""A user's declaration of a join, checked, and made into a `JoinSpec` once the inputs are known."""

from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.expressions.declared import SqlExpression
from holdfast.functions.joins.bounds import LEFT, RIGHT, SIDES, AsOf, Between, Bounds, Forever, Kept, SameWindow, Within
from holdfast.functions.joins.condition import bound_condition
from holdfast.functions.joins.declared import How, JoinSpec, check_how
from holdfast.functions.operator import OperatorInput
from holdfast.functions.rows.policies import BadRecords, LatePolicy
from holdfast.functions.windows.declared import Window
from holdfast.quantities import Duration, duration_us, signed_duration_us


@dataclass(frozen=True)
class JoinSettings:
    """The arguments of `KeyedStream.join`. Raises `SettingsError` when made."""

    within: tuple[Duration, Duration] | None = None
    between: tuple[str, str] | None = None
    ttl: Duration | None = None
    tolerance: Duration | None = None
    how: How = "inner"
    suffix: str | None = None
    late: LatePolicy = "drop"
    bad_records: BadRecords = "fail"
    condition: SqlExpression | None = None
    """A further condition on pairs of rows, over columns such as `left.price` (`condition.name_in_pair`)."""
    changes: bool = False

    def __post_init__(self) -> None:
        check_how(self.how)
        given = [name for name in ("within", "between", "ttl") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingsError(f"join() has {' and '.join(given)}: give only a single bound")
        if self.how == "asof" and given:
            raise SettingsError(f"join(how='asof') has {given[0]}: its bound of time is tolerance=, or none")
        if self.how != "asof" and self.tolerance is not None:
            raise SettingsError(f"join(how={self.how!r}) has tolerance: it belongs to how='asof'; give within=")
        if self.suffix is not None and (not isinstance(self.suffix, str) or not self.suffix):
            raise SettingsError(f"join(suffix={self.suffix!r}): expected the end of names, such as '_right'")
        if self.late not in get_args(LatePolicy):
            raise SettingsError(f"join(late={self.late!r}): allowed are 'drop' (counted), 'dead_letter' and 'stream'")
        if self.ttl is not None and duration_us(self.ttl, "ttl") == 0:
            raise SettingsError("join(ttl=0): rows are kept for longer than nothing")
        _ = self.within_us, self.tolerance_us
        _pair(self.between, "between", "the names of two columns of the other side", str)

    @property
    def timed(self) -> bool:
        """True if rows meet by event time, so that each row needs an event time."""
        return self.within is not None or self.between is not None or self.how == "asof"

    @property
    def tolerance_us(self) -> int | None:
        """The tolerance in microseconds."""
        return None if self.tolerance is None else duration_us(self.tolerance, "tolerance")

    @property
    def within_us(self) -> tuple[int, int] | None:
        """The bounds of `within` in microseconds."""
        pair = _pair(self.within, "within", "two durations such as ('-5min', '10min')", object)
        if pair is None:
            return None
        earliest_us, latest_us = (signed_duration_us(each, "within") for each in pair)
        if earliest_us > latest_us:
            raise SettingsError(f"join(within={self.within!r}): the first bound is above the second")
        return earliest_us, latest_us

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> JoinSpec:
        """The join of these inputs. Raises `JobRefused`."""
        left, right = inputs
        if self.changes or any(side.kind != "append" for side in inputs):
            return self._over_changes(operator, left, right)
        bounds = self._bounds(operator, left, right)
        condition = None if self.condition is None else bound_condition(self.condition, operator, (left, right))
        return JoinSpec(operator, (left, right), bounds, self.how, self.suffix, self.late, self.bad_records, condition)

    def _over_changes(self, operator: str, left: OperatorInput, right: OperatorInput) -> JoinSpec:
        from holdfast.functions.joins.changes_join import ChangesJoinSpec, without_change_type  # most jobs need neither

        given = [name for name in ("within", "between", "ttl", "tolerance") if getattr(self, name) is not None]
        given += [f"how={self.how!r}"] if self.how == "asof" else []
        given += [] if self.condition is None else [f"the condition {self.condition}"]
        given += [f"the window {side.window} in key_by" for side in (left, right) if side.window is not None]
        if given or self.late != "drop":
            raise JobRefused(
                f"operator {operator!r}: a join of changes has {given[0] if given else 'late'}, and its rows stay "
                "until they are deleted, so that all of a key meet, whatever their time: leave it out, compare pairs "
                "by .where(…) behind the join, or put .as_append() before key_by of both sides"
            )
        sides = without_change_type(left), without_change_type(right)
        return ChangesJoinSpec(operator, sides, Forever(), self.how, self.suffix, given=(left, right))

    def _bounds(self, operator: str, left: OperatorInput, right: OperatorInput) -> Bounds:
        if left.window is not None or right.window is not None:
            return self._same_window(operator, left, right)
        if self.how == "asof":
            return AsOf(_times(operator, left, right), self.tolerance_us)
        if self.within_us is not None:
            return Within(_times(operator, left, right), *self.within_us)
        if self.between is not None:
            return self._between(operator, left, right, *self.between)
        return Forever() if self.ttl is None else Kept(duration_us(self.ttl, "ttl"))

    def _between(self, operator: str, left: OperatorInput, right: OperatorInput, start: str, end: str) -> Between:
        times = _times(operator, left, right)
        if start != times[RIGHT]:
            raise JobRefused(
                f"operator {operator!r}: join(between=({start!r}, {end!r})): the first has to be the column of the "
                f"other side's watermark, {times[RIGHT]!r}: otherwise no row could ever be removed"
            )
        place = right.schema.get_field_index(end)
        if place < 0 or not pa.types.is_timestamp(right.schema.field(place).type):
            found = f"has type {right.schema.field(place).type}" if place >= 0 else "is not there"
            raise JobRefused(
                f"operator {operator!r}: join(between=({start!r}, {end!r})): column {end!r} of the other side {found}; "
                f"give a timestamp; it has {', '.join(right.schema.names)}"
            )
        return Between(times, end)

    def _same_window(self, operator: str, left: OperatorInput, right: OperatorInput) -> SameWindow:
        shapes = []
        for side in (left, right):
            window = side.window
            if not isinstance(window, Window):
                shown = "no window" if window is None else str(window)
                raise JobRefused(
                    f"operator {operator!r}: a join by windows needs the same hf.window in key_by of both sides; a "
                    f"side has {shown}"
                )
            shapes.append((window.size_us, window.slide_us, window.start_us))
        if shapes[LEFT] != shapes[RIGHT]:
            raise JobRefused(
                f"operator {operator!r}: a join by windows needs the same hf.window in key_by of both sides; they have "
                f"{left.window} and {right.window}"
            )
        if self.timed or self.ttl is not None:
            raise JobRefused(
                f"operator {operator!r}: a join by windows has the window as its bound of time: leave within, between, "
                "ttl and how='asof' out"
            )
        if left.event_time is None or right.event_time is None:
            raise JobRefused(
                f"operator {operator!r}: a join by windows needs watermarks: add .with_watermark(column, delay) right "
                "after read() of all its sources"
            )
        return SameWindow((left.window, right.window))


def _pair(value: Any, name: str, expected: str, kind: type) -> tuple[Any, Any] | None:
    if value is None:
        return None
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(each, kind) for each in value):
        raise SettingsError(f"join({name}={value!r}): expected {expected}")
    return value[0], value[1]


def _times(operator: str, left: OperatorInput, right: OperatorInput) -> tuple[str, str]:
    """The columns with the event times of both sides."""
    names = []
    for side, name in zip((left, right), SIDES, strict=True):
        if side.event_time is None:
            raise JobRefused(
                f"operator {operator!r}: a join with a bound of event time needs watermarks: add "
                ".with_watermark(column, delay) right after read() of all its sources"
            )
        if side.event_time.column is None:
            raise JobRefused(
                f"operator {operator!r}: the {name} side has no column for its event time any more "
                f"({' or '.join(side.event_time.names)}); it has {', '.join(side.schema.names)}: keep the column"
            )
        names.append(side.event_time.column)
    return names[LEFT], names[RIGHT]
