"""Slots: the number of tasks that Spark can run at once, and the wait for executors that have not registered yet.

A session returns before its executors have registered, and under dynamic allocation executors come only when tasks
wait for them. In `local` mode there is nothing to wait for.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.graph.program import Program
from holdfast.printable import logger
from holdfast.spark.host import SparkHost

log = logger(__name__)

WAIT_S_MAX = 60.0
MORE_S_MAX = 20.0
"""Bound in seconds on the wait for slots that the job does not strictly need."""
_POLL_S = 0.1
_PROGRESS_EVERY_S = 5.0


@dataclass(frozen=True)
class Residents:
    """The number of long-running senders, and the reason for it as a line of the log."""

    count: int
    reason: str


def resident_senders(wanted: int | None, left: int, program: Program) -> Residents:
    """Decide the number of long-running senders, given that TaskManagers leave `left` slots.

    `wanted` is the number that the user gave as `Job(senders=…)`; None: it is decided here.

    By default a slot is left free for legs that need Spark and for the user's own Spark jobs on the same session, which
    would otherwise wait until the query ends.
    """
    in_python = [program.runs_in_python(leg) for leg in program.legs]
    short = "every unit of work goes as a short Spark job"
    if wanted == 0 or not any(in_python):
        return Residents(0, f"{'senders=0' if wanted == 0 else 'all legs need Spark'}: {short}")
    is_needed = not all(in_python) or any(source.uses_spark for source in program.sources.values())
    for_spark = 1 if wanted is None or is_needed else 0
    least = wanted or 1
    if left - for_spark < least:
        needed = f"{least} for senders" + " and 1 for Spark jobs" * for_spark
        return Residents(
            0, f"too few slots for senders that stay ({needed} needed, TaskManagers leave {left}): {short}"
        )
    count = wanted or left - for_spark
    return Residents(count, f"{count} senders stay in the {left} slots that TaskManagers leave")


def slots_beside_others(host: SparkHost, needed: int, asked: int, held: int) -> int:
    """Wait for `needed` slots, and return the number of slots, as `await_slots` does.

    If other queries hold slots and Spark starts no more executors, the call waits only for the promised slots.
    """
    return await_slots(host, needed if not held or dynamic(host) else 1, asked, is_used=held > 0)


def await_slots(
    host: SparkHost, needed: int, asked: int = 0, wait_s_max: float | None = None, is_used: bool = False
) -> int:
    """Wait until there are `needed` slots, and as many as the settings promise; return the number of slots.

    Under dynamic allocation Spark is asked for `asked` slots, and the slots beyond `needed` are awaited for a while.
    The result may be below `needed` after `wait_s_max` seconds (None: `WAIT_S_MAX`); the caller then refuses the job.
    `is_used`: queries hold slots.
    """
    wait_s_max = WAIT_S_MAX if wait_s_max is None else wait_s_max
    found = host.slots()
    wanted = max(needed, asked if dynamic(host) else 0, _promised(host))
    if found >= wanted or host.master.partition("[")[0] == "local":
        return found
    started_s = reported_s = time.monotonic()
    with _asking(host, wanted, is_used, wait_s_max):
        while found < (wanted if time.monotonic() - started_s < MORE_S_MAX or not asked else needed):
            if time.monotonic() - started_s >= wait_s_max:
                break
            if time.monotonic() - reported_s >= _PROGRESS_EVERY_S:
                reported_s = time.monotonic()
                log.warning("waiting for executors: Spark has %d slots, %d are needed", found, wanted)
            time.sleep(_POLL_S)
            found = host.slots()
    return found


def _promised(host: SparkHost) -> int:
    """Return the number of slots that the settings fix; 0 if they fix none."""
    cores_a_task = _cores_of_a_task(host)
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", host.master)
    if dynamic(host):
        return 0
    if cluster:
        return int(cluster[1]) * (int(cluster[2]) // cores_a_task)
    instances, cores = host.setting("spark.executor.instances"), host.setting("spark.executor.cores") or "1"
    return int(instances) * (int(cores) // cores_a_task) if instances else 0


def dynamic(host: SparkHost) -> bool:
    """True under dynamic allocation."""
    return str(host.setting("spark.dynamicAllocation.enabled")).lower() == "true"


def executors_of(host: SparkHost, slots: int) -> int:
    """Return the number of executors that give so many slots; where each has all of its machine, fewer do."""
    return -(-slots // max(1, int(host.setting("spark.executor.cores") or 1) // _cores_of_a_task(host)))


def _cores_of_a_task(host: SparkHost) -> int:
    return int(host.setting("spark.task.cpus") or 1)


@contextmanager
def _asking(host: SparkHost, slots: int, is_used: bool, wait_s_max: float) -> Iterator[None]:
    """Ask for slots under dynamic allocation: with tasks that wait, or with a request beside a query.

    Executors that have a waiting task are not idle, so Spark keeps them. Beside a query the tasks would hold the slot
    of its short Spark jobs, hence the request.
    """
    if dynamic(host) and not is_used:
        with host.asking(slots, wait_s_max):
            yield
        return
    if dynamic(host):
        host.ask_for(slots)
    yield
