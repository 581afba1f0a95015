"""What `verify` found: counts by kind of object, and what is wrong. Data only."""

from collections.abc import Callable

import msgspec

JOB, RECORDS, MANIFESTS = "job", "journal records", "manifests"
CHANGELOG, MATERIALIZED = "changelog objects", "materialized objects"
SOURCES, COMMITTABLES, STAGED = "source chunks", "committables", "staged files"
KINDS = (JOB, RECORDS, MANIFESTS, CHANGELOG, MATERIALIZED, SOURCES, COMMITTABLES, STAGED)

Progress = Callable[[int, int], None]
"""Told of bytes that were read, and of all that are to be read as far as is known."""


class Problem(msgspec.Struct, frozen=True, order=True):
    """One thing that is wrong: which object, what was found there, what was expected and who names it."""

    object: str
    found: str
    expected: str


class Count(msgspec.Struct):
    """What was read of one kind."""

    objects: int = 0
    bytes: int = 0
    problems: int = 0


class CheckpointSummary(msgspec.Struct, frozen=True):
    """A checkpoint that the journal retains. `state_bytes`: what a restart from it reads."""

    number: int
    epoch: int
    checkpoint: int
    batch: int
    task_managers: int
    tables: int
    state_bytes: int


class Report(msgspec.Struct):
    """Everything that one verification found. `notes`: what could not be checked, or is not Holdfast's."""

    storage: str
    job: str = ""
    job_id: str = ""
    epoch: int = 0
    checkpoints: list[CheckpointSummary] = []
    read: dict[str, Count] = msgspec.field(default_factory=lambda: {kind: Count() for kind in KINDS})
    problems: list[Problem] = []
    notes: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.problems

    def count(self, kind: str, size_bytes: int) -> None:
        """An object of that kind was read."""
        self.read[kind].objects += 1
        self.read[kind].bytes += size_bytes

    def wrong(self, kind: str, name: str, found: str, expected: str) -> None:
        """Something about an object of that kind is wrong; the same is noted once."""
        problem = Problem(name, found, expected)
        if problem not in self.problems:
            self.problems.append(problem)
            self.read[kind].problems += 1
