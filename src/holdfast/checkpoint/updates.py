"""Checkpoint settings that change while a query runs: which of them may, and how a record and a person see them."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace

from holdfast.errors import SettingsError
from holdfast.settings import CheckpointConfig

CHANGEABLE = (
    "trigger",
    "timeout",
    "min_pause",
    "max_concurrent",
    "tolerable_failed_checkpoints",
    "tolerable_failure_timeout",
    "outage_timeout",
    "unpublished_max",
    "retained",
    "retained_for",
)
"""Settings that only the JobMaster uses. The other settings are sent to TaskManagers when they are deployed."""


def updated(
    config: CheckpointConfig, checkpoint: CheckpointConfig | None, changes: Mapping[str, object]
) -> CheckpointConfig:
    """Return the settings after an update: those of `checkpoint`, if given, and single ones; the others stay.

    Raises
    ------
    SettingsError
        A name is no setting, a value is not allowed, or the update changes a setting that is fixed while a query runs.
    """
    known = [each.name for each in fields(CheckpointConfig)]
    unknown = sorted(changes.keys() - set(known))
    if unknown:
        raise SettingsError(
            f"update() got {', '.join(unknown)}, which CheckpointConfig does not have; it has {', '.join(known)}"
        )
    changed = replace(config if checkpoint is None else checkpoint, **changes)  # type: ignore[arg-type]
    running, wanted = _fixed(config), _fixed(changed)
    for name, now in running.items():
        if now != wanted[name]:
            raise SettingsError(
                f"{name}={wanted[name]!r}: this query runs with {name}={now!r}, and it can be changed only between "
                f"two starts; while a query runs, update() changes {', '.join(CHANGEABLE)}"
            )
    return changed


def in_words(config: CheckpointConfig) -> dict[str, str]:
    """The settings that may change, by name, as a record keeps them: for people and comparisons, never read back."""
    return {name: _shown(getattr(config, name)) for name in CHANGEABLE}


def differences(recorded: Mapping[str, str], config: CheckpointConfig) -> list[str]:
    """The settings that differ from recorded ones, each in words."""
    now = in_words(config)
    return [
        f"{name}={now[name]} (was {recorded[name]})"
        for name in CHANGEABLE
        if recorded.get(name, now[name]) != now[name]
    ]


def _fixed(config: CheckpointConfig) -> dict[str, object]:
    """The settings that may not change while a query runs, by name, with an entry for each setting of the changelog."""
    own = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in CHANGEABLE}
    del own["changelog"]
    changelog = config.changelog_config
    return own | {f"changelog.{each.name}": getattr(changelog, each.name) for each in fields(changelog)}


def _shown(value: object) -> str:
    """Word a trigger without its address in memory, which differs from start to start: a user's own by its type."""
    is_own = not isinstance(value, int | float | str | None) and not is_dataclass(value)
    return type(value).__qualname__ if is_own else repr(value)
