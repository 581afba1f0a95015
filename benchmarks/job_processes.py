"""The processes of a running query, and the resources that each of them holds: for figures over time."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

import holdfast as hf


@dataclass(frozen=True)
class Usage:
    """The resources of a process at one moment. `cpu_s`: processor time since its start."""

    cpu_s: float
    memory_mb: float
    threads: int
    descriptors: int


def processes_of(query: hf.Query) -> dict[str, psutil.Process]:
    """Find the driver, each TaskManager and each sender, and Spark's JVM, by the ports on which they listen."""
    own = psutil.Process()
    children = own.children(recursive=True)
    listening = {port: child for child in children for port in _ports(child)}
    found = {"driver": own}
    for each in query.view().processes:
        port = int(each.address.rpartition(":")[2])
        found[f"{each.role} {each.number}".lower()] = listening[port]
    found["jvm"] = next(child for child in children if "java" in child.name())
    return found


def cpu_s_of(process: psutil.Process) -> float:
    """Return the processor time of a process since its start, which takes next to none to ask for."""
    times = process.cpu_times()
    return float(times.user + times.system)


def usage_of(process: psutil.Process) -> Usage:
    with process.oneshot():
        return Usage(
            cpu_s=cpu_s_of(process),
            memory_mb=process.memory_full_info().uss / 1e6,
            threads=process.num_threads(),
            descriptors=process.num_fds(),
        )


def thread_names(process: psutil.Process) -> Counter[str]:
    """Count a process's threads by the names that the system knows."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/comm")
    return Counter(task.read_text().strip() for task in tasks)


def own_thread_names() -> Counter[str]:
    """Count this process's Python threads by the names that Python knows, without their numbers."""
    return Counter(each.name.rstrip("0123456789-_") for each in threading.enumerate())


def cpu_by_thread(process: psutil.Process) -> Mapping[int, float]:
    """Return the processor time of each thread of a process, in seconds."""
    return {each.id: each.user_time + each.system_time for each in process.threads()}


def _ports(process: psutil.Process) -> list[int]:
    try:
        return [each.laddr.port for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return []
