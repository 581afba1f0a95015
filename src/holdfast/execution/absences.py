"""TaskManagers that are left out while batches continue (`on_loss="drop"`), and the base from which replacements join.

Batches continue while a TaskManager is missing, and its replacement joins between two batches:

    a loss ──within the limits──► left out: batches and checkpoints continue without it
       │                 a replacement serves ─► AskBase, continues ──BaseChosen──► at the next batch boundary
       │                                                                            JOINING ──Deployed──► next batch
       └─past a limit, or a further loss while a replacement joins──► a restart, in which every TaskManager goes back

Invariants: a TaskManager may be missing only for a bounded time, and only a bounded share of them at once. No
replacement joins from a base older than a batch that changed broadcast state, since it would lack rows that the others
have.
"""

from holdfast.execution.failover import Cause, Why
from holdfast.ids import NO_BATCH, BatchNumber
from holdfast.settings import FailoverConfig


class Absences:
    """TaskManagers that are left out. The object is true if there are any."""

    def __init__(self, config: FailoverConfig) -> None:
        self._config = config
        self.since_s: dict[int, float] = {}
        """TaskManagers whose places are empty, each with the time since when."""
        self.causes: list[Cause] = []
        self.base_is_asked = self._has_base = False
        self._base_batch = NO_BATCH
        self._broadcast_batch = NO_BATCH
        """The last committed batch that changed broadcast state since the last restart of all TaskManagers."""

    def __bool__(self) -> bool:
        return bool(self.since_s)

    def may_grow(self, places: int) -> bool:
        """True if a job with this number of places may continue without one more TaskManager."""
        missing = len(self.since_s) + 1
        return missing < places and missing <= places * self._config.drop_ratio_max

    def add(self, number: int, cause: Cause, now_s: float) -> None:
        """Leave a TaskManager out."""
        if not self.since_s:
            self.causes = []
            self.base_is_asked = self._has_base = False
        self.since_s[number] = now_s
        self.causes.append(cause)

    @property
    def awaits_base(self) -> bool:
        return bool(self.since_s) and self.base_is_asked and not self._has_base

    @property
    def base_is_known(self) -> bool:
        return bool(self.since_s) and self._has_base

    def base_chosen(self, batch: BatchNumber) -> None:
        """Note the last batch of the base."""
        self._base_batch, self._has_base = batch, True

    def broadcast_changed(self, batch: BatchNumber) -> None:
        """Note that a committed batch changed broadcast state."""
        self._broadcast_batch = batch

    @property
    def base_is_too_old(self) -> bool:
        """True if a replacement that joins from the base would lack rows of broadcast state that the others have."""
        return self.base_is_known and self._broadcast_batch > self._base_batch

    def overdue(self, now_s: float) -> Cause | None:
        """Return the cause for a restart of all, if a TaskManager has been missing for too long."""
        for number, since_s in self.since_s.items():
            if now_s - since_s > self._config.drop_timeout_s:
                limit = f"drop_timeout={self._config.drop_timeout!r}"
                return Cause(Why.MISSING, f"TaskManager {number} was missing for longer than {limit}")
        return None

    def clear(self) -> None:
        """Note that the replacements hold their places."""
        self.since_s.clear()

    def everybody_goes_back(self) -> None:
        """Note a restart of all: no TaskManager is left out, and all have the same broadcast state."""
        self.since_s.clear()
        self._broadcast_batch = NO_BATCH
