"""The autoscaler's rules in a running job: told each committed batch, and whoever looks is told the advice."""

from collections.abc import Mapping

from holdfast.autoscale.rules import AutoscaleRules, BatchFacts
from holdfast.clock import Clock
from holdfast.jobmaster.batches.deployer import StartedJob
from holdfast.jobmaster.batches.runner import BatchOutcome
from holdfast.printable import logger

log = logger(__name__)

IN_BYTES = "file"
"""The kind of the source whose lag is in files and bytes; it counts as unknown."""


class Advisor:
    """Advises on the number of TaskManagers. Told by the conductor's thread, asked by any."""

    def __init__(self, job: StartedJob, clock: Clock) -> None:
        settings = job.settings
        self._name, self._clock = settings.name, clock
        self._counted = [name for name, source in job.program.sources.items() if source.kind != IN_BYTES]
        self._task_managers = settings.layout.task_managers
        wanted = settings.autoscale if self._task_managers else None
        self._rules = None if wanted is None else AutoscaleRules(wanted)

    @property
    def advice(self) -> str | None:
        """The advice that holds now, in words."""
        advice = None if self._rules is None else self._rules.advice
        return None if advice is None else str(advice)

    def committed(self, outcome: BatchOutcome, duration_s: float, lag: Mapping[str, Mapping[str, int]]) -> None:
        """Take in a committed batch. `lag`: data that was not read, by source and split, in the sources' units."""
        if self._rules is None:
            return
        process_s = min(duration_s, outcome.durations_ms.get("process", 0.0) / 1000)
        left = sum(sum(lag.get(name, {}).values()) for name in self._counted)
        fact = BatchFacts(self._clock.monotonic(), outcome.rows_in, duration_s, process_s, left, self._task_managers)
        advice = self._rules.handle(fact)
        if advice is not None:
            log.info("%s: autoscale advises %s", self._name, advice)
