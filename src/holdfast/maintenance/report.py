"""Findings of `verify`: counts by kind of object, and problems. Data only."""

from collections.abc import Callable

import msgspec

from holdfast.ids import BatchNumber, Epoch
from holdfast.references import object_of

JOB, RECORDS, MANIFESTS = "job", "journal records", "manifests"
CHANGELOG, MATERIALIZED = "changelog objects", "materialized objects"
SOURCES, COMMITTABLES, STAGED = "source chunks", "committables", "staged files"
KINDS = (JOB, RECORDS, MANIFESTS, CHANGELOG, MATERIALIZED, SOURCES, COMMITTABLES, STAGED)

OnProgress = Callable[[int, int], None]
"""Function called with the bytes read so far and the bytes to read, as far as known."""


class Problem(msgspec.Struct, frozen=True, order=True):
    """A problem in an object: its name, what was found, and what was expected, with the checkpoint that needs it."""

    object: str
    found: str
    expected: str


class ObjectCount(msgspec.Struct):
    """The number of objects and bytes of a kind that were read."""

    objects: int = 0
    bytes: int = 0
    problems: int = 0


class CheckpointSummary(msgspec.Struct, frozen=True):
    """A checkpoint that the journal retains. `state_bytes`: size of the state that a restart reads."""

    number: int
    epoch: Epoch
    checkpoint: int
    batch: BatchNumber
    task_managers: int
    tables: int
    state_bytes: int


class Report(msgspec.Struct):
    """Findings of a verification. `notes`: objects that were not checked or do not belong to Holdfast."""

    storage: str
    job: str = ""
    job_id: str = ""
    epoch: Epoch = Epoch(0)
    checkpoints: list[CheckpointSummary] = []
    read: dict[str, ObjectCount] = msgspec.field(default_factory=lambda: {kind: ObjectCount() for kind in KINDS})
    problems: list[Problem] = []
    notes: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.problems

    def count(self, kind: str, size_bytes: int) -> None:
        """Count an object of that kind as read."""
        self.read[kind].objects += 1
        self.read[kind].bytes += size_bytes

    def wrong(self, kind: str, name: str, found: str, expected: str) -> None:
        """Note a problem of an object of that kind. `name` may be a reference. Equal problems are noted once."""
        problem = Problem(object_of(name), found, expected)
        if problem not in self.problems:
            self.problems.append(problem)
            self.read[kind].problems += 1
