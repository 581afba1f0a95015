"""Parts of a JobMaster without processes behind them: a program of a source, a count by key and two sinks; TaskManagers
that note their calls and give prepared answers.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import holdfast as hf
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.plan import Plan
from holdfast.graph.program import Program
from holdfast.ids import BatchNumber, Incarnation
from holdfast.protocol.taskmanager import ExchangeRoute, SubtaskResult
from holdfast.sources.base import SplitRead


def summing_program() -> Program:
    """`numbers` goes to the sink `raw`, and by key to the operator `sums`, whose rows go to the sink `summed`."""
    job = hf.Job(
        None, name="parts", storage="memory://never-opened", bad_records="dead_letter", dead_letters="memory://x"
    )
    numbers = job.read(hf.SequenceSource(rows=100, splits=2, name="numbers"))
    numbers.write(hf.NoopSink(name="raw"))
    numbers.key_by("value").aggregate(n=hf.count(), name="sums").write(hf.NoopSink(name="summed"))
    return build_program(job.declared, without_spark, job.dead_letters, job.state)


def plan(batch: int = 1) -> Plan:
    """A batch of rows 0 to 9 of both splits, a sender for each."""
    reads = [[SplitRead(split, 0, 10)] for split in ("0", "1")]
    start, to = dict.fromkeys(("0", "1"), 0), dict.fromkeys(("0", "1"), 10)
    return Plan(BatchNumber(batch), 1_000_000, {"numbers": start}, {"numbers": to}, {"numbers": reads})


class Calls:
    """The calls under way, which nobody watches here."""

    def under_way(self, step: object, about: str) -> Any:
        return nullcontext()


class NotedTaskManagers:
    """TaskManagers by number, each a `Mock` that notes its calls. `gateways` prepares the answers."""

    def __init__(self, count: int) -> None:
        self.gateways = {number: Mock(name=f"TaskManager {number}") for number in range(count)}
        self.calls = Calls()
        self.live: dict[int, Incarnation] = {}

    def deploying(self, live: dict[int, Incarnation]) -> None:
        self.live = dict(live)

    def deployed(self) -> list[ExchangeRoute]:
        return [ExchangeRoute(number, Incarnation(1), f"here:{number}") for number in self.gateways]

    def on_all(self, step: object, about: str, call: Callable[[int, Any], Any]) -> list[Any]:
        return [call(number, gateway) for number, gateway in self.gateways.items()]

    def on_present(self, step: object, about: str, call: Callable[[int, Any], Any]) -> dict[int, Any]:
        return {number: call(number, gateway) for number, gateway in self.gateways.items()}


def processed(subtask: int, rows_out: int, **facts: Any) -> SubtaskResult:
    """The answer of a subtask of `sums`."""
    return SubtaskResult("sums", subtask, 10, rows_out, **facts)
