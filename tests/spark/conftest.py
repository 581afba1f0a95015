"""Everything in this folder needs the shared Spark session (`tests/conftest.py`)."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/spark/" in str(item.path):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(300))
