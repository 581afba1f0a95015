"""The unfinished work of a job at a moment: a snapshot for clean-up, which may delete only objects that it does not
name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.ids import BatchNumber, CheckpointId, RunNumber


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A snapshot between two events. It names everything that is still needed of the batches and checkpoints up to
    `batch` and `resolved`.

    `run`: the run of the last deployment. `batch`: the last committed batch. `resolved`: checkpoints up to this id were
    recorded or aborted. `committables`: output of batches that no record holds yet, by sink. `groups`: sink and object
    of every group whose staged files are still kept. `gathers`: the number of gatherings of committables begun so far,
    numbered from 0. `gathering`: the numbers of gatherings that are under way, whose objects nothing names yet.
    """

    run: RunNumber
    batch: BatchNumber
    resolved: CheckpointId
    committables: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    groups: Sequence[tuple[str, str]] = ()
    gathers: int = 0
    gathering: frozenset[int] = frozenset()
