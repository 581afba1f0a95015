"""Times: intervals, parts of dates and times, and the functions that create and shift them."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions import zones
from holdfast.expressions.conversions import cast
from holdfast.expressions.mapping import mapped, with_settings
from holdfast.expressions.nodes import (
    Binding,
    ExpressionRefused,
    Term,
    Value,
    applied,
    array_of,
    constant,
    failed_where,
    with_arrays,
)
from holdfast.expressions.reading_texts import days_of
from holdfast.expressions.table import function
from holdfast.expressions.types import INSTANT, LOCAL, MONTHS, SPAN, is_integer, is_time, type_name

DATE = pa.date32()
DAY_US = zones.DAY_US
_DAYS = {
    name: place
    for place, full in enumerate(("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY"))
    for name in (full[:2], full[:3], full)
}


def calculated(binder: Binding, sign: str, left: Term, right: Term) -> Term | None:
    """Make `+` or `-` of times and intervals; None if neither operand is a time or an interval."""
    intervals = (SPAN, MONTHS)
    kinds = (left.type, right.type)
    if not any(is_time(kind) or kind in intervals for kind in kinds):
        return None
    if sign == "+" and left.type in intervals and is_time(right.type):
        left, right = right, left
    if is_time(left.type) and right.type in intervals and sign in "+-":
        return moved(binder, left, right, sign == "-")
    if left.type == DATE and is_integer(right.type) and right.type != pa.int64() and sign in "+-":
        return _days_added(binder, left, right, sign == "-")
    if sign == "-" and all(map(is_time, kinds)):
        kind = DATE if kinds == (DATE, DATE) else INSTANT if INSTANT in kinds else LOCAL
        ends = [cast(each, kind, binder.settings) for each in (left, right)]
        if kind == INSTANT and not zones.is_utc(binder.settings.zone):
            ends = [local_time(binder, each) for each in ends]
        return applied(SPAN, _difference, *ends)
    if kinds == (SPAN, SPAN) and sign in "+-":
        kernel = pc.add_checked if sign == "+" else pc.subtract_checked
        return applied(SPAN, lambda a, b: kernel(_micros(a), _micros(b)).cast(SPAN), left, right, fails=True)
    raise ExpressionRefused(
        f"{type_name(left.type)} {sign} {type_name(right.type)} is not supported in expressions; use transform(…)"
    )


def _micros(value: Value) -> Value:
    return value.cast(pa.int64())


def _difference(left: Value, right: Value) -> pa.Array:
    if left.type == DATE:
        days = pc.subtract(left.cast(pa.int32()).cast(pa.int64()), right.cast(pa.int32()).cast(pa.int64()))
        return pc.multiply(days, zones.DAY_US).cast(SPAN)
    return pc.subtract(_micros(left), _micros(right)).cast(SPAN)


def local_time(binder: Binding, node: Term) -> Term:
    """Make the term of local times in the session's zone."""
    if node.type == INSTANT:
        zone = binder.settings.zone
        return applied(LOCAL, with_arrays(lambda array: zones.to_local(array, zone)), node)
    return cast(node, LOCAL, binder.settings)


def resolved(local: pa.Array, before: pa.Array, zone: str) -> pa.Array:
    """Return the instants of local times that were shifted. A time that occurs twice keeps its UTC offset."""
    if zones.is_utc(zone):
        return zones.to_instant(local, zone)
    offset = pc.subtract(zones.to_local(before, zone).cast(pa.int64()), before.cast(pa.int64()))
    kept = pc.subtract(local.cast(pa.int64()), offset).cast(INSTANT)
    same = pc.equal(zones.to_local(kept, zone), local)
    return pc.if_else(same, kept, zones.to_instant(local, zone))


