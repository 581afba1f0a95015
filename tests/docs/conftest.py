"""The Spark session that snippets see; the one that runs already, where there is one."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    session = running or SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    if running is None:
        session.stop()
