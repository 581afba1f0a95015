"""Followers in simulated TaskManagers: after each checkpoint they hold exactly what a restore of it would give."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from simulation_invariants import Broken, require_equal

from holdfast.errors import StorageError
from holdfast.followers.follower import Follower
from holdfast.followers.subtask import SubtaskFollower
from holdfast.formats.handles import TableHandle
from holdfast.recovery.downloads import ObjectCache

_follow = Follower.follow
_wrong: list[Broken] = []
"""Findings in a standby, whose JobMaster takes errors of a follower as a reason to ask it again."""


def _rows(subtask: SubtaskFollower) -> dict[str, Any]:
    return {name: sorted(map(repr, table.snapshot().to_pylist())) for name, table in subtask.operator.tables.items()}


def _checked_follow(self: Follower, number: Any, handles: Sequence[TableHandle], base: Any = None) -> Any:
    reached = _follow(self, number, handles, base)
    if reached == number and number % 2:
        for each in self._subtasks:
            anew = SubtaskFollower(self.program, each.subtask, each._max_parallelism, each._new_table, each._local_dir)
            try:
                with ObjectCache(self._store) as fetch:
                    anew.follow(anew.select(handles), fetch, base=base)
                require_equal(_rows(each), _rows(anew), f"tables of {each.subtask.operator} as of record {number}")
            except StorageError:
                pass  # the store is away, or the pin has ended
            except Broken as broken:
                _wrong.append(broken)
            finally:
                anew.close()
    return reached


@contextmanager
def followers_checked() -> Iterator[None]:
    """Compare each follower, after each second checkpoint, with a restore. Raises `Broken` at the end."""
    _wrong.clear()
    with mock.patch.object(Follower, "follow", _checked_follow):
        yield
    if _wrong:
        raise _wrong[0]
