"""A table without a log (`changelog=False`): each cut is a boundary, and a checkpoint is the base that is made at it.

A cut must be at the last committed batch, so the JobMaster delays the next commit until the cut was made. If nothing
has changed since the last base, the checkpoint names that base again. If a materialization fails, its checkpoint fails,
and nothing else.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from holdfast.failpoints import hit
from holdfast.ids import BatchNumber
from holdfast.materialize.base import Base
from holdfast.materialize.keyed_state import KeyedState, PendingCut
from holdfast.materialize.materializer import Materialization
from holdfast.materialize.policy import AWAITED


class SnapshottedTable(KeyedState):
    """Stores the complete table at each cut."""

    def commit(self, batch: BatchNumber) -> None:
        changed = False
        if self._table.in_batch:
            changed = len(self._table.touched()) > 0
            self._table.commit()
        hit("taskmanager.commit.between")
        with self._lock:
            self._committed(batch, changed)

    def _cut(self, pending: PendingCut) -> Callable[[], None]:
        if self._changed and pending.batch != self._last_batch:
            raise ValueError(
                f"table {self._id}: cut at batch {pending.batch}, but batch {self._last_batch} was committed: "
                "without a changelog commits wait for the cut"
            )
        if self._changed:
            return partial(self._snapshot, pending)
        if self._running is not None:
            return partial(self._based_on, pending, self._running)
        return partial(self._based, pending, self._bases.newest)

    def _snapshot(self, pending: PendingCut) -> None:
        made = self._materialize(self._bases.current.sqn, pending.batch, AWAITED, self._clock.monotonic())
        self._based_on(pending, made)

    def _based_on(self, pending: PendingCut, made: Materialization) -> None:
        made.base.add_done_callback(partial(self._made, pending))

    def _made(self, pending: PendingCut, future: Future[Base]) -> None:
        error = future.exception()
        if error is None:
            self._based(pending, future.result())
        else:
            self._answer(pending, error)

    def _based(self, pending: PendingCut, base: Base) -> None:
        pending.base = base
        self._answer(pending, None)

    # There is no schedule and no log, so nothing follows from these events.

    def _materialization_ended(self, made: Materialization, began_s: float, error: BaseException | None) -> None:
        pass

    def _adopted(self, cut: PendingCut, base: Base) -> None:
        pass

    def _gave_up(self) -> None:
        pass

    def _rewound(self, to_batch: BatchNumber) -> None:
        pass

    def _ended(self) -> None:
        pass
