"""Trigger policies: pure answers to "when is the next checkpoint due?"."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.checkpoint.triggers import TriggerSchedule, WatermarkSchedule, cron, every, manual, on_watermark
from holdfast.errors import SettingsError

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()


def test_every_keeps_its_rate_when_it_is_served_late() -> None:
    assert every("10s").next_due(1000, 1000) == 1010
    assert every("10s").next_due(1013, 1000) == 1010
    assert every("10s").next_due(1013, 1010) == 1020


def test_every_takes_what_was_missed_once() -> None:
    assert every(10).next_due(1057, 1000) == 1050
    assert every(10).next_due(1057, 1050) == 1060


def test_every_is_due_at_once_when_the_clock_was_set_back() -> None:
    assert every(10).next_due(500, 1000) == 500


def test_a_loop_is_told_when_its_trigger_comes_due_and_nothing_once_it_is_due_or_was_served_early() -> None:
    schedule = TriggerSchedule()
    schedule.served(1000.0)
    assert schedule.next_due_s(every("10s"), 1003.0) == 1010.0
    assert schedule.next_due_s(every("10s"), 1010.0) is None
    schedule.served(1010.0)
    assert schedule.next_due_s(every("10s"), 1009.9) is None
    assert schedule.next_due_s(every("10s"), 1010.0) == 1020.0
    assert schedule.next_due_s(manual(), 1010.0) is None


def test_manual_is_never_due() -> None:
    assert manual().next_due(1e12, 0) is None


def test_cron_is_due_at_the_expressions_times_in_utc() -> None:
    assert cron("0 * * * *").next_due(NOON + 1, NOON) == NOON + 3600
    assert cron("30 12 * * *").next_due(NOON, NOON) == NOON + 1800


def test_cron_takes_what_was_missed_once() -> None:
    late = NOON + 5 * 3600 + 17
    assert cron("0 * * * *").next_due(late, NOON) == late
    assert cron("0 * * * *").next_due(late, late) == NOON + 6 * 3600


def test_cron_does_not_wait_for_a_clock_that_was_set_back() -> None:
    assert cron("0 * * * *").next_due(NOON, NOON + 86400) == NOON + 3600


@pytest.mark.parametrize("expression", ["", "* * *", "61 * * * *", "0 0 30 2 *", "often", None])
def test_an_expression_that_never_comes_due_is_refused(expression: str) -> None:
    with pytest.raises(SettingsError, match=r"cron\(expression\)=.*allowed"):
        cron(expression)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"every\(interval\)=0.*allowed"):
        every(0)


def test_cron_goes_by_its_time_zone_also_where_clocks_are_changed() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    daily = cron("30 2 * * *", timezone="Europe/Berlin")

    def after(*day: int) -> datetime:
        last_s = datetime(*day, 12, tzinfo=berlin).timestamp()  # type: ignore[misc]
        due_s = daily.next_due(last_s, last_s)
        assert due_s is not None
        return datetime.fromtimestamp(due_s, berlin)

    assert after(2025, 1, 7) == datetime(2025, 1, 8, 2, 30, tzinfo=berlin)
    assert after(2025, 3, 29) == datetime(2025, 3, 30, 3, 0, tzinfo=berlin), "02:30 does not exist"
    assert after(2025, 10, 25) == datetime(2025, 10, 26, 2, 30, tzinfo=berlin)
    assert after(2025, 10, 26) == datetime(2025, 10, 27, 2, 30, tzinfo=berlin), "the second 02:30 is not another one"


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "", 1, None])
def test_an_unknown_time_zone_is_refused(zone: Any) -> None:
    with pytest.raises(SettingsError, match=r"cron\(timezone\)=.*allowed"):
        cron("0 * * * *", timezone=zone)


HOUR_US = 3_600_000_000


def test_event_time_is_due_once_for_each_full_interval_that_the_watermark_passes():
    schedule, trigger = WatermarkSchedule(), on_watermark("1h")

    def due(hours: float | None) -> float | None:
        at_us = None if hours is None else int(hours * HOUR_US)
        due_us = schedule.due_us(trigger, at_us, at_commit=False)
        return None if due_us is None else due_us / HOUR_US

    assert [due(None), due(0.4), due(0.9)] == [None, None, None]
    assert due(1.0) == 1.0 and due(1.2) == 1.0, "due until it is served"
    schedule.served(HOUR_US)
    assert [due(1.2), due(1.99)] == [None, None]
    assert due(5.5) == 5.0, "hours that end at once are one"


def test_a_start_goes_on_from_the_watermark_of_its_checkpoint():
    schedule, trigger = WatermarkSchedule(), on_watermark("1h")
    schedule.recorded(int(1.9 * HOUR_US))
    assert schedule.due_us(trigger, int(1.95 * HOUR_US), at_commit=True) is None
    assert schedule.due_us(trigger, int(2.01 * HOUR_US), at_commit=True) == 2 * HOUR_US


def test_an_interval_whose_checkpoint_failed_is_due_again_at_the_next_boundary():
    schedule, trigger, at_us = WatermarkSchedule(), on_watermark("1h"), int(2.01 * HOUR_US)
    schedule.recorded(int(1.9 * HOUR_US))
    schedule.served(2 * HOUR_US)
    schedule.failed()
    assert schedule.due_us(trigger, at_us, at_commit=False) is None
    assert schedule.due_us(trigger, at_us, at_commit=True) == 2 * HOUR_US
    schedule.served(2 * HOUR_US)
    schedule.recorded(at_us)
    assert schedule.due_us(trigger, at_us, at_commit=True) is None
