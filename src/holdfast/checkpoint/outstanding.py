"""The work that a job still owes at one moment: a snapshot for whoever looks for remains beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.ids import BatchNumber, CheckpointId, RunNumber


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Taken between two events; what it does not name of batches and checkpoints up to its own, nobody ever will.

    `run`: that of the last deployment. `batch`: the last one committed. `resolved`: checkpoints up to it were recorded
    or aborted. `committables`: of batches that no record holds yet, by sink. `groups`: sink and object of every group
    whose staged files are still kept. `gathers`: how many gatherings of committables were begun, numbered from 0;
    `gathering`: those of them that are under way, whose objects nothing names yet.
    """

    run: RunNumber
    batch: BatchNumber
    resolved: CheckpointId
    committables: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    groups: Sequence[tuple[str, str]] = ()
    gathers: int = 0
    gathering: frozenset[int] = frozenset()
