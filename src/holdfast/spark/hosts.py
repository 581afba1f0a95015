"""The choice of a host for a user's session, and questions to the session."""

from typing import Any

from holdfast.ports import ANY, PortRange
from holdfast.spark import session
from holdfast.spark.classic_host import ClassicHost
from holdfast.spark.host import SparkHost


def open_host(spark: Any, ports: PortRange = ANY, beside_driver: bool = False) -> SparkHost:
    """Make a session for the job beside the user's session. The program may listen at `ports`. `beside_driver`: a
    Connect client that runs beside Spark's driver.

    Raises `JobRefused`.
    """
    if not session.is_connect(spark):
        return ClassicHost(spark)
    from holdfast.spark.connect_host import ConnectHost

    return ConnectHost(spark, ports, beside_driver)


def has_ended(spark: Any) -> bool:
    """Return True if the user's session was stopped, by anyone, or its application is gone."""
    return bool(spark.is_stopped) if session.is_connect(spark) else session.has_ended(spark)
