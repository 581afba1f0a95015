"""Checks of the values that a user gives to `Job`."""

from collections.abc import Mapping, Sequence

from holdfast.autoscale.settings import Autoscale
from holdfast.errors import SettingsError
from holdfast.settings import CheckpointConfig, FailoverConfig, OnLoss, TaskManagerConfig
from holdfast.store_prices import StorePrices

TOKEN_CHARACTERS_MIN = 32
"""Least number of characters of a token that a user chooses."""
SHARED_STORAGES_MAX = 64
"""Most storages over which materialized tables are spread. Clean-up lists each of them."""


def check_types(
    checkpoint: object,
    task_manager: object,
    failover: object,
    storage_options: object,
    autoscale: object,
    prices: object,
) -> None:
    """Refuse settings whose value is not of the class that describes them."""
    for field, value, kind, example in (
        ("checkpoint", checkpoint, CheckpointConfig, "CheckpointConfig(trigger=hf.every('10s'))"),
        ("task_manager", task_manager, TaskManagerConfig, "TaskManagerConfig(memory='4GB')"),
        ("failover", failover, FailoverConfig, "FailoverConfig(restarts_max=10)"),
        ("autoscale", autoscale, Autoscale, "Autoscale(max_task_managers=8)"),
        ("prices", prices, StorePrices, "StorePrices(per_1000_puts=0.005)"),
        ("storage_options", storage_options, Mapping, "{'aws_region': 'eu-central-1'}"),
    ):
        if value is not None and not isinstance(value, kind):
            shown = f"a {type(value).__name__}" if field == "storage_options" else repr(value)
            raise SettingsError(f"{field}={shown} is not allowed: for example {field}={example}")


def checked_on_loss(value: object) -> OnLoss:
    try:
        return OnLoss(value)
    except ValueError:
        raise SettingsError(f'on_loss={value!r} is not allowed: "rewind", "drop" or "restart"') from None


def check_driver(driver: object, has_session: bool) -> None:
    """Raise `SettingsError` if a job cannot have its driver there."""
    if driver not in ("client", "cluster"):
        raise SettingsError(f"driver={driver!r} is not allowed: 'client' or 'cluster'")
    if driver == "cluster" and not has_session:
        raise SettingsError("driver='cluster' needs a session of Spark Connect; this job was made without a session")


def check_control(control: object) -> None:
    """Refuse a value of `ui_control` that is no switch and no token."""
    if isinstance(control, str) and (len(control) < TOKEN_CHARACTERS_MIN or not control.isascii()):
        raise SettingsError(
            f"ui_control is a token of {len(control)} characters; allowed: {TOKEN_CHARACTERS_MIN} ASCII characters "
            "or more, or True for a token that the start makes"
        )
    if not isinstance(control, bool | str):
        raise SettingsError(f"ui_control={control!r} is not allowed: True, False, or a token")


def checked_storages(changelog: object, shared: object) -> tuple[str | None, tuple[str, ...]]:
    """Return the URLs of a job's other storages. Raises `SettingsError` if they are none, or too many."""
    if not (changelog is None or (isinstance(changelog, str) and changelog)):
        raise SettingsError(f"changelog_storage={changelog!r} is not allowed: the URL of a folder, or None")
    if isinstance(shared, str) or not isinstance(shared, Sequence):
        raise SettingsError(f"shared_storages={shared!r} is not allowed: a list of URLs, for example ['s3://b/tables']")
    for url in shared:
        if not isinstance(url, str) or not url:
            raise SettingsError(f"shared_storages has {url!r}, which is not allowed: the URL of a folder")
    if len(shared) > SHARED_STORAGES_MAX:
        raise SettingsError(f"shared_storages has {len(shared)} URLs; allowed: at most {SHARED_STORAGES_MAX}")
    return changelog, tuple(shared)
