"""Partitions as times: a partition is finished once the watermark has passed its end. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote

from holdfast.errors import SettingsError
from holdfast.quantities import Duration, above_zero, duration_s

MARKER = "_SUCCESS"
_EXAMPLE = datetime(2026, 11, 24, 11, 30)


@dataclass(frozen=True)
class PartitionTime:
    """The times that a partition holds, by the values of its columns.

    Parameters
    ----------
    format
        Format of `datetime.strptime` for the start of a partition, in UTC. It reads the values of all partition
        columns, in order, with slashes between: `"%Y-%m-%d/%H"` for a date and an hour.
    length
        The time from a partition's start to its end. A partition whose values are not of this format never ends.
    """

    format: str
    length: Duration

    def __post_init__(self) -> None:
        above_zero(duration_s(self.length, "PartitionTime(length)"), "PartitionTime(length)", self.length)
        try:
            datetime.strptime(_EXAMPLE.strftime(self.format), self.format)
        except ValueError as error:
            raise SettingsError(f"PartitionTime(format={self.format!r}): no format of a time: {error}") from error

    def end_us(self, folder: str) -> int | None:
        """Return the end of the partition in this folder, in microseconds since 1970; None if it never ends."""
        values = [unquote(level.partition("=")[2]) for level in folder.rstrip("/").split("/")]
        try:
            start = datetime.strptime("/".join(values), self.format).replace(tzinfo=UTC)
        except ValueError:
            return None
        return round((start.timestamp() + duration_s(self.length, "PartitionTime(length)")) * 1_000_000)


def unmarked_folders(names: Iterable[str]) -> set[str]:
    """Return the folders among these objects that hold files, and no marker."""
    found: set[str] = set()
    marked: set[str] = set()
    for name in names:
        folder, slash, file = name.rpartition("/")
        if not name.startswith("_") and slash:
            (marked if file == MARKER else found).add(f"{folder}/")
    return found - marked
