"""Updates of checkpoint settings while a query runs, and the kept updates that a start finds.

    start: declared settings ◄── kept updates of the record ──► LiveSettings
    update ──► LiveSettings ──► coordinator, planner ── keep or forget ──► the newest checkpoint is recorded again

Does not own: which settings may change (`checkpoint/updates.py`), when a record is written (`checkpoint/recording.py`).
"""

import threading
from collections.abc import Mapping
from concurrent.futures import wait as wait_for

from holdfast.checkpoint.updates import (
    DECLARED,
    DeclaredLayout,
    LiveSettings,
    SettingValue,
    at_start,
    differences,
    in_words,
    without_layout,
)
from holdfast.errors import JobRefused, SettingsError
from holdfast.jobmaster.batches.planner import Planner
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger
from holdfast.settings import CheckpointConfig, CheckpointTrigger, OnWatermark

log = logger(__name__)

RECORD_S_MAX = 5.0
"""Bound in seconds for which a kept update waits for its record. If the record comes later, a later record has the
update."""


def settings_at_start(
    declared: CheckpointConfig,
    base: CheckpointRecord | None,
    forget: bool,
    has_watermarks: bool,
    layout: DeclaredLayout,
) -> LiveSettings:
    """Return the settings with which a start begins from a record. Raises `JobRefused`.

    `layout`: the layout in the code. A layout that was kept while the code had another one is forgotten.
    """
    kept: Mapping[str, SettingValue] = {} if base is None or forget else base.kept
    if not layout.is_of(kept):
        kept = without_layout(kept)
    try:
        live = at_start(declared, kept)
        check_trigger(live.now.trigger, has_watermarks)
    except SettingsError as error:
        if not kept:
            raise JobRefused(str(error)) from error
        raise JobRefused(
            f"{', '.join(kept)}: kept by query.update(…, keep=True), and not allowed for this start: {error}. "
            "job.start(forget_updates=True) takes back all that was kept"
        ) from error
    return live


def check_trigger(trigger: CheckpointTrigger, has_watermarks: bool) -> None:
    """Refuse a trigger that would never be due. Raises `SettingsError`."""
    if isinstance(trigger, OnWatermark) and not has_watermarks:
        raise SettingsError(
            f"trigger=on_watermark({trigger.interval!r}): no source of this job has a watermark, so that no checkpoint "
            "would ever be due: declare job.read(source).with_watermark(column, delay), or take every(…) or cron(…)"
        )


class Updating:
    """The settings of a running query; thread-safe."""

    def __init__(self, job: str, live: LiveSettings, has_watermarks: bool) -> None:
        self._job = job
        self._live = live
        self._has_watermarks = has_watermarks
        self._lock = threading.Lock()

    @property
    def now(self) -> CheckpointConfig:
        """The settings in force."""
        return self._live.now

    @property
    def kept(self) -> Mapping[str, str]:
        """The settings that were kept for later starts, in words."""
        kept = self._live.kept
        words = in_words(at_start(self._live.declared, kept).now)
        return {name: words.get(name, repr(value)) for name, value in kept.items() if not name.startswith(DECLARED)}

    def log_kept(self) -> None:
        """Log each setting that this start took from the record."""
        kept = self._live.kept
        declared = in_words(self._live.declared)
        declared |= {name.removeprefix(DECLARED): repr(kept[name]) for name in kept if name.startswith(DECLARED)}
        for name, value in self.kept.items():
            log.info(
                "%s: %s=%s was kept by an update of an earlier start, and takes the place of %s=%s in the job's code; "
                "query.update(forget=True) or job.start(forget_updates=True) takes it back",
                self._job, name, value, name, declared[name],
            )  # fmt: skip

    def rescaled(self, control: Control, declared: DeclaredLayout, layout: DeclaredLayout) -> None:
        """Note the layout of a rescale: the newest checkpoint is recorded again with it, so later starts use it."""
        with self._lock:
            self._live = self._live.rescaled(layout, declared)
            control.change_settings(self._live.now, self._live.kept)

    def update(
        self,
        control: Control,
        planner: Planner,
        checkpoint: CheckpointConfig | None,
        changes: Mapping[str, object],
        keep: bool,
        forget: bool,
    ) -> None:
        """Change settings until the query ends, including its restarts; kept settings are used by later starts too."""
        with self._lock:
            before, live = self._live, self._live.updated(checkpoint, changes, keep=keep, forget=forget)
            check_trigger(live.now.trigger, self._has_watermarks)
            self._live = live
            planner.go_by(live.now.trigger)
            recorded = control.change_settings(live.now, live.kept)
        changed = ", ".join(differences(in_words(before.now), live.now)) or "nothing"
        kept = f"; kept for later starts: {', '.join(live.kept) or 'nothing'}" if keep or forget else ""
        log.info("%s: checkpoint settings changed: %s%s", self._job, changed, kept)
        if live.kept != before.kept and not wait_for([recorded], RECORD_S_MAX).done:
            log.warning("%s: the updated settings are not recorded yet; the next checkpoint records them", self._job)
