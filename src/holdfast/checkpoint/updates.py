"""Checkpoint settings that change while a query runs: the settings that may change, and their forms for records and
people.

    declared ──update──► now            for this query
       │          └keep──► kept ──► records ──► the next start: declared, with the kept settings over them
       ▼                             │
      forget: the kept settings are as declared again, and records hold none

Does not own: when a record is written (`recording.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import NamedTuple

from holdfast.checkpoint.trigger_texts import plain, text_of, trigger_of
from holdfast.errors import SettingsError
from holdfast.settings import CheckpointConfig

SettingValue = str | int | float | None
"""A setting as a record keeps it: a trigger as its text, a duration as a text or a number of seconds."""

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


DECLARED = "declared_"
"""Prefix of the names under which a record keeps the numbers of the layout that the code asked for."""


class DeclaredLayout(NamedTuple):
    """The layout in a job's code, or of a rescale. None: as the slots of the cluster allow.

    A record keeps each number of a rescale under its name, and the number in the code at that time under `declared_`
    and the name. If the code has another layout now, the layout in the code counts.
    """

    task_managers: int = 0
    parallelism: int | None = None
    senders: int | None = None

    def kept(self, declared: "DeclaredLayout") -> dict[str, SettingValue]:
        """Return the entries with which a record keeps this layout, for a job whose code asks for `declared`."""
        found: dict[str, SettingValue] = {}
        for name, value, own in zip(self._fields, self, declared, strict=True):
            if value != own:
                found |= {name: value, DECLARED + name: own}
        return found

    def with_kept(self, kept: Mapping[str, SettingValue]) -> "DeclaredLayout":
        """Return the layout of a start whose code asks for this one, and whose record keeps `kept`."""
        if not self.is_of(kept):
            return self
        found = {name: value for name in self._fields if isinstance(value := kept.get(name), int)}
        return self._replace(**found)

    def is_of(self, kept: Mapping[str, SettingValue]) -> bool:
        """True if the code asked for this layout when a record's entries were kept."""
        return all(kept.get(DECLARED + name, value) == value for name, value in zip(self._fields, self, strict=True))


OF_LAYOUT = frozenset(prefix + name for name in DeclaredLayout._fields for prefix in ("", DECLARED))
"""Names of all entries of a layout in a record."""


def without_layout(kept: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Return the entries of a record that do not belong to a layout."""
    return {name: value for name, value in kept.items() if name not in OF_LAYOUT}


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """New settings, including the trigger, that apply from now on.

    `kept`: all updates that later starts apply as well. If they differ from those of the newest record, its checkpoint
    is recorded again with them. `request_id`: a `Resolve` answers once the newest record has the settings, or if there
    is no record yet; empty: no answer is wanted.
    """

    config: CheckpointConfig
    kept: Mapping[str, SettingValue] = field(default_factory=dict)
    request_id: str = ""


@dataclass(frozen=True)
class LiveSettings:
    """The checkpoint settings of a running query."""

    declared: CheckpointConfig
    """The settings of the job's code."""
    now: CheckpointConfig
    kept: Mapping[str, SettingValue] = field(default_factory=dict)
    """Updates that later starts apply as well, by name."""

    def updated(
        self, checkpoint: CheckpointConfig | None, changes: Mapping[str, object], *, keep: bool, forget: bool
    ) -> "LiveSettings":
        """Return the settings after an update. `forget` comes first: kept settings are as declared again.

        Raises `SettingsError`.
        """
        names = [*CHANGEABLE] if checkpoint is not None else [*changes]
        if keep and not names:
            raise SettingsError("update(keep=True) names no setting; give the settings to keep, for example timeout=…")
        now, kept = self.now, dict(self.kept)
        if forget:
            now = replace(now, **{name: getattr(self.declared, name) for name in kept if name in CHANGEABLE})
            kept = {}
        now = updated(now, checkpoint, changes)
        if keep:
            kept |= {name: _kept(name, getattr(now, name)) for name in names if name in CHANGEABLE}
        return LiveSettings(self.declared, now, kept)

    def rescaled(self, layout: DeclaredLayout, declared: DeclaredLayout) -> "LiveSettings":
        """Return the settings after a rescale; later starts use its layout too."""
        return replace(self, kept=without_layout(self.kept) | layout.kept(declared))


def at_start(declared: CheckpointConfig, kept: Mapping[str, SettingValue]) -> LiveSettings:
    """Return the settings with which a start begins: the kept ones take the place of declared ones.

    Raises `SettingsError` if a kept setting is not allowed.
    """
    unknown = sorted(kept.keys() - {*CHANGEABLE, *OF_LAYOUT})
    if unknown:
        raise SettingsError(f"{', '.join(unknown)}: this version of Holdfast has no such setting to change")
    values: dict[str, object] = {name: value for name, value in kept.items() if name in CHANGEABLE}
    if "trigger" in values:
        values["trigger"] = trigger_of(str(values["trigger"]))
    return LiveSettings(declared, updated(declared, None, values), kept)


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
    """Return the settings that may change, by name, in the form of a record: for people and comparisons, never read
    back."""
    return {name: _shown(getattr(config, name)) for name in CHANGEABLE}


def differences(recorded: Mapping[str, str], config: CheckpointConfig) -> list[str]:
    """The settings that differ from recorded ones, each in words."""
    now = in_words(config)
    return [
        f"{name}={now[name]} (was {recorded[name]})"
        for name in CHANGEABLE
        if recorded.get(name, now[name]) != now[name]
    ]


def _kept(name: str, value: object) -> SettingValue:
    """Return a setting as a record keeps it."""
    if name != "trigger":
        return plain(value)  # type: ignore[arg-type]
    text = text_of(value)  # type: ignore[arg-type]
    if text is None:
        raise SettingsError(
            f"keep=True: the trigger {_shown(value)} is a class of your own, which no record can hold; keep every(…), "
            "cron(…), on_watermark(…) or manual(), or declare your trigger in Job(checkpoint=…)"
        )
    return text


def _fixed(config: CheckpointConfig) -> dict[str, object]:
    """The settings that may not change while a query runs, by name, with an entry for each setting of the changelog."""
    own = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in CHANGEABLE}
    del own["changelog"]
    changelog = config.changelog_config
    return own | {f"changelog.{each.name}": getattr(changelog, each.name) for each in fields(changelog)}


def _shown(value: object) -> str:
    """Word a trigger without its address in memory, which differs from start to start: a user's own by its type."""
    value = plain(value)  # type: ignore[arg-type]
    is_own = not isinstance(value, int | float | str | None) and not is_dataclass(value)
    return type(value).__qualname__ if is_own else repr(value)
