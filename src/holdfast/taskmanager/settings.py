"""Settings of a long-running process at its start: plain values, sent with the Spark task that runs it."""

import msgspec

from holdfast.ids import Epoch, JobId, ProcessId

MEBIBYTE = 1024 * 1024
EXCHANGE_SHARE = 4
"""Divisor of the memory: a share of 1/4 is for exchanged rows. A higher value leaves more memory to state."""


HEARTBEAT_S = 1.0
HEARTBEAT_S_MAX = 4.0
HEARTBEATS_IN_TIMEOUT = 6
"""Number of heartbeats that a process sends within the time after which silence counts as its end, unless the bounds
above decide. A higher value costs a quiet job more, since heartbeats are most of the work of an idle process."""


def heartbeat_interval_s(timeout_s: float) -> float:
    """Return the time between two heartbeats of a process that is ended after a silence of `timeout_s`."""
    return min(HEARTBEAT_S_MAX, max(HEARTBEAT_S, timeout_s / HEARTBEATS_IN_TIMEOUT))


class ProcessSettings(msgspec.Struct, frozen=True):
    """Settings of a start of a TaskManager or sender. Its incarnation is new, and the JobMaster refuses all others.

    `bind_host` is the only address that the server listens on; `advertised_host` is the address that others connect to
    (`bind_host` unless given). `port_range` is (first, last), both included; without it any free port.
    """

    job_id: JobId
    epoch: Epoch
    process: ProcessId
    job_master: str
    """The JobMaster's Flight address."""
    secret: str
    bind_host: str
    storage_url: str
    storage_options: dict[str, str] = {}
    advertised_host: str | None = None
    port_range: tuple[int, int] | None = None
    local_dir: str | None = None
    heartbeat_interval_s: float = HEARTBEAT_S
    """Time between two heartbeats; `membership.RETRY_S` at most after one that was not answered."""
    job_master_silence_s_max: float = 30.0

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(job_id={self.job_id!r}, epoch={self.epoch}, process={str(self.process)!r}, "
            f"job_master={self.job_master!r}, storage_url={self.storage_url!r})"
        )


class TaskManagerSettings(ProcessSettings, frozen=True):
    """A start of a TaskManager."""

    memory_bytes: int = 1024 * MEBIBYTE
    """Bytes of memory for tables and exchange buffers together."""
    local_copies_bytes_max: int = 0
    """Bound on the copies of stored objects that are kept below `local_dir` for recovery; 0 keeps none."""

    @property
    def exchange_memory_bytes_max(self) -> int:
        """Bytes that input and output may take in memory before they go to local files."""
        return self.memory_bytes // EXCHANGE_SHARE

    @property
    def state_memory_bytes_max(self) -> int:
        """Bytes that all state tables may take together."""
        return self.memory_bytes - self.exchange_memory_bytes_max
