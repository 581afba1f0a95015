"""The choice of a host for a user's session, and questions to the session itself."""

from typing import Any

from holdfast.ports import ANY, PortRange
from holdfast.spark import session
from holdfast.spark.classic_host import ClassicHost
from holdfast.spark.host import SparkHost


def open_host(spark: Any, ports: PortRange = ANY) -> SparkHost:
    """Make a session of the job's own beside the user's session; `ports`: at which the program may listen. Raises
    `JobRefused`."""
    if not session.is_connect(spark):
        return ClassicHost(spark)
    from holdfast.spark.connect_host import ConnectHost

    return ConnectHost(spark, ports)


def has_ended(spark: Any) -> bool:
    """True if the user's session was stopped, by anyone, or its application is gone."""
    return bool(spark.is_stopped) if session.is_connect(spark) else session.has_ended(spark)
