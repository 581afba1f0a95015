"""Text scenarios of the execution machine; HOLDFAST_REWRITE=1 writes down what it answers now, for review."""

import os
from pathlib import Path

import pytest
from execution_text import Scenario

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_machine_answers_as_the_scenario_says(path: Path) -> None:
    written = path.read_text()
    answered = Scenario().run(written)
    if os.environ.get("HOLDFAST_REWRITE"):
        path.write_text(answered)
    else:
        assert answered == written


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) > 10
