"""Checkpoint records that are, or may still be, in the journal.

    newest ──a newer one is written──► subsumed ──ExpireRecords──► expiring ──RecordsExpired──► gone
                                           ▲                           │ failed, after a pause
                                           └───────────────────────────┘

The newest record is never expired, because a restart begins from it. Any record stays for `EXPIRY_GRACE_S` after the
next one was written, so that a start finds a checkpoint even if listings lag behind. Older records that the settings
retain, by number or by age, stay subsumed until newer records replace them. A record from which a savepoint is being
copied is held and stays too: newer records name it as retained, so that no clean-up deletes the objects that it names.
Does not own: the objects that records name (`registry.py`).
"""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from holdfast.checkpoint.publication import GroupKey
from holdfast.checkpoint.registry import RETRY_PAUSE_S
from holdfast.ids import JournalNumber

EXPIRY_GRACE_S = 2.0
"""Seconds for which a subsumed record stays. With a higher value, a job can start beside a running driver even if
listings lag further behind, and the objects of more checkpoints are kept."""


@dataclass
class _Record:
    groups: frozenset[GroupKey]
    written_s: float = 0.0
    """Time since the Unix epoch."""
    expiring: bool = False
    holds: int = 0
    """Number of savepoints that are being copied from the record."""
    stays_until_s: float = -math.inf
    not_before_s: float = 0.0
    """Time of the next attempt to expire the record, after a failed attempt."""


class RetainedRecords:
    """Records by number, the newest last."""

    def __init__(self) -> None:
        self._records: dict[JournalNumber, _Record] = {}
        self._replaced: set[JournalNumber] = set()
        """Records that a newer record repeats."""
        self._named: Counter[GroupKey] = Counter()
        """Number of records that name each group."""

    @property
    def newest(self) -> JournalNumber | None:
        return next(reversed(self._records), None)

    @property
    def groups_of_newest(self) -> frozenset[GroupKey]:
        """The groups of the newest record, from which a restart begins."""
        newest = self.newest
        return frozenset() if newest is None else self._records[newest].groups

    def written(
        self, number: JournalNumber, groups: frozenset[GroupKey], written_s: float = 0.0, now_s: float = -math.inf
    ) -> None:
        """Note a record that was found, or written at `now_s`; numbers grow."""
        if self.newest is not None:
            self._records[self.newest].stays_until_s = now_s + EXPIRY_GRACE_S
        self._records[number] = _Record(groups, written_s)
        self._named.update(groups)

    def hold_newest(self) -> JournalNumber | None:
        """Keep the newest record until it is released; return its number."""
        if self.newest is not None:
            self._records[self.newest].holds += 1
        return self.newest

    def let_go(self, number: JournalNumber) -> None:
        """Remove one hold of a record."""
        self._records[number].holds -= 1

    def repeated(self, number: JournalNumber) -> None:
        """Note that a newer record repeats this record, so this record need not be retained."""
        self._replaced.add(number)

    def end_grace(self) -> None:
        """Let subsumed records be expired at once: no newer record will follow."""
        for record in self._records.values():
            record.stays_until_s = -math.inf

    def retained(self, count: int, since_s: float) -> list[JournalNumber]:
        """Return the newest `count` records, all records written at `since_s` or later, and the held records; oldest
        first."""
        there = [n for n, record in self._records.items() if not (n in self._replaced or record.expiring)]
        newest = set(there[max(0, len(there) - count) :])
        records = self._records
        return [n for n in there if n in newest or records[n].written_s >= since_s or records[n].holds]

    def expire(self, now_s: float, count: int = 1, since_s: float = math.inf) -> list[JournalNumber]:
        """Return the subsumed records to delete now, oldest first: those that are not retained. A record is not
        returned again before its expiry is answered."""
        oldest = next(iter(self._records.values()), None)
        is_young = oldest is None or len(self._records) <= count or oldest.written_s >= since_s
        if is_young and not self._replaced:
            return []  # Asked after each event, so a look at all records would cost too much if many are retained.
        kept = set(self.retained(count, since_s))
        newest = self.newest
        numbers = [
            number
            for number, record in self._records.items()
            if number != newest
            and number not in kept
            and not (record.expiring or record.holds)
            and max(record.stays_until_s, record.not_before_s) <= now_s
        ]
        for number in numbers:
            self._records[number].expiring = True
        return numbers

    def expired(self, number: JournalNumber) -> bool:
        """Remove an expired record; True if it was pending."""
        record = self._records.get(number)
        if record is None or not record.expiring:
            return False
        del self._records[number]
        for group in record.groups:
            self._named[group] -= 1
            if not self._named[group]:
                del self._named[group]
        self._replaced.discard(number)
        return True

    def expire_failed(self, numbers: Collection[JournalNumber], now_s: float) -> None:
        """Keep records that may still be there: they are expired again after a pause."""
        for number in sorted(numbers):
            record = self._records.get(number)
            if record is not None and record.expiring:
                record.expiring = False
                record.not_before_s = now_s + RETRY_PAUSE_S

    def named_groups(self) -> Collection[GroupKey]:
        """Groups that any of them names."""
        return self._named.keys()

    def validate(self) -> None:
        """Check the invariants; raises AssertionError."""
        numbers = list(self._records)
        named = {group for record in self._records.values() for group in record.groups}
        assert self._named.keys() == named, f"named are {named}, counted {set(self._named)}"
        assert numbers == sorted(numbers), f"out of order: {numbers}"
        assert not numbers or not self._records[numbers[-1]].expiring, f"the newest record, {numbers[-1]}, expires"
