"""Spark task in which a long-running process, a TaskManager or a sender, runs until its end.

If the process dies, Spark runs the task again, but the JobMaster has already started another process. The second
attempt therefore ends before it imports modules, which would take a core from the replacement for a second.
"""

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext

if TYPE_CHECKING:
    from holdfast.spark.host import Shipped
    from holdfast.taskmanager.settings import TaskManagerSettings


RETRIED = "its Python worker was killed, or it crashed, or its executor was lost: Spark ran the task again"


class StayingProcess:
    """The body of the task. Its bytes are the settings of a TaskManager; a sender ignores some of them."""

    def __init__(self, shipment: "Shipped") -> None:
        self._shipment = shipment

    def __call__(self, settings: bytes) -> Iterator[bytes]:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            yield f"{RETRIED} on {socket.gethostname()}".encode()
            return
        try:
            self._stay(settings)
        except Exception as error:
            # The task returns the error: Spark would retry a task that raises, and may not report the first attempt.
            yield f"{type(error).__name__}: {error}".encode()

    def _stay(self, encoded: bytes) -> None:
        import msgspec

        from holdfast.exchange.main import run_sender
        from holdfast.ids import Role
        from holdfast.journal.other_storages import open_job_store
        from holdfast.spark.tasks import worker_for
        from holdfast.taskmanager.main import run_task_manager
        from holdfast.taskmanager.settings import TaskManagerSettings

        settings = _own_address(msgspec.msgpack.decode(encoded, type=TaskManagerSettings))
        worker = worker_for(self._shipment)
        if settings.process.role is Role.TASK_MANAGER:
            run_task_manager(
                settings, open_job_store(settings.storage_url, settings.storage_options), program=worker.program
            )
        else:
            run_sender(settings, worker.program, worker.store)


def _own_address(settings: "TaskManagerSettings") -> "TaskManagerSettings":
    """Bind the executor's address that reaches the driver, which is also the address that Spark uses."""
    import msgspec

    from holdfast.ports import parted

    found = socket.getaddrinfo(*parted(settings.job_master), type=socket.SOCK_DGRAM)
    # A name that has addresses of both kinds is reached by IPv4, as Java does.
    family, kind, _, _, reached = min(found, key=lambda each: each[0] != socket.AF_INET)
    with socket.socket(family, kind) as probe:
        probe.connect(reached)
        return msgspec.structs.replace(settings, bind_host=probe.getsockname()[0])
