"""Scenarios of pure rules as text, after etcd raft's: steps, `----`, then the rules' answers.

    commit 3 out=x,y            an event for each line; words are `name=value` or plain
    ----
    Cut 1 batch=3 run=1 to 0:1

Each room with such rules has its own steps (`checkpoint_text`, `execution_text`) and a folder `scenarios`. With the
environment variable HOLDFAST_REWRITE=1 the present answers are written into the files, for review. `validate()` runs
after each event.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from holdfast.observe.event_log import EventLog, ObservedRules, Rules


class Scenario(ABC):
    """Rules that are driven by lines of text."""

    def __init__(self) -> None:
        self.now = 0.0
        self._event_log = EventLog(lambda: self.now)

    @abstractmethod
    def carry_out(self, name: str, plain: list[str], named: dict[str, str]) -> list[str]:
        """Carry out a line with these words; return the answers, as they are shown."""

    def run(self, text: str) -> str:
        """The scenario with the answers that the rules give now."""
        done = []
        for block in text.strip("\n").split("\n\n"):
            steps = block.split("\n----")[0].splitlines()
            answers = [line for step in steps if not step.startswith("#") for line in self.step(step)]
            done.append("\n".join([*steps, "----", *answers]) if any(s[0] != "#" for s in steps) else "\n".join(steps))
        return "\n\n".join(done) + "\n"

    def step(self, line: str) -> list[str]:
        """Carry out a line; return its answers."""
        name, *words = line.split()
        named = dict(word.split("=", 1) for word in words if "=" in word)
        return self.carry_out(name, [word for word in words if "=" not in word], named)

    def told(self, rules: Rules[Any, Any], events: Iterable[Any]) -> list[Any]:
        """Tell the rules events, and check their invariants after each; return the commands."""
        observed, commands = ObservedRules("scenario", rules, self._event_log), list[Any]()
        for event in events:
            commands += observed.handle(event)
            observed.validate()
        return commands


def scenarios_beside(test: str) -> Sequence[Path]:
    """The files of the scenarios beside a test, by the test's `__file__`."""
    return sorted((Path(test).parent / "scenarios").glob("*.txt"))


def check_scenario(path: Path, scenario: Scenario) -> None:
    """Compare the answers with those in the file, or write them there."""
    written = path.read_text()
    answered = scenario.run(written)
    if os.environ.get("HOLDFAST_REWRITE"):
        path.write_text(answered)
    else:
        assert answered == written
