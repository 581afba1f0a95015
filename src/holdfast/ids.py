"""Identifiers of the project, as separate types so that they cannot be mixed up.

Most are plain integers at run time. An identifier is never used twice within the scope that its docstring names. The
types also define the form of their values: msgspec refuses other values when it decodes an identifier from storage or
network.
"""

from enum import StrEnum
from typing import Annotated, NamedTuple, NewType

from msgspec import Meta

NUMBERS_MAX = 10**12
"""Exclusive bound on numbers, since the names of objects have room for 12 digits."""

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
"""Number of a record in the journal, without gaps; scope: a job's storage."""

CheckpointId = NewType("CheckpointId", _NumberOrNone)
"""A triggered checkpoint, completed or not (not a journal number); scope: an epoch."""

NO_CHECKPOINT = CheckpointId(-1)
"""An id below those of all checkpoints."""

BatchNumber = NewType("BatchNumber", _NumberOrNone)
"""A planned batch; scope: an epoch."""

FIRST_BATCH = BatchNumber(0)
"""Number of an epoch's first batch, and of the only batch of a table that serves a calculation."""

NO_BATCH = BatchNumber(-1)
"""A number below those of all batches: it means the time before the first batch."""

RunNumber = NewType("RunNumber", _NumberOrNone)
"""An attempt at processing; grows with every retry, restart and cancellation; scope: an epoch."""

Incarnation = NewType("Incarnation", _NumberOrNone)
"""A start of a process, numbered by the JobMaster; scope: an epoch and a role."""


SplitPosition = int | float | str | bool | None
"""A position in a split of a source, by the source's own rule; None before the first row."""


class ClockReading(NamedTuple):
    """A reading of a clock that also counts suspended time; comparable with readings of the same `clock`."""

    clock: str
    elapsed_us: int


class Role(StrEnum):
    """Purpose of a process that the JobMaster started. The value is the name in messages. It is hashed as text, since
    an `Enum` would run Python code for a hash each time a process is looked up."""

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


class UnitNumber(NamedTuple):
    """The number of a unit of work: within the level of a batch, and in the batch.

        in the batch = level * UNITS_MAX + number within the level
                                           0 … UNITS_MAX - 1      units that senders work off
                                           unit * PARTITIONS_MAX + partition, where Spark reads a unit's partitions
                                           OPERATORS              what the JobMaster stages for operators

    A unit's number in the batch is part of the names of staged files. The attempt's id is another part, and keeps files
    apart even if two numbers are equal because a level has more units than there is room for.
    """

    level: int
    unit: int

    @property
    def in_batch(self) -> int:
        """The number within the batch."""
        return self.level * UNITS_MAX + self.unit


UNITS_MAX = 100_000
"""Exclusive bound on the units of a level, since the names of staged files have room only for lower numbers."""
PARTITIONS_MAX = 10_000
"""Room for the partitions of a unit that Spark reads."""
OPERATORS = 1_000_000
"""Number of the unit with the operators' dead letters, which the JobMaster stages. Tasks use lower numbers."""
UNIT_DIGITS = 6
"""Least digits of a unit's number in the names of staged files."""


def of_partition(unit: int, partition: int) -> int:
    """Return the number of a unit's partition within its level."""
    return unit * PARTITIONS_MAX + partition
