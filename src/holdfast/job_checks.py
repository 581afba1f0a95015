"""Checks of the values that a user gives to `Job`."""

from collections.abc import Mapping

from holdfast.autoscale.settings import Autoscale
from holdfast.errors import SettingsError
from holdfast.settings import CheckpointConfig, FailoverConfig, OnLoss, TaskManagerConfig
from holdfast.store_prices import StorePrices


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
