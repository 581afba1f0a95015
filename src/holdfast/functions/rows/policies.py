"""The treatment of bad and of late rows, as a user declares it."""

from dataclasses import dataclass
from typing import Literal

from holdfast.errors import SettingsError

BadRecords = Literal["fail", "dead_letter"]
LatePolicy = Literal["drop", "dead_letter", "stream"]


@dataclass(frozen=True)
class RowHandling:
    """Settings of a job that decide how its keyed operators treat rows."""

    bad_records: BadRecords
    combine: bool
    """True if senders may combine rows."""

    def check_late(self, late: LatePolicy) -> None:
        """Raises `SettingsError` if late rows are to be dead letters in a job without them."""
        if late == "dead_letter" and self.bad_records == "fail":
            raise SettingsError(
                "late='dead_letter' needs Job(bad_records='dead_letter', dead_letters=<url of a folder>)"
            )
