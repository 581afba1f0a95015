"""The choice of a host for a user's session."""

from typing import Any

from holdfast.spark import session
from holdfast.spark.classic_host import ClassicHost
from holdfast.spark.host import SparkHost


def open_host(spark: Any) -> SparkHost:
    """Make a session of the job's own beside the user's session."""
    return ClassicHost(spark)


def has_ended(spark: Any) -> bool:
    """True if the user's session was stopped, by anyone, or its application is gone."""
    return session.has_ended(spark)
