"""Sinks whose tests wait for a broker take part once: their tests over a second store are long ones."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        made = getattr(parameters.get("make"), "__name__", "")
        again = parameters.get("store") == "memory" or ("_in_portions" in made and "failpoint" not in parameters)
        if made.startswith("kafka") and again:
            item.add_marker(pytest.mark.long)
