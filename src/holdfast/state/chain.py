"""Which rows of a batch no earlier one that waits to be logged has touched, so that each is gathered once.

The index has a stamp beside each key, which says which batch (or write outside of batches) touched the row last. A
look-up reads it anyway, and tells which of a batch's rows are *unseen*: stamped before the first batch of a chain.
"""


class Chain:
    """Batches one right after the other that wait, with all rows that they touched and nothing else between.

    The first one's rows and the unseen ones of the others are all that they touched, each once: a hundred batches that
    touch the same rows need not be gone through. Where a batch does not wait, or rows were touched otherwise (a batch
    undone, rows replayed), the next batch that waits is the first of another chain.
    """

    def __init__(self) -> None:
        self._first = 0
        """The stamp of its first batch; 0: there is no chain."""
        self._stamp = 0
        """Of the batch that began last."""
        self._added = False
        """Whether that one was committed, its changes deferred."""

    def begin(self, stamp: int) -> int:
        """A batch begins: rows stamped before the stamp returned are unseen; 0 where it does not go on a chain."""
        if not self._added or stamp != self._stamp + 1:
            self._first = 0
        self._stamp, self._added = stamp, False
        return self._first

    def add(self, whole: bool) -> bool:
        """The batch that began last waits, with all rows that it touched or with some: whether its unseen ones count.

        They do not where the chain ended meanwhile.
        """
        counts = whole and self._first != 0
        self._added = True
        self._first = (self._first or self._stamp) if whole else 0
        return counts

    def end(self) -> None:
        """Some of its batches no longer wait, or never were."""
        self._first = 0
