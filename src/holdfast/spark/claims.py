"""Slots that the queries of a Spark application hold while they run, so that several queries fit into it.

    TaskManagers and senders that a user asked for: firm      senders by default: given up for a later query, and taken
                                                              again when a query ends
    a slot that nobody holds: for the short Spark jobs of all queries

Pure except for the lock. Only the queries of this driver are known; other Spark jobs are not counted.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import JobRefused

SHARED = 1
"""Slots that are left for the short Spark jobs of all queries. A higher value leaves fewer slots for senders."""


@dataclass
class Claim:
    """The slots of a query. `senders`: its long-running senders now. `wished`: the number it would have alone, if
    there are enough slots."""

    name: str
    processes: int
    wished: int
    is_firm: bool
    senders: int
    staying: int | None = None
    """The senders that had slots at the last look while slots were missing; None: all."""

    @property
    def firm(self) -> int:
        """The slots that the query does not yield to other queries."""
        return self.processes + (self.senders if self.is_firm else 0)

    @property
    def missing(self) -> int:
        """The senders for which the query has no slots."""
        return self.wished - self.senders

    @property
    def total(self) -> int:
        """The slots that the query holds."""
        return self.processes + self.senders

    @property
    def used(self) -> int:
        """The slots that the query holds, without those of senders that had to go for lack of slots."""
        return self.processes + (self.senders if self.staying is None else min(self.senders, self.staying))

    def __str__(self) -> str:
        parts = f"TaskManagers: {self.processes}, senders: {self.senders}"
        return f"query {self.name!r} holds {self.total} ({parts})"


def senders_that_fit(slots: int, held: int, senders: int, beside: int) -> int:
    """Return how many of the senders fit into `slots`, of which TaskManagers and other queries hold `held`.

    `beside`: the slots that were left beside senders at the start. A user may give all slots to senders. But if slots
    are missing, one is left for short Spark jobs: units go there while senders end and start.
    """
    if slots >= held + senders + min(SHARED, beside):
        return senders
    return max(0, min(senders, slots - held - SHARED))


class SlotClaims:
    """The claims of a Spark application's queries. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: list[Claim] = []

    def firm(self) -> int:
        """Return the slots that queries do not yield."""
        with self._lock:
            return sum(each.firm for each in self._claims)

    def held(self) -> int:
        """Return the slots that queries hold now."""
        with self._lock:
            return sum(each.total for each in self._claims)

    def claim(
        self,
        name: str,
        slots: int,
        processes: int,
        explicit: int | None,
        senders_of: Callable[[int], int],
        wished: int = 0,
    ) -> Claim:
        """Claim some of all `slots`: first for TaskManagers, then for senders in the remaining ones.

        `explicit`: the number of senders that the user set; None: the default. `senders_of`: gives the number of
        senders for a number of slots. `wished`: senders that the query takes later if they do not fit now. Raises
        `JobRefused`, which names the queries that hold the other slots.
        """
        with self._lock:
            free = slots - sum(each.total for each in self._claims)
            given_up = sum(each.senders for each in self._claims if not each.is_firm)
            needed = processes + SHARED
            if free + given_up < needed:
                raise JobRefused(self._refusal(slots, needed, processes))
            self._make_free(needed - free)
            free = slots - sum(each.total for each in self._claims)
            others_share = any(not each.senders for each in self._claims)
            senders = max(0, senders_of(free - processes - (SHARED if others_share and explicit else 0)))
            claim = Claim(name, processes, max(senders, wished), explicit is not None, senders)
            self._claims.append(claim)
            return claim

    def resize(self, claim: Claim, slots: int, processes: int, senders: int | None = None) -> None:
        """Hold slots for another number of TaskManagers. Default senders yield slots, or get slots back.

        `senders`: the number of senders from now on; None: no change. If there are too few slots, this raises
        `JobRefused` with the numbers and changes nothing. It also changes nothing if the claim was released.
        """
        with self._lock:
            if not any(each is claim for each in self._claims):
                return
            more = processes + (claim.senders if senders is None else senders) - claim.total
            free = slots - sum(each.total for each in self._claims)
            givers = [each for each in self._claims if not each.is_firm and (senders is None or each is not claim)]
            given_up = sum(each.senders for each in givers)
            if more > 0 and free + given_up < more + SHARED:
                holders = "; ".join(map(str, self._claims))
                for_senders = "" if senders is None else f", {senders} for senders"
                raise JobRefused(
                    f"query {claim.name!r} needs {processes} slots for TaskManagers, those that stand by and those of "
                    f"the layout of before included{for_senders}, and {SHARED} for short Spark jobs: {more + SHARED} "
                    f"more than are held for it. Spark has {slots}, of which {free} are free and {given_up} would be "
                    f"given up by senders; {holders}. Give it more (local[N], spark.executor.cores, spark.cores.max, "
                    "spark.executor.instances), or ask for fewer; rescale(in_place=True) holds no slots for more "
                    "senders while there are more TaskManagers"
                )
            claim.processes = processes
            if senders is not None:
                claim.senders, claim.wished, claim.is_firm, claim.staying = senders, senders, True, None
            if more > 0:
                self._make_free(more + SHARED - free)
            else:
                self._give_back(-more)

    def fit(self, claim: Claim, slots: int, beside: int) -> int:
        """Return the number of the query's senders that fit into `slots` beside all other queries, and remember it:
        slots that these senders leave are free for the senders of others. `beside`: as in `senders_that_fit`."""
        with self._lock:
            others = sum(each.used for each in self._claims if each is not claim)
            fit = senders_that_fit(slots, others + claim.processes, claim.senders, beside)
            claim.staying = fit if fit < claim.senders else None
            return fit

    def grow(self, slots: int) -> None:
        """Give slots that nobody holds, of all `slots`, to the queries that miss senders."""
        with self._lock:
            self._give_back(slots - SHARED - sum(each.total for each in self._claims))

    def release(self, claim: Claim) -> None:
        """Return all slots of a query, to queries that yielded senders. May be called more than once."""
        with self._lock:
            if not any(each is claim for each in self._claims):
                return
            self._claims = [each for each in self._claims if each is not claim]
            self._give_back(claim.total)

    def _give_back(self, free: int) -> None:
        """Give queries that miss senders up to `free` slots."""
        for each in self._claims:
            more = max(0, min(each.missing, free))
            each.senders += more
            free -= more

    def _make_free(self, missing: int) -> None:
        """Take default senders from the queries that have most of them, until `missing` slots are free."""
        for _ in range(missing):
            most = max((each for each in self._claims if not each.is_firm), key=lambda each: each.senders)
            most.senders -= 1

    def _refusal(self, slots: int, needed: int, processes: int) -> str:
        holders = "; ".join(map(str, self._claims))
        held = f", of which {holders}" if holders else ""
        return (
            f"the job needs {needed} slots at least ({processes} for TaskManagers, those that stand by included, and "
            f"one for a sender or for short Spark jobs), Spark has {slots}{held}. Give it more (local[N], "
            "spark.executor.cores, spark.cores.max, spark.executor.instances), "
            f"{'stop a query, ' if holders else ''}or set a lower task_managers or standby_task_managers"
        )


_APPLICATIONS: dict[str, SlotClaims] = {}
_LOCK = threading.Lock()


def claims_of(application: str) -> SlotClaims:
    """Return the claims of a Spark application, by its id."""
    with _LOCK:
        return _APPLICATIONS.setdefault(application, SlotClaims())
