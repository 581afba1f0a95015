"""Text scenarios of the execution machine; HOLDFAST_REWRITE=1 writes the present answers into them, for review."""

from pathlib import Path

import pytest
from execution_text import ExecutionScenario

from scenario_text import check_scenario, scenarios_beside

SCENARIOS = scenarios_beside(__file__)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_machine_answers_as_the_scenario_says(path: Path) -> None:
    check_scenario(path, ExecutionScenario())


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) > 10
