"""The autoscaler's rules in a running job: they follow the committed batches, and give advice when asked.

With `Autoscale(apply=True)` a rescale follows the advice, on its own thread, since Spark may keep it waiting for
executors.
"""

import threading
from collections.abc import Mapping

from holdfast.autoscale.applying import AdviceApplied
from holdfast.autoscale.rules import AutoscaleRules, BatchFacts
from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.rescales import Rescales, WantedLayout
from holdfast.jobmaster.batches.runner import BatchOutcome
from holdfast.printable import logger

log = logger(__name__)

RESCALE_S_MAX = 600.0
"""Bound in seconds on a rescale that follows the advice, as of `Query.rescale`."""
IN_BYTES = "file"
"""The kind of the source whose lag is in files and bytes; it counts as unknown."""


class Advisor:
    """Advises on the number of TaskManagers. The conductor's thread reports batches; any thread may ask for the
    advice."""

    def __init__(self, job: StartedJob, clock: Clock, rescales: Rescales) -> None:
        settings, self._rescales = job.settings, rescales
        self._name, self._clock = settings.name, clock
        self._counted = [name for name, source in job.program.sources.items() if source.kind != IN_BYTES]
        wanted = settings.autoscale if settings.layout.task_managers else None
        self._rules = None if wanted is None else AutoscaleRules(wanted)
        applies = wanted is not None and wanted.apply
        self._applied = AdviceApplied(wanted) if wanted is not None and applies else None
        self._applying: threading.Thread | None = None

    @property
    def advice(self) -> str | None:
        """The advice that holds now, in words."""
        advice = None if self._rules is None else self._rules.advice
        return None if advice is None else str(advice)

    def committed(self, outcome: BatchOutcome, duration_s: float, lag: Mapping[str, Mapping[str, int]]) -> None:
        """Note a committed batch. `lag`: data that was not read yet, by source and split, in the units of the
        sources."""
        if self._rules is None:
            return
        process_s = min(duration_s, outcome.durations_ms.get("process", 0.0) / 1000)
        left = sum(sum(lag.get(name, {}).values()) for name in self._counted)
        now_s, now = self._clock.monotonic(), self._rescales.places
        facts = BatchFacts(now_s, outcome.rows_in, duration_s, process_s, left, now, outcome.busy_s)
        advice = self._rules.handle(facts)
        if advice is not None:
            log.info("%s: autoscale advises %s", self._name, advice)
        if self._applied is None:
            return
        begins = self._applying is not None and self._applying.is_alive()
        under_way, most = begins or self._rescales.is_under_way, self._rescales.parallelism
        wanted = self._applied.due(self._rules.advice, now, most, under_way, now_s)
        if wanted is not None:
            self._applying = threading.Thread(
                target=self._apply, args=(wanted,), name="holdfast-autoscale", daemon=True
            )
            self._applying.start()

    def _apply(self, task_managers: int) -> None:
        try:
            self._rescales.begin(WantedLayout(task_managers), RESCALE_S_MAX)
        except HoldfastError as error:
            log.warning("%s: autoscale does not get %d TaskManagers: %s", self._name, task_managers, error)
