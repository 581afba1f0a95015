"""Settings are checked when made; a wrong setting is named with its value and the allowed values."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import SettingsError
from holdfast.settings import (
    ChangelogConfig,
    CheckpointConfig,
    HashMapState,
    RetryPolicy,
    RocksDBState,
    TaskManagerConfig,
    available_now,
    duration_s,
    every,
    manual,
    processing_time,
    size_bytes,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1s", 1.0),
        ("500ms", 0.5),
        ("10min", 600.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        (" 1.5 s ", 1.5),
        ("5m", 300.0),
        ("10 minutes", 600.0),
        ("1 minute", 60.0),
        ("1 hour 30 minutes", 5400.0),
        ("2 weeks", 1209600.0),
        (timedelta(minutes=10), 600.0),
        (3, 3.0),
        (0, 0),
    ],
)
def test_durations_are_strings_with_units_or_seconds(value: Any, seconds: float) -> None:
    assert duration_s(value, "timeout") == seconds


@pytest.mark.parametrize(
    ("value", "size"), [("512B", 512), ("8MB", 8 << 20), ("1GB", 1 << 30), ("0.5KB", 512), (7, 7), ("1TB", 1 << 40)]
)
def test_sizes_are_strings_with_units_or_bytes(value: Any, size: int) -> None:
    assert size_bytes(value, "memory") == size


@pytest.mark.parametrize(
    "value", ["10", "1 fortnight", "", "-1s", -1, float("nan"), float("inf"), None, True, "1 MB", "5 minutes ago"]
)
def test_what_is_no_duration_is_refused_by_field_and_value(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"^timeout=.*allowed: .*'10min'") as refusal:
        duration_s(value, "timeout")
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("value", ["8", "8mb", "1s", -1, 1.5, "0.1B", None, False])
def test_what_is_no_size_is_refused_by_field_and_value(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"^memory=.*allowed: .*'8MB'") as refusal:
        size_bytes(value, "memory")
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("value", ["1MB", "15MB", 1024, "0B"])
def test_too_little_memory_is_refused_with_the_least_that_works(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"^memory=.* is not enough .*; allowed is '16MB' or more") as refusal:
        TaskManagerConfig(memory=value)
    assert repr(value) in str(refusal.value)
    assert TaskManagerConfig(memory="16MB").memory_bytes == 16 << 20


def test_defaults_are_flinks_where_the_meaning_is_the_same() -> None:
    config = CheckpointConfig()
    assert config.trigger == every("10s")
    assert (config.timeout_s, config.min_pause_s, config.max_concurrent) == (600, 0, 1)
    assert (config.tolerable_failed_checkpoints, config.tolerable_failure_timeout_s) == (0, None)
    changelog = config.changelog_settings
    assert changelog.enabled
    assert (changelog.persist_delay_s, changelog.persist_bytes_max) == (0.01, 10 << 20)
    assert (changelog.in_flight_bytes_max, changelog.object_bytes_max) == (100 << 20, 8 << 20)
    assert changelog.preempt_bytes_max == 5 << 20
    assert changelog.materialization_interval_s == 600
    retries = (changelog.upload_attempts_max, changelog.attempt_timeout_s, changelog.next_attempt_delay_s)
    assert retries == (3, 1.0, 0.5)


def test_switching_the_changelog_off_is_short_for_a_config_without_one() -> None:
    assert CheckpointConfig(changelog=True).changelog_settings.enabled
    off = CheckpointConfig(changelog=False).changelog_settings
    assert not off.enabled
    assert (off.in_flight_bytes_max, off.upload_attempts_max) == (100 << 20, 3), "the settings of uploads hold"


def test_a_retry_policy_takes_its_arguments_in_one_order_however_it_is_made() -> None:
    for policy in (RetryPolicy(5, "2s", "3ms"), RetryPolicy.fixed(5, "2s", "3ms")):
        assert (policy.max_attempts, policy.timeout_s, policy.next_attempt_delay_s) == (5, 2.0, 0.003)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trigger": "1s"},
        {"trigger": every},
        {"timeout": 0},
        {"timeout": "soon"},
        {"min_pause": -1},
        {"max_concurrent": 0},
        {"max_concurrent": 1.0},
        {"tolerable_failed_checkpoints": -1},
        {"tolerable_failed_checkpoints": True},
        {"tolerable_failure_timeout": 0},
        {"unpublished_max": 0},
        {"changelog": "off"},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_checkpoint_setting_that_is_not_allowed_is_named(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(SettingsError, match=f"{name}=.*allowed") as refusal:
        CheckpointConfig(**wrong)
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"enabled": "off"},
        {"log_handles_max": 0},
        {"log_ratio_max": 0},
        {"log_ratio_max": "2"},
        {"materialization_interval": 0},
        {"persist_delay": "x"},
        {"object_size_max": 0},
        {"in_flight_max": 0},
        {"preemptive_persist_threshold": 0},
        {"retries": 3},
        {"persist_size_threshold": "200MB"},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_changelog_setting_that_is_not_allowed_is_named(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(SettingsError, match=f"{name}=.*allowed") as refusal:
        ChangelogConfig(**wrong)
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 0},
        {"memory": "lots"},
        {"port_range": (1, 0)},
        {"port_range": (0, 5)},
        {"port_range": (1, 70000)},
        {"port_range": 4000},
        {"local_dir": ""},
        {"advertised_host": 5},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_task_manager_setting_that_is_not_allowed_is_named(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(SettingsError, match=f"{name}=.*allowed") as refusal:
        TaskManagerConfig(**wrong)
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "many"])
def test_a_cache_limit_that_is_no_whole_number_is_refused(wrong: object) -> None:
    with pytest.raises(SettingsError, match=r"cache_max_entries=.*allowed is a whole number of at least 0"):
        RocksDBState(cache_max_entries=wrong)  # type: ignore[arg-type]


def test_settings_cannot_be_changed_after_they_were_made() -> None:
    for settings in (
        CheckpointConfig(),
        TaskManagerConfig(),
        HashMapState(),
        RocksDBState(),
        processing_time(),
        manual(),
    ):
        for field in dataclasses.fields(settings):  # type: ignore[arg-type]
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(settings, field.name, 1)


def test_query_triggers_know_their_durations() -> None:
    assert processing_time("2s").interval_s == 2.0
    assert available_now().timeout_s is None
    assert available_now("1min").timeout_s == 60.0
    with pytest.raises(SettingsError, match="interval"):
        processing_time("often")
    with pytest.raises(SettingsError, match="timeout"):
        available_now(timeout=-1)


def test_a_trigger_of_ones_own_is_taken() -> None:
    class AtFullMinutes:
        def next_due(self, now_s: float, last_s: float) -> float | None:
            return (last_s // 60 + 1) * 60

    assert CheckpointConfig(trigger=AtFullMinutes()).trigger.next_due(61, 59) == 60