def moved(binder: Binding, time: Term, interval: Term, back: bool) -> Term:
    """Make a time plus or minus an interval."""
    zone, sign = binder.settings.zone, -1 if back else 1
    if interval.constant is None and (time.type == DATE or interval.type == MONTHS):
        raise ExpressionRefused("a date plus an interval that is no literal is not supported in expressions")
    if interval.type == MONTHS:
        months = interval.constant.as_py().months * sign  # type: ignore[union-attr]

        return applied(time.type, with_arrays(lambda array: moved_by_months(array, months, zone)), time)
    if time.type == DATE:
        if interval.name != "days":
            raise ExpressionRefused(
                "a date plus an interval of other units than days is not supported in expressions; cast it to TIMESTAMP"
            )
        days = interval.constant.cast(pa.int64()).as_py() // zones.DAY_US * sign  # type: ignore[union-attr]
        return _days_added(binder, time, constant(pa.scalar(days, pa.int32())), False)

    def by_span(array: pa.Array, span: pa.Array) -> pa.Array:
        micros = _micros(span)
        micros = pc.negate(micros) if back else micros
        if array.type == LOCAL or zones.is_utc(zone):
            return pc.add(_micros(array), micros).cast(array.type)
        days = pc.divide(micros, zones.DAY_US)
        rest = pc.subtract(micros, pc.multiply(days, zones.DAY_US))
        local = pc.add(_micros(zones.to_local(array, zone)), pc.multiply(days, zones.DAY_US)).cast(LOCAL)
        return pc.add(_micros(resolved(local, array, zone)), rest).cast(INSTANT)

    return applied(time.type, with_arrays(by_span), time, interval)


def moved_by_months(array: pa.Array, months: int | np.ndarray, zone: str) -> pa.Array:
    """Return dates or times with months added, in local times of the zone."""
    if array.type == DATE:
        return months_added(array, months)
    local = zones.to_local(array, zone) if array.type == INSTANT else array
    day = zones.local_date(local)
    of_day = pc.subtract(local.cast(pa.int64()), zones.midnight(day).cast(pa.int64()))
    made = pc.add(zones.midnight(months_added(day, months)).cast(pa.int64()), of_day).cast(LOCAL)
    return resolved(made, array, zone) if array.type == INSTANT else made


