"""The undo of a call of user code that failed, while its batch goes on: one log of steps for all states of an operator.

    mark ── change, note its undo, change, note its undo, … ── the call raised ──► back to the mark, newest step first
                                                            └─ it ended well  ──► clear

A state table undoes whole batches; this log undoes a part of a batch, and only where bad records become dead letters. A
step undoes either a single change (of an entry of a map or list, or of a timer), or restores everything of a kind that
was saved before the call (the values of its keys, rows of tables, lists of the subtask).
"""

from collections.abc import Callable


class UndoLog:
    """Steps that undo changes, the newest last.

    Parameters
    ----------
    is_kept
        False: no call is ever undone, so that nothing is noted.
    """

    def __init__(self, is_kept: bool) -> None:
        self.is_kept = is_kept
        self._steps: list[Callable[[], object]] = []

    def note(self, undo: Callable[[], object]) -> None:
        """Add the step that undoes the next change, or the change just made."""
        if self.is_kept:
            self._steps.append(undo)

    def mark(self) -> int:
        """Return the place to which `back_to` undoes all that is noted from now on."""
        return len(self._steps)

    def back_to(self, mark: int) -> None:
        """Undo all that was noted since the mark, the newest change first."""
        steps = self._steps
        while len(steps) > mark:
            steps.pop()()

    def clear(self) -> None:
        """Forget all steps: the calls before now are not undone any more."""
        self._steps.clear()
