"""The identifiers of the project, as types of their own so that they cannot be mixed up.

All are plain integers at run time. None is ever used twice within the scope named beside it.
"""

from typing import NewType

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
"""One start of a TaskManager, given by the JobMaster; scope: an epoch."""

Sqn = NewType("Sqn", int)
"""Sequence number of a change set in the log of one table of one subtask; scope: an epoch."""

KeyGroup = NewType("KeyGroup", int)
"""`hash(key) mod max_parallelism`."""
