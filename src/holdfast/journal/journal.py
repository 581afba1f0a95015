"""The journal's writer: appends and expires records.

Invariants
- The outcome of a sent record is found out before anything else is appended or deleted. The first record's outcome
  counts as known only when the mark `journal/begun` is written, since the mark distinguishes its loss from a new
  journal.
- `Fenced` is final: every later call raises it, and nothing is deleted.

Not thread-safe: a single thread of the JobMaster calls it. Other parts own the objects to which records refer.
"""

from collections.abc import Iterable
from uuid import uuid4

import msgspec

from holdfast.errors import Fenced, StorageError
from holdfast.ids import Epoch, JournalNumber
from holdfast.journal import rules
from holdfast.journal.fence import exists, mark_begun, settle
from holdfast.journal.patience import ATTEMPTS_MAX, Patience, back_off
from holdfast.journal.records import CheckpointRecord
from holdfast.storage import names
from holdfast.storage.store import ObjectStore


class Journal:
    """Appends the records of an epoch.

    Parameters
    ----------
    epoch, base_number
        The values that `take_over` or `go_back` returned.
    older
        Numbers of the checkpoint records below the base that are retained.
    attempts_max, wait
        How often a record is put and read back before `append` fails with an unknown outcome.
    """

    def __init__(
        self,
        store: ObjectStore,
        epoch: Epoch,
        base_number: JournalNumber | None = None,
        *,
        older: Iterable[JournalNumber] = (),
        attempts_max: int = ATTEMPTS_MAX,
        wait: rules.Wait = back_off,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._attempts_max = attempts_max
        self._wait = wait
        self._next = JournalNumber(max(int(epoch), int(base_number or 0)) + 1)
        self._checkpoints = {*older, *([] if base_number is None else [base_number])}
        self._begun = base_number is not None
        """True when the mark `journal/begun` is known to be written. The takeover writes it if the journal has a
        checkpoint."""
        self._sent: CheckpointRecord | None = None
        self._fenced: str | None = None

    @property
    def next_number(self) -> JournalNumber:
        """The number of the next record, or of the record whose outcome is not known yet."""
        return self._next

    @property
    def newest(self) -> JournalNumber | None:
        """The newest checkpoint record that is known to be written; it may be the base."""
        return max(self._checkpoints) if self._checkpoints else None

    @property
    def unresolved(self) -> bool:
        """True while the outcome of a sent record is not known: only `resolve` may be called then."""
        return self._sent is not None

    @property
    def fenced(self) -> bool:
        """True when another JobMaster is known to have taken over."""
        return self._fenced is not None

    def append(self, record: CheckpointRecord) -> JournalNumber:
        """Put a record at `next_number`; return that number once the record is known to be written.

        An empty nonce is filled in.

        Raises
        ------
        Fenced
            Another JobMaster's record is there.
        StorageError
            Its outcome is not known (`unresolved`): the record may or may not complete the checkpoint. Call `resolve`
            until it is known; until then nothing may be deleted and the checkpoint may not be aborted.
        """
        self._check_not_fenced()
        if self._sent is not None:
            raise StorageError(
                f"{self._store.url}: cannot append: it is not known whether {names.journal(self._next)} was written; "
                "resolve it first"
            )
        if record.epoch != self._epoch:
            raise ValueError(f"a record of epoch {record.epoch} in the journal of epoch {self._epoch}")
        self._sent = record if record.nonce else msgspec.structs.replace(record, nonce=uuid4().hex)
        return self.resolve()

    def resolve(self) -> JournalNumber:
        """Put and read the record again whose outcome is not known. Raises the errors of `append`."""
        if self._sent is None:
            raise ValueError("there is no record to resolve")
        self._check_not_fenced()
        patience = Patience(self._attempts_max, self._wait)
        if settle(self._store, self._next, self._sent, patience) is rules.PutOutcome.TAKEN:
            self._end()
        if not self._begun:
            mark_begun(self._store, self._next, patience)
            self._begun = True
        written = self._next
        self._checkpoints.add(written)
        self._next = JournalNumber(written + 1)
        self._sent = None
        return written

    def expire(self, numbers: Iterable[JournalNumber]) -> None:
        """Delete subsumed checkpoint records, oldest first. The call may be repeated after a failure.

        Raises
        ------
        Fenced
            As `append` found; nothing is deleted.
        StorageError
            The store failed, or a record's outcome is not known.
        ValueError
            A number is not a checkpoint record of this journal, or is the newest.
        """
        self._check_not_fenced()
        wanted = sorted(set(numbers))
        refused = rules.refused_expiry(wanted, self._checkpoints, self.newest, resolved=not self.unresolved)
        if refused and self.unresolved:
            raise StorageError(f"{self._store.url}: cannot expire {wanted}: {refused}; resolve it first")
        if refused:
            raise ValueError(f"cannot expire {wanted}: {refused}")
        self._store.delete([names.journal(number) for number in wanted])
        self._checkpoints.difference_update(wanted)

    def check(self) -> None:
        """Check that no other JobMaster has taken over. Call this before relying on objects that only this JobMaster
        may delete.

        Raises
        ------
        Fenced
            Another JobMaster has taken over.
        StorageError
            The store did not answer.
        """
        # Nothing above the newest record of this journal is ever deleted, so after a valid takeover the next number
        # stays taken. A listing could lag behind.
        self._check_not_fenced()
        if not self.unresolved and exists(self._store, names.journal(self._next)):
            self._end()

    def _end(self) -> None:
        self._fenced = (
            f"{self._store.url}: epoch {self._epoch} has ended: another JobMaster wrote "
            f"{names.journal(self._next)}; this JobMaster can complete nothing any more and must stop"
        )
        self._check_not_fenced()

    def _check_not_fenced(self) -> None:
        if self._fenced is not None:
            raise Fenced(self._fenced)
