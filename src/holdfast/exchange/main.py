"""Body of a sender's long-running Spark task, without Spark: serve while the sender is a member of the job."""

from holdfast.clock import Clock, SystemClock
from holdfast.exchange.connections import Connections
from holdfast.exchange.resident import ResidentSender, WarmLinks
from holdfast.exchange.resident_server import ResidentServer
from holdfast.exchange.stepping import close_calls
from holdfast.exchange.warming import warm
from holdfast.graph.program import Program
from holdfast.kernels.shelf import SHELF
from holdfast.printable import logger
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.jobmaster_client import JobMasterClient
from holdfast.taskmanager.membership import Membership
from holdfast.taskmanager.process_memory import GarbageCollection, keep_freed_memory
from holdfast.taskmanager.remote import address
from holdfast.taskmanager.settings import ProcessSettings

_log = logger(__name__)


def run_sender(settings: ProcessSettings, program: Program, store: ObjectStore, clock: Clock | None = None) -> str:
    """Run a sender in this process until its end; return the reason. It is warm when it registers.

    Raises
    ------
    HoldfastError
        If no port is free.
    """
    keep_freed_memory()
    clock = clock or SystemClock()
    job_master = JobMasterClient(settings.job_master, settings.secret)
    SHELF.ask(job_master)
    warm(program)
    try:
        with Connections(settings.secret) as connections:
            sender = ResidentSender(program, store, WarmLinks(connections), settings.local_dir)
            server = ResidentServer(sender, settings.process, settings.secret, settings.bind_host, settings.port_range)
            try:
                reachable_at = address(settings.advertised_host or settings.bind_host, server.port)
                with GarbageCollection(clock) as garbage:
                    membership = Membership(settings, sender.stopped, job_master, clock, garbage.tick, store)
                    reason = membership.keep(reachable_at)
            finally:
                sender.stop()
                server.close()
                close_calls(program)
    finally:
        SHELF.ask(None)
        job_master.close()
    _log.info("%s, ends: %s", settings.process, reason)
    return reason
