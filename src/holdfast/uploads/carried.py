"""Small objects of logs that travel: an acknowledgement takes their bytes to the JobMaster, which stores them together.

    add ──► waiting ──compose──► sent with an acknowledgement ──completed: its place──► placed ──forget──► gone
               ▲ └───────────────────────────┴── forget ──► gone: nothing was stored
               └── its checkpoint did not complete: sent again with the next checkpoint

An object has a name of this process until its place is known: an object of the store, and an offset there. Logs keep
that name for good; `places` translates it wherever names leave the process. Invariants: the bytes are kept until the
place is known; a place is fixed once, since later acknowledgements name it; `informed` grows, and says which places
this process knew when an acknowledgement was composed. Names and bytes only; no I/O. Thread-safe.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import uuid4

from holdfast.errors import CheckpointFailed
from holdfast.formats.handles import HERE
from holdfast.ids import NO_CHECKPOINT, CheckpointId
from holdfast.storage import names

CARRIED = "carried/"
"""The beginning of the names of objects that travel; no object of a store has it."""
SENT_MAX = 100
"""Checkpoints whose sent objects are remembered until they complete; further ones send their objects again."""


class Composed(NamedTuple):
    """The logs that an acknowledgement takes along, and the place of each object that its manifest names.

    `log` is stored right before the manifest, so that the places in it are `HERE`, below 0.
    """

    log: bytes
    places: Mapping[str, tuple[str, int]]
    informed: CheckpointId


class PlacedLog(NamedTuple):
    """An object that travelled: the object of the store that it lies in, its offset there, and its bytes."""

    object: str
    offset: int
    data: bytes


class Carried:
    """The objects of a TaskManager's logs that travel; together at most `bytes_max` that have no place yet."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._waiting: dict[str, bytes] = {}
        self._bytes = 0
        self._places: dict[str, tuple[str, int]] = {}
        self._sent: dict[CheckpointId, dict[str, int]] = {}
        """Objects that went with each checkpoint, and where each began, counted from the checkpoint's manifest."""
        self._informed = NO_CHECKPOINT

    def add(self, data: bytes) -> str | None:
        """Take an object; return its name, or None if there is no room: the object has to be stored from here."""
        with self._lock:
            if self._bytes + len(data) > self.bytes_max:
                return None
            name = f"{CARRIED}{uuid4().hex}"
            self._waiting[name] = data
            self._bytes += len(data)
            return name

    def compose(self, checkpoint_id: CheckpointId, objects: Iterable[str]) -> Composed:
        """Take together, for a checkpoint, those of the `objects` that have no place yet.

        Raises `CheckpointFailed` if one was forgotten: the checkpoint has ended otherwise.
        """
        with self._lock:
            wanted = dict.fromkeys(objects)
            gone = [n for n in wanted if n.startswith(CARRIED) and n not in self._waiting and n not in self._places]
            if gone:
                raise CheckpointFailed(f"checkpoint {checkpoint_id}: its logs were given up meanwhile", soft=True)
            taken = {name: self._waiting[name] for name in wanted if name in self._waiting}
            places = {name: self._places[name] for name in wanted if name in self._places}
            log = b"".join(taken.values())
            begins, offset = dict[str, int](), -len(log)
            for name, data in taken.items():
                begins[name], offset = offset, offset + len(data)
            self._sent[checkpoint_id] = begins
            while len(self._sent) > SENT_MAX:
                del self._sent[next(iter(self._sent))]
            return Composed(log, places | {name: (HERE, at) for name, at in begins.items()}, self._informed)

    def completed(self, checkpoint_id: CheckpointId, manifest: str = "") -> list[PlacedLog]:
        """Note that a checkpoint completed, and the reference to this process's manifest if that travelled; return the
        objects whose place this tells."""
        with self._lock:
            self._informed = max(self._informed, checkpoint_id)
            begins = self._sent.pop(checkpoint_id, {})
            self._sent = {each: sent for each, sent in self._sent.items() if each > checkpoint_id}
            return self._place(begins, manifest) if manifest else []

    def stored(self, checkpoint_id: CheckpointId, manifest: str) -> list[PlacedLog]:
        """Note that this process itself stored a manifest with the logs before it, under that reference."""
        with self._lock:
            return self._place(self._sent.pop(checkpoint_id, {}), manifest)

    def forget(self, objects: Iterable[str]) -> list[str]:
        """Forget those of the objects that travel; return the others."""
        others = []
        with self._lock:
            for name in objects:
                if name.startswith(CARRIED):
                    self._places.pop(name, None)
                    self._bytes -= len(self._waiting.pop(name, b""))
                else:
                    others.append(name)
        return others

    def in_store(self, objects: Iterable[str]) -> list[str]:
        """The names of these objects in the store, without doubles; those that have no place yet are left out."""
        with self._lock:
            found = [self._places[name][0] if name in self._places else name for name in objects]
        return list(dict.fromkeys(name for name in found if not name.startswith(CARRIED)))

    def _place(self, begins: Mapping[str, int], manifest: str) -> list[PlacedLog]:
        found: list[PlacedLog] = []
        part = names.part(manifest)
        if part is None:
            raise ValueError(f"{manifest!r} is no reference to a manifest in a gathered object")
        for name, at in begins.items():
            data = self._waiting.pop(name, None)
            if data is not None:
                self._bytes -= len(data)
                self._places[name] = part.object, part.offset + at
                found.append(PlacedLog(part.object, part.offset + at, data))
        return found
