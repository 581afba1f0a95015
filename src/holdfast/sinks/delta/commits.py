"""Delta commits of a group of committables: a single commit for an append, and for an upsert that fits into memory.

    append   small pieces become files, a portion at a time; a single commit names all files
    upsert   portions are folded to the last row per key; past a bound, folded rows are merged as a step of their own

Invariants: the commit that completes a group carries the app transaction of the group's number, even if it changes no
row. A merge that is only a step carries a second app transaction with number and place; a later publication continues
from that place. Each step is thus applied once and in order, even if its JobMaster ends in between. An attempt that
meets a conflict leaves the table unchanged. The caller loads the table and checks the number.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from holdfast.sinks import staging
from holdfast.sinks.base import PublishContext
from holdfast.sinks.delta.merging import after_commit, changes_of, last_per_key, merge
from holdfast.sinks.delta.table_files import add_action, require_files, write_files
from holdfast.sinks.staging import StagedDeltaFile, StagedRows, portions, read_rows
from holdfast.storage.store import ObjectStore

STEPS_MAX = 1 << 32
"""Bound on the committables of a group, since a place in the group is part of the version of the steps' app
transaction."""


@dataclass(frozen=True)
class Applications:
    """Ids and versions of the app transactions that record the progress of a group's publication."""

    app: str
    number: int

    @property
    def completed(self) -> Transaction:
        return Transaction(self.app, self.number)

    def step(self, place: int) -> Transaction:
        """Return the app transaction that records that the group's committables before `place` are in the table."""
        return Transaction(f"{self.app}/steps", self.number * STEPS_MAX + place)

    def is_published(self, table: DeltaTable) -> bool:
        version = table.transaction_version(self.app)
        return version is not None and version >= self.number

    def last_number(self, table: DeltaTable) -> int:
        """Return the highest number whose group, or steps of whose group, are in the table; 0 if there is none."""
        steps = (table.transaction_version(f"{self.app}/steps") or 0) // STEPS_MAX
        return max(table.transaction_version(self.app) or 0, steps)

    def place(self, table: DeltaTable) -> int:
        """Number of the group's committables that are in the table already."""
        number, place = divmod(table.transaction_version(f"{self.app}/steps") or 0, STEPS_MAX)
        return place if number == self.number else 0


class NumberedOutput(Protocol):
    """Output to be published under a number."""

    def commit(self, table: DeltaTable, applications: Applications) -> CommitFailedError | None:
        """Make the next commit; return the conflict if there was any."""


@dataclass
class Append:
    """Data files that a commit will name. Small pieces become files first; files of a failed attempt are left to
    VACUUM."""

    context: PublishContext
    partition_by: tuple[str, ...]
    committables: Iterable[bytes]
    store: ObjectStore
    files: list[StagedDeltaFile] | None = None

    def commit(self, table: DeltaTable, applications: Applications) -> CommitFailedError | None:
        """Commit all files; delta-rs itself resolves conflicts with appends of others."""
        if self.files is None:
            self.files = list(self._written())
        require_files(self.files, self.store, self.context.sink)
        commit = CommitProperties(app_transactions=[applications.completed])
        return _commit_files(table, self.files, self.partition_by, commit)

    def _written(self) -> Iterator[StagedDeltaFile]:
        for portion in portions(self.committables, StagedDeltaFile, self.context.owner):
            yield from portion.files
            if portion.rows:
                rows = read_rows(portion.rows, self.context)
                yield from write_files(rows, self.partition_by, self.store, self.context.owner)


@dataclass(frozen=True)
class _Step:
    """Changes of the committables from `start` to `stop`, at most a single change for each key."""

    start: int
    stop: int
    changes: pa.Table | None
    is_last: bool


@dataclass
class Upsert:
    """Changes to be merged by key."""

    context: PublishContext
    partition_by: tuple[str, ...]
    committables: Iterable[bytes]
    keys: tuple[str, ...]
    _steps: Iterator[_Step] = field(default_factory=lambda: iter(()), init=False)
    _step: _Step | None = field(default=None, init=False)

    def commit(self, table: DeltaTable, applications: Applications) -> CommitFailedError | None:
        """Merge the next step; any other commit since the table was loaded is a conflict."""
        step = self._next(applications.place(table))
        done = [applications.completed] if step.is_last else [applications.step(step.stop)]
        commit = CommitProperties(app_transactions=done, max_commit_retries=0)
        if step.changes is not None and step.changes.num_rows:
            version = table.version()
            try:
                merge(table, step.changes, self.keys, commit)
            except CommitFailedError as conflict:
                return conflict
            if table.version() > version:
                return None
        # A merge without changes commits nothing, so the number must be committed by itself.
        return _commit_files(table, [], self.partition_by, commit)

    def _next(self, place: int) -> _Step:
        """The step that begins at `place`; it is in memory already if a conflict has kept it from being committed."""
        if self._step is not None and self._step.stop == place:
            self._step = next(self._steps)
        elif self._step is None or self._step.start != place:
            self._steps = self._read(place)
            self._step = next(self._steps)
        return self._step

    def _read(self, place: int) -> Iterator[_Step]:
        bytes_max = staging.PORTION_BYTES_MAX
        start, stop, changes = place, place, None
        for portion in portions(self.committables, StagedRows, self.context.owner, bytes_max, place):
            found = changes_of(read_rows(portion.rows, self.context), self.keys)
            if changes is not None:
                found = pa.concat_tables([changes, found], promote_options="default")
            changes = last_per_key(found, self.keys)
            stop = portion.stop
            if changes.nbytes > bytes_max:
                yield _Step(start, stop, changes, is_last=False)
                start, changes = stop, None
        yield _Step(start, stop, changes, is_last=True)


def _commit_files(
    table: DeltaTable, files: Iterable[StagedDeltaFile], partition_by: Iterable[str], commit: CommitProperties
) -> CommitFailedError | None:
    try:
        table.create_write_transaction(
            [add_action(one) for one in files],
            mode="append",
            schema=table.schema(),
            partition_by=list(partition_by),
            commit_properties=commit,
            post_commithook_properties=after_commit(table),
        )
    except CommitFailedError as conflict:
        return conflict
    return None
