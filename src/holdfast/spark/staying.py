"""The Spark task of a process that stays: a TaskManager or a sender, until its end."""

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark.broadcast import Broadcast

from holdfast.exchange.main import run_sender
from holdfast.ids import Role
from holdfast.spark.tasks import worker_for
from holdfast.taskmanager.main import run_task_manager
from holdfast.taskmanager.settings import TaskManagerSettings


class StayingProcess:
    """The body of the one task. Its settings are those of a TaskManager; a sender has no use for some of them."""

    def __init__(self, shipment: "Broadcast[bytes]", settings: bytes) -> None:
        self._shipment = shipment
        self._settings = settings

    def __call__(self, _: Iterator[Any]) -> Iterator[Any]:
        settings = _own_address(msgspec.msgpack.decode(self._settings, type=TaskManagerSettings))
        if settings.process.role is Role.TASK_MANAGER:
            run_task_manager(settings)
        else:
            worker = worker_for(self._shipment)
            run_sender(settings, worker.program, worker.store)
        return iter(())


def _own_address(settings: TaskManagerSettings) -> TaskManagerSettings:
    """On the executor: bind the one address of this machine that reaches the driver, which is the one Spark uses."""
    host, port = settings.job_master.partition("://")[2].rsplit(":", 1)
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        return msgspec.structs.replace(settings, bind_host=probe.getsockname()[0])
