"""A reader's claim to its slot: a later driver of the job takes the slot from an earlier driver, never the other way.

    slot is free ──start──► held ◄──start── held by an older driver's reader, whose connection is ended, as often as
                                            it comes back
    slot is held by a newer driver's reader ──► Fenced           by another program or job ──► refused

The application name of a connection says whose reader it is (`ReaderName`). The journal alone decides which driver is
newer: its epoch is the reader's.
"""

import time
from collections.abc import Callable
from typing import Any

from holdfast.errors import Fenced, JobRefused
from holdfast.printable import logger
from holdfast.sources.postgres.server import ReaderName, Server

log = logger(__name__)

BUSY_S_MAX = 90.0
"""Bound in seconds on the wait for a slot that another program holds. With a higher value, another program may hold it
for longer."""
AGAIN_S = 0.2


class SlotClaim:
    """The claim of an epoch's reader. `wait(seconds)` pauses and returns whether the reader shall end."""

    def __init__(self, server: Server, slot: str, name: ReaderName, wait: Callable[[float], bool]) -> None:
        self._server = server
        self._slot = slot
        self._name = name
        self._wait = wait

    def end_older(self) -> str:
        """End the connection of an older driver's reader; describe any other holder ("": there is none).

        Raises `Fenced` if a newer driver's reader holds the slot.
        """
        state = self._server.slot(self._slot)
        if state is None or state.active_pid is None:
            return ""
        holder = ReaderName.parse(state.active_application)
        if holder is None or holder.job != self._name.job:
            return f"process {state.active_pid} ({state.active_application!r})"
        if holder.epoch > self._name.epoch:
            raise Fenced(
                f"slot {self._slot!r} is read by epoch {holder.epoch} of this job, and this is epoch "
                f"{self._name.epoch}: another JobMaster took over"
            )
        log.info("slot %r: ends process %d, the reader of epoch %d", self._slot, state.active_pid, holder.epoch)
        self._server.terminate(state.active_pid)
        return ""

    def take(self) -> None:
        """End an older driver's reader. Raises `JobRefused` if another program or job holds the slot."""
        other = self.end_older()
        if other and not self._wait(AGAIN_S):  # a process that is just ending has no name any more
            other = self.end_older()
        if other:
            raise JobRefused(
                f"slot {self._slot!r} is in use by {other}, which is no reader of this source: stop it, or give "
                "another slot"
            )

    def start(self, cursor: Any, start_lsn: int, options: dict[str, str]) -> bool:
        """Start to read on a replication connection; return False if the reader shall end before it holds the slot."""
        import psycopg2

        busy_until_s = time.monotonic() + BUSY_S_MAX
        while True:
            try:
                cursor.start_replication(
                    slot_name=self._slot, start_lsn=start_lsn, decode=False, options=options, status_interval=3600
                )
                return True
            except psycopg2.errors.ObjectInUse:
                if self.end_older() and time.monotonic() > busy_until_s:
                    self.take()
                if self._wait(AGAIN_S):
                    return False
