"""The object names of acknowledgements, as differences.

    TaskManager                                              JobMaster
    full acknowledgement ─────────first, or repeated───────► all names noted
    shortened: since checkpoint 7, + 2 names, - 1 ─────────► names of checkpoint 7, changed
                                    ◄───False: those are not known────── the repetition is full again

A checkpoint changes a few of the hundreds of names that a TaskManager's manifest refers to. Each side remembers the
names of one acknowledgement: the TaskManager those of the last one that was answered, and the JobMaster those of the
last one that arrived. If the two differ (an answer got lost, several checkpoints run at once, the incarnation is new),
all names are sent.
"""

import threading

from msgspec.structs import replace

from holdfast.protocol.taskmanager import Acknowledgement


class AnsweredNames:
    """Shortens acknowledgements of an incarnation of a TaskManager to differences. Thread-safe."""

    def __init__(self) -> None:
        self._last: tuple[int, frozenset[str]] | None = None
        """The checkpoint of the last answered acknowledgement, and the names in it."""

    def shortened(self, ack: Acknowledgement) -> Acknowledgement:
        """Return the acknowledgement as a difference from the last answered one, if that is shorter."""
        last = self._last
        if last is None:
            return ack
        since, before = last
        names = set(ack.objects)
        gone = before - names
        added = [name for name in ack.objects if name not in before]
        if len(gone) + len(added) >= len(names):
            return ack
        return replace(ack, objects=added, gone=sorted(gone), since=since)

    def answered(self, ack: Acknowledgement) -> None:
        """Note that the JobMaster accepted this acknowledgement, which contains all names."""
        self._last = ack.checkpoint_id, frozenset(ack.objects)


class KnownNames:
    """The JobMaster's side, for all TaskManagers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, tuple[int, int, frozenset[str]]] = {}
        """The last acknowledgement of each TaskManager: the incarnation, the checkpoint, and the names."""

    def of(self, ack: Acknowledgement) -> frozenset[str] | None:
        """Return all names of an acknowledgement; None if it is a difference from names that are not known."""
        with self._lock:
            if ack.since is None:
                names = frozenset(ack.objects)
            else:
                incarnation, checkpoint_id, names = self._last.get(ack.task_manager, (-1, -1, frozenset()))
                if (incarnation, checkpoint_id) != (ack.incarnation, ack.since):
                    return None
                names = names.difference(ack.gone).union(ack.objects)
            self._last[ack.task_manager] = ack.incarnation, ack.checkpoint_id, names
            return names