def months_added(array: pa.Array, months: int | np.ndarray) -> pa.Array:
    """Add months to dates. The day of the month stays the same, or becomes the last day of the month."""
    days = pc.fill_null(array.cast(pa.int32()), 0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
    first = days.astype("datetime64[M]")
    place = (days - first.astype("datetime64[D]")).astype(np.int64)
    wanted = first + months
    length = ((wanted + 1).astype("datetime64[D]") - wanted.astype("datetime64[D]")).astype(np.int64)
    made = wanted.astype("datetime64[D]").astype(np.int64) + np.minimum(place, length - 1)
    return pc.if_else(array.is_valid(), pa.array(made).cast(pa.int32()).cast(DATE), None)


def _days_added(_: Binding, date: Term, days: Term, back: bool) -> Term:
    kernel = pc.subtract if back else pc.add

    def run(array: Value, count: Value) -> pa.Array:
        return kernel(array.cast(pa.int32()), count.cast(pa.int32())).cast(DATE)

    return applied(DATE, run, date, days)


def _part(names: str, kernel: object, takes: str = "date") -> None:
    def build(binder: Binding, node: Term) -> Term:
        node = local_time(binder, node) if takes == "local" else node
        return applied(pa.int32(), lambda array: kernel(array).cast(pa.int32()), node)  # type: ignore[operator]

    build.__module__ = __name__
    function(names, takes)(build)


_part("year", pc.year)
_part("month", pc.month)
_part("day dayofmonth", pc.day)
_part("dayofweek", lambda array: pc.day_of_week(array, count_from_zero=False, week_start=7))
_part("weekday", pc.day_of_week)
_part("dayofyear", pc.day_of_year)
_part("quarter", pc.quarter)
_part("weekofyear", pc.iso_week)
_part("hour", pc.hour, "local")
_part("minute", pc.minute, "local")
_part("second", pc.second, "local")

_PARTS = {
    "YEAR": "year", "Y": "year", "YEARS": "year", "YR": "year", "YRS": "year", "MONTH": "month", "MON": "month",
    "MONS": "month", "MONTHS": "month", "DAY": "day", "D": "day", "DAYS": "day", "QUARTER": "quarter", "QTR": "quarter",
    "WEEK": "weekofyear", "W": "weekofyear", "WEEKS": "weekofyear", "DAYOFWEEK": "dayofweek", "DOW": "dayofweek",
    "DOY": "dayofyear", "HOUR": "hour", "H": "hour", "HOURS": "hour", "HR": "hour", "HRS": "hour", "MINUTE": "minute",
    "M": "minute", "MIN": "minute", "MINS": "minute", "MINUTES": "minute",
}  # fmt: skip


@function("date_part datepart", "string, local")
def date_part(binder: Binding, part: Term, node: Term) -> Term:
    from holdfast.expressions.table import found

    name = text_constant(part, "the part of date_part")
    known = _PARTS.get(name.upper())
    if known is not None:
        return found(known).node(binder, [node])
    if name.upper() in ("SECOND", "S", "SEC", "SECONDS", "SECS"):
        kind = pa.decimal128(8, 6)

        def kernel(array: Value) -> pa.Array:
            micros = pc.subtract(
                _micros(array), pc.multiply(zones.floor_divided(_micros(array), 60_000_000), 60_000_000)
            )
            return _scaled(micros.cast(pa.decimal128(19, 0)))

        return applied(kind, with_arrays(kernel), local_time(binder, node))
    raise ExpressionRefused(
        f"the part {name} of a time is not supported in expressions; supported are {', '.join(_PARTS)}, SECOND"
    )


def _scaled(micros: pa.Array) -> pa.Array:
    """Return microseconds as seconds with six decimal places."""
    from decimal import Decimal

    return pc.multiply(micros.cast(pa.decimal128(8, 0)), pa.scalar(Decimal("0.000001"), pa.decimal128(7, 6))).cast(
        pa.decimal128(8, 6)
    )


def text_constant(node: Term, place: str) -> str:
    """Return the text of a literal. Raises `ExpressionRefused` if the term is no literal."""
    if node.constant is None or not node.constant.is_valid or node.type != pa.string():
        raise ExpressionRefused(f"{place} has to be a text in quotes in expressions")
    return str(node.constant.as_py())


@function("date_add dateadd", "date, int")
def date_add(binder: Binding, date: Term, days: Term) -> Term:
    return _days_added(binder, date, days, False)


@function("date_sub", "date, int")
def date_sub(binder: Binding, date: Term, days: Term) -> Term:
    return _days_added(binder, date, days, True)


@function("datediff date_diff", "date, date")
def datediff(_: Binding, end: Term, start: Term) -> Term:
    return applied(pa.int32(), lambda a, b: pc.subtract(a.cast(pa.int32()), b.cast(pa.int32())), end, start)


@function("add_months", "date, int")
def add_months(_: Binding, date: Term, months: Term) -> Term:
    def kernel(array: pa.Array, count: pa.Array) -> pa.Array:
        made = months_added(array, pc.fill_null(count, 0).to_numpy(zero_copy_only=False).astype(np.int64))
        return pc.if_else(count.is_valid(), made, None)

    return applied(DATE, with_arrays(kernel), date, months)


@function("last_day", "date")
def last_day(_: Binding, date: Term) -> Term:
    def kernel(array: pa.Array) -> pa.Array:
        months = (
            pc.fill_null(array.cast(pa.int32()), 0)
            .to_numpy(zero_copy_only=False)
            .astype("datetime64[D]")
            .astype("datetime64[M]")
        )
        days = (months + 1).astype("datetime64[D]").astype(np.int64) - 1
        return pc.if_else(array.is_valid(), pa.array(days).cast(pa.int32()).cast(DATE), None)

    return applied(DATE, with_arrays(kernel), date)


@function("next_day", "date, string")
def next_day(binder: Binding, date: Term, day: Term) -> Term:
    wanted = _DAYS.get(text_constant(day, "the day of next_day").upper())
    if wanted is None:
        raise ExpressionRefused(f"next_day: {text_constant(day, 'the day')!r} is no day of the week")

    def kernel(array: pa.Array) -> pa.Array:
        today = pc.day_of_week(array).cast(pa.int32())
        ahead = pc.subtract(pa.scalar(wanted + 6, pa.int32()), today)
        ahead = pc.add(pc.subtract(ahead, pc.multiply(pc.divide(ahead, 7), 7)), 1)
        return pc.add(array.cast(pa.int32()), ahead.cast(pa.int32())).cast(DATE)

    return applied(DATE, with_arrays(kernel), date)


_UNITS = {
    "YEAR": "year", "YYYY": "year", "YY": "year", "QUARTER": "quarter", "MONTH": "month", "MON": "month", "MM": "month",
    "WEEK": "week", "DAY": "day", "DD": "day", "HOUR": "hour", "MINUTE": "minute", "SECOND": "second",
    "MILLISECOND": "millisecond", "MICROSECOND": "microsecond",
}  # fmt: skip
_LENGTHS = {"hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000, "millisecond": 1_000, "microsecond": 1}


def date_floored(days: pa.Array, unit: str) -> pa.Array:
    """Return the first day of the year, quarter, month or week."""
    if unit == "day":
        return days
    if unit == "week":
        return pc.subtract(days.cast(pa.int32()), pc.day_of_week(days).cast(pa.int32())).cast(DATE)
    found = pc.fill_null(days.cast(pa.int32()), 0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
    months = found.astype("datetime64[M]").astype(np.int64)
    months -= months % {"year": 12, "quarter": 3, "month": 1}[unit]
    made = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return pc.if_else(days.is_valid(), pa.array(made).cast(pa.int32()).cast(DATE), None)


@function("date_trunc", "string, timestamp")
def date_trunc(binder: Binding, unit: Term, time: Term) -> Term:
    name = _UNITS.get(text_constant(unit, "the unit of date_trunc").upper())
    if name is None:
        return constant(pa.scalar(None, INSTANT))
    zone = binder.settings.zone

    def kernel(array: pa.Array) -> pa.Array:
        local = zones.to_local(array, zone)
        if name not in _LENGTHS:
            return zones.to_instant(zones.midnight(date_floored(zones.local_date(local), name)), zone)
        length = _LENGTHS[name]
        made = pc.multiply(zones.floor_divided(_micros(local), length), length).cast(LOCAL)
        return resolved(made, array, zone)

    return applied(INSTANT, with_arrays(kernel), time)


@function("trunc", "date, string")
def trunc(_: Binding, date: Term, unit: Term) -> Term:
    name = _UNITS.get(text_constant(unit, "the unit of trunc").upper())
    if name not in ("year", "quarter", "month", "week"):
        return constant(pa.scalar(None, DATE))
    return applied(DATE, with_arrays(lambda array: date_floored(array, str(name))), date)


@function("make_date", "int, int, int")
def make_date(binder: Binding, year: Term, month: Term, day: Term) -> Term:
    ansi = binder.settings.ansi

    def kernel(*parts: pa.Array) -> pa.Array:
        made = days_of(*(each.cast(pa.int64()) for each in parts))
        given = pc.and_(pc.and_(parts[0].is_valid(), parts[1].is_valid()), parts[2].is_valid())
        if ansi:
            failed_where(pc.and_(given, made.is_null()), "there is no day {}-{}-{}", *parts)
        return made.cast(DATE)

    return applied(DATE, with_arrays(kernel), year, month, day, fails=ansi)


def _from_number(name: str, per_second: int) -> None:
    @function(name, "long" if per_second != 1 else "number")
    def build(_: Binding, node: Term) -> Term:
        if not is_integer(node.type):
            raise ExpressionRefused(
                f"{name} of {type_name(node.type)} is not supported in expressions; cast it to BIGINT"
            )
        factor = 1_000_000 // per_second
        kernel = lambda array: pc.multiply_checked(array.cast(pa.int64()), factor).cast(INSTANT)  # noqa: E731
        return applied(INSTANT, kernel, node, fails=factor != 1)


def _to_number(name: str, per_second: int) -> None:
    @function(name, "timestamp")
    def build(_: Binding, node: Term) -> Term:
        return applied(
            pa.int64(), with_arrays(lambda array: zones.floor_divided(_micros(array), 1_000_000 // per_second)), node
        )


for _name, _count in (("timestamp_seconds", 1), ("timestamp_millis", 1000), ("timestamp_micros", 1_000_000)):
    _from_number(_name, _count)
for _name, _count in (("unix_seconds", 1), ("unix_millis", 1000), ("unix_micros", 1_000_000)):
    _to_number(_name, _count)


@function("unix_date", "date")
def unix_date(_: Binding, date: Term) -> Term:
    return applied(pa.int32(), lambda array: array.cast(pa.int32()), date)


@function("date_from_unix_date", "int")
def date_from_unix_date(_: Binding, days: Term) -> Term:
    return applied(DATE, lambda array: array.cast(DATE), days)


def _shifted(name: str, to_zone: bool) -> None:
    @function(name, "timestamp, string")
    def build(_: Binding, time: Term, zone: Term) -> Term:
        if zone.constant is not None and zone.constant.is_valid:
            zones.check_zone(zone.constant.as_py())

        def kernel(array: pa.Array, given: str) -> pa.Array:
            if to_zone:
                return zones.to_local(array, given).cast(pa.int64()).cast(INSTANT)
            return zones.to_instant(array.cast(pa.int64()).cast(LOCAL), given)

        return with_settings(INSTANT, kernel, time, zone)


_shifted("from_utc_timestamp", True)
_shifted("to_utc_timestamp", False)


@function("convert_timezone", "string, string, local")
def convert_timezone(binder: Binding, before: Term, after: Term, time: Term) -> Term:
    zone, other = (text_constant(each, "a zone of convert_timezone") for each in (before, after))
    for each in (zone, other):
        zones.check_zone(each)
    local = cast(time, LOCAL, binder.settings)
    return applied(LOCAL, with_arrays(lambda array: zones.to_local(zones.to_instant(array, zone), other)), local)


@function("make_timestamp", "int, int, int, int, int, number")
def make_timestamp(binder: Binding, year: Term, month: Term, day: Term, hour: Term, minute: Term, second: Term) -> Term:
    ansi, zone = binder.settings.ansi, binder.settings.zone
    seconds = cast(second, pa.decimal128(16, 6), binder.settings)

    def kernel(*parts: pa.Array) -> pa.Array:
        *date, hours, minutes, of_minute = parts
        micros = of_minute.cast(pa.decimal128(38, 6)).cast(pa.decimal256(44, 6))
        micros = pc.multiply(micros, pa.scalar(10**6, pa.decimal256(7, 0))).cast(pa.decimal256(40, 0)).cast(pa.int64())
        days = days_of(*(each.cast(pa.int64()) for each in date)).cast(pa.int64())
        fits = [pc.and_(pc.greater_equal(each, 0), pc.less(each, end)) for each, end in ((hours, 24), (minutes, 60))]
        fits += [pc.and_(pc.greater_equal(micros, 0), pc.less_equal(micros, 60_000_000)), days.is_valid()]
        given = [each.is_valid() for each in parts]
        known, fitting = given[0], pc.fill_null(fits[0], False)
        for each in given[1:]:
            known = pc.and_(known, each)
        for each in fits[1:]:
            fitting = pc.and_(fitting, pc.fill_null(each, False))
        if ansi:
            failed_where(pc.and_(known, pc.invert(fitting)), "there is no time {}-{}-{} {}:{}:{}", *parts)
        minutes_of_day = pc.add(pc.multiply(hours.cast(pa.int64()), 60), minutes.cast(pa.int64()))
        made = pc.add(pc.add(pc.multiply(days, DAY_US), pc.multiply(minutes_of_day, 60_000_000)), micros)
        return zones.to_instant(pc.if_else(pc.and_(known, fitting), made, None).cast(LOCAL), zone)

    return applied(INSTANT, with_arrays(kernel), year, month, day, hour, minute, seconds, fails=ansi)


@function("months_between", "timestamp, timestamp")
def months_between(binder: Binding, end: Term, start: Term) -> Term:
    zone = binder.settings.zone

    def kernel(*ends: pa.Array) -> pa.Array:
        months, days, seconds, last = [], [], [], []
        for each in ends:
            date = zones.local_date(zones.to_local(each, zone))
            since = pc.subtract(_micros(each), _micros(zones.to_instant(zones.midnight(date), zone)))
            day = pc.fill_null(date.cast(pa.int32()), 0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
            month = day.astype("datetime64[M]")
            months.append(month.astype(np.int64))
            days.append((day - month.astype("datetime64[D]")).astype(np.int64) + 1)
            last.append((month + 1).astype("datetime64[D]") - 1 == day)
            seconds.append(pc.fill_null(since, 0).to_numpy(zero_copy_only=False) // 1_000_000)
        whole = (months[0] - months[1]).astype(np.float64)
        apart = (days[0] - days[1]) * 86_400 + seconds[0] - seconds[1]
        found = np.where(
            (days[0] == days[1]) | (last[0] & last[1]), whole, np.floor((whole + apart / 2_678_400) * 1e8 + 0.5) / 1e8
        )
        return pc.if_else(pc.and_(ends[0].is_valid(), ends[1].is_valid()), pa.array(found), None)

    return applied(pa.float64(), with_arrays(kernel), end, start)


__all__ = ["array_of", "mapped", "text_constant"]
