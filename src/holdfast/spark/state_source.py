"""State as a DataFrame: `spark.read.format("holdfast")`, a data source of PySpark.

    spark.read.format("holdfast").option("storage", url).option("operator", "counts").load()

Options: `storage`, `operator`, `state` (a map or list state, or "timers"; by default the states of a single value),
`checkpoint` (a record's number, or "latest"), and `storage.<name>` for each storage option. The driver chooses the
checkpoint; each task reads a range of key groups, given the handles. Spark searches for the format with the Python of
its workers: the error `DATA_SOURCE_NOT_FOUND` means that this Python lacks Holdfast; docs/guide/reading-state.md
explains how to choose another.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from holdfast.errors import SettingsError
from holdfast.stored_state.opened import LATEST, open_checkpoint, open_storage
from holdfast.stored_state.rows import KeyGroupRange, StateScan, scan

KNOWN = ("storage", "operator", "state", "checkpoint")
STORAGE_OPTION = "storage."


class HoldfastStateSource(DataSource):  # type: ignore[misc]
    """The data source. Spark makes a new object for each `load()`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "holdfast"

    def schema(self) -> Any:
        return from_arrow_schema(self._scan.schema)

    def reader(self, schema: Any) -> "HoldfastStateReader":
        return HoldfastStateReader(self._scan)

    @cached_property
    def _scan(self) -> StateScan:
        options = dict(self.options)
        prefixed = [name for name in options if name.startswith(STORAGE_OPTION)]
        storage_options = {name.removeprefix(STORAGE_OPTION): options.pop(name) for name in prefixed}
        unknown = sorted(options.keys() - set(KNOWN) - {"path"})
        missing = [name for name in ("storage", "operator") if name not in options]
        if unknown or missing:
            found = f"unknown options: {', '.join(unknown)}" if unknown else f"missing options: {', '.join(missing)}"
            raise SettingsError(f'format("holdfast"): {found}; it takes {", ".join(KNOWN)} and {STORAGE_OPTION}<name>')
        opened = open_checkpoint(open_storage(options["storage"], storage_options), _number(options.get("checkpoint")))
        return scan(opened, options["operator"], options.get("state"), storage_options)


class RangePartition(InputPartition):  # type: ignore[misc]
    """A task's range of key groups."""

    def __init__(self, groups: KeyGroupRange) -> None:
        self.groups = groups


class HoldfastStateReader(DataSourceReader):  # type: ignore[misc]
    """Reads a state of a checkpoint, in a task for each subtask that wrote it."""

    def __init__(self, found: StateScan) -> None:
        self._scan = found

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(groups) for groups in self._scan.ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition as Arrow; no row becomes a Python object."""
        assert isinstance(partition, RangePartition)
        yield self._scan.read(partition.groups)


def _number(checkpoint: str | None) -> int | str:
    if checkpoint is None or checkpoint == LATEST:
        return LATEST
    if not checkpoint.isdigit():
        raise SettingsError(f"checkpoint={checkpoint!r} is not allowed: a record's number, or {LATEST!r}")
    return int(checkpoint)
