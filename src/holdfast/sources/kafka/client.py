"""Kafka's client: its optional package, the options that users may give, and errors in Holdfast's own classes.

Options may hold passwords. They go to the client alone: neither logs, messages nor `repr` show them.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError, JobRefused, PositionLost, SettingsError, StorageError
from holdfast.hidden import chained, remember_options
from holdfast.printable import logger

log = logger(__name__)

PACKAGE_MISSING = "Kafka needs the package confluent-kafka: pip install 'holdfast[kafka]'"
ANSWER_S_MAX = 15.0
"""Seconds within which Kafka must answer a request; a higher value waits longer for an unreachable broker."""


def client_package() -> Any:
    """Import the client. Raises `JobRefused` with the remedy if it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise JobRefused(f"{PACKAGE_MISSING} ({error})") from chained(error)
    return confluent_kafka


def client_options(whose: str, servers: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Join the user's options for the client with Holdfast's own. Raises `SettingsError` if both set an option."""
    remember_options(options)
    if not servers or not isinstance(servers, str):
        raise SettingsError(f"{whose}: bootstrap_servers={servers!r}: expected 'host:port', or several with commas")
    for name in options:
        if name in own or name in {"bootstrap.servers", "group.id", "transactional.id", "enable.auto.commit"}:
            raise SettingsError(f"{whose}: option {name!r}: Holdfast sets this itself; leave it out")
    return {"bootstrap.servers": servers, **options, **own}


def made(whose: str, make: Any, settings: dict[str, Any]) -> Any:
    """Make a client. Raises `SettingsError` with the client's words if it does not take an option."""
    try:
        return make(settings, logger=log)
    except client_package().KafkaException as error:
        raise SettingsError(f"{whose}: Kafka's client refuses its options: {error.args[0].str()}") from chained(error)


def translated(whose: str, servers: str, error: Any) -> HoldfastError:
    """Return the Holdfast error for an error of Kafka: of a lost position, or of a cluster that does not answer."""
    package = client_package()
    reason = error.args[0] if isinstance(error, package.KafkaException) else error
    codes = package.KafkaError
    code = reason.code() if hasattr(reason, "code") else None
    if code in {codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION}:
        return PositionLost(f"{whose}: {reason}: the topic or partition was deleted")
    return StorageError(f"{whose}: Kafka at {servers}: {reason}")
