"""The identifiers of the project, as types of their own so that they cannot be mixed up.

Most are plain integers at run time. None is ever used twice within the scope named beside it.
"""

from enum import Enum
from typing import NamedTuple, NewType

Epoch = NewType("Epoch", int)
"""Number of the takeover record of the JobMaster that lives now; scope: a job's storage."""

JournalNumber = NewType("JournalNumber", int)
"""Place of a record in the journal, gapless; scope: a job's storage."""

CheckpointId = NewType("CheckpointId", int)
"""A triggered checkpoint, completed or not (not a journal number); scope: an epoch."""

BatchNumber = NewType("BatchNumber", int)
"""A planned batch; scope: an epoch."""

RunNumber = NewType("RunNumber", int)
"""One attempt at processing; grows with every retry, restart and cancellation; scope: an epoch."""

Incarnation = NewType("Incarnation", int)
"""One start of a process, given by the JobMaster; scope: an epoch and a role."""


class Role(Enum):
    """What a process that the JobMaster started does for the job. The value is its name in messages."""

    TASK_MANAGER = "TaskManager"
    SENDER = "sender"


class ProcessId(NamedTuple):
    """One start of one of the processes that stay: `ProcessId(Role.SENDER, 2, 7)` is the seventh start of a sender."""

    role: Role
    number: int
    incarnation: int

    @property
    def name(self) -> str:
        """Without the incarnation, as messages call it."""
        return f"{self.role.value} {self.number}"

    def __str__(self) -> str:
        return f"{self.name}, incarnation {self.incarnation}"


Sqn = NewType("Sqn", int)
"""Sequence number of a change set in the log of one table of one subtask; scope: an epoch."""

KeyGroup = NewType("KeyGroup", int)
"""`hash(key) mod max_parallelism`."""
