"""One group of committables as one Delta commit, appended or merged.

Invariants: a commit carries the app transaction of its group's number, also where it changes no row. Staged
rows are read at the first try only, once the caller knows that the number is not there yet; a try that meets a
conflict leaves the table as it was. Owns neither loading the table nor checking the number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from holdfast.sinks.base import PublishContext
from holdfast.sinks.delta_files import add_action, require_files, write_files
from holdfast.sinks.delta_merge import last_per_key, merge
from holdfast.sinks.staging import StagedDeltaFile, StagedRows, read_rows
from holdfast.storage.store import ObjectStore


@dataclass
class Append:
    """Data files to be named; small pieces become files first, which a failed try leaves to VACUUM."""

    context: PublishContext
    partition_by: tuple[str, ...]
    small: list[StagedRows]
    files: list[StagedDeltaFile]
    store: ObjectStore

    def commit(self, table: DeltaTable, transaction: Transaction) -> CommitFailedError | None:
        """Make the commit; the conflict where there was one. delta-rs itself goes past appends of others."""
        if self.small:
            rows = read_rows(self.small, self.context)
            self.files += write_files(rows, self.partition_by, self.store)
            self.small = []
        require_files(self.files, self.store, self.context.sink)
        commit = CommitProperties(app_transactions=[transaction])
        return _commit_files(table, self.files, self.partition_by, commit)


@dataclass
class Upsert:
    """Changes to be merged by key."""

    context: PublishContext
    partition_by: tuple[str, ...]
    staged: list[StagedRows]
    keys: tuple[str, ...]
    changes: pa.Table | None = None

    def commit(self, table: DeltaTable, transaction: Transaction) -> CommitFailedError | None:
        """Make the commit; the conflict where there was one: any other commit since the table was loaded."""
        if self.changes is None:
            self.changes = last_per_key(read_rows(self.staged, self.context), self.keys)
        commit = CommitProperties(app_transactions=[transaction], max_commit_retries=0)
        if self.changes.num_rows:
            version = table.version()
            try:
                merge(table, self.changes, self.keys, commit)
            except CommitFailedError as conflict:
                return conflict
            if table.version() > version:
                return None
        # A merge that finds nothing to do commits nothing, and the number would be forgotten.
        return _commit_files(table, [], self.partition_by, commit)


def _commit_files(
    table: DeltaTable, files: Sequence[StagedDeltaFile], partition_by: Sequence[str], commit: CommitProperties
) -> CommitFailedError | None:
    try:
        table.create_write_transaction(
            [add_action(one) for one in files],
            mode="append",
            schema=table.schema(),
            partition_by=list(partition_by),
            commit_properties=commit,
        )
    except CommitFailedError as conflict:
        return conflict
    return None
