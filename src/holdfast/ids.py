"""Identifiers of the project, as separate types so that they cannot be mixed up.

Most are plain integers at run time. An identifier is never used twice within the scope named beside it. The types say
the form of their values, too: where msgspec decodes an identifier, from storage or network, another value is refused.
"""

from enum import StrEnum
from typing import Annotated, NamedTuple, NewType

from msgspec import Meta

NUMBERS_MAX = 10**12
"""Numbers are below this: names of objects have room for 12 digits."""

_Number = Annotated[int, Meta(ge=0, lt=NUMBERS_MAX)]
_NumberOrNone = Annotated[int, Meta(ge=-1, lt=NUMBERS_MAX)]
_Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]

JobId = NewType("JobId", _Hex)
"""Identity of a job's storage, random."""

SavepointId = NewType("SavepointId", _Hex)
"""Identity of a savepoint, random."""

Epoch = NewType("Epoch", _Number)
"""Number of the living JobMaster's takeover record; scope: a job's storage."""

JournalNumber = NewType("JournalNumber", _Number)
"""Place of a record in the journal, gapless; scope: a job's storage."""

CheckpointId = NewType("CheckpointId", _NumberOrNone)
"""A triggered checkpoint, completed or not (not a journal number); scope: an epoch."""

BatchNumber = NewType("BatchNumber", _NumberOrNone)
"""A planned batch; scope: an epoch."""

FIRST_BATCH = BatchNumber(0)
"""Number of an epoch's first batch, and of the only batch of a table that serves a calculation."""

NO_BATCH = BatchNumber(-1)
"""Number below those of all batches: before the first."""

RunNumber = NewType("RunNumber", _NumberOrNone)
"""An attempt at processing; grows with every retry, restart and cancellation; scope: an epoch."""

Incarnation = NewType("Incarnation", _NumberOrNone)
"""A start of a process, numbered by the JobMaster; scope: an epoch and a role."""


SplitPosition = int | float | str | bool | None
"""A position in a split of a source, by the source's own rule; None before the first row."""


class ClockReading(NamedTuple):
    """A reading of a clock that counts all time that passes; comparable with readings of the same `clock`."""

    clock: str
    elapsed_us: int


class Role(StrEnum):
    """Purpose of a process that the JobMaster started. The value is its name in messages. Hashed as text, since `Enum`
    would hash in Python each time that a process is looked up."""

    TASK_MANAGER = "TaskManager"
    SENDER = "sender"


class ProcessId(NamedTuple):
    """A start of a long-running process: `ProcessId(Role.SENDER, 2, 7)` is the seventh start of sender 2."""

    role: Role
    number: int
    incarnation: Incarnation

    @property
    def name(self) -> str:
        """Name in messages, without the incarnation."""
        return f"{self.role.value} {self.number}"

    def __str__(self) -> str:
        return f"{self.name}, incarnation {self.incarnation}"
