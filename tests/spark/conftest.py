"""Everything in this folder needs the shared Spark session (`tests/conftest.py`)."""

import pytest

from holdfast.jobmaster import program_end

STOP_S_MAX = 30.0


@pytest.fixture(autouse=True)
def _queries_end_with_their_test():
    """A test that fails must not leave a query behind, whose processes would hold the slots of the next tests."""
    yield
    for master in [each for each in program_end._started if each.active]:
        master.stop(STOP_S_MAX)


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/spark/" in str(item.path):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))
