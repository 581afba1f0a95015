"""Objects of logs that are *carried*: a checkpoint's manifest takes their bytes along.

    small: manifest and logs travel with the acknowledgement, and the JobMaster stores them with those of others
    large: this process stores the logs and the manifest behind them as one object (`Uploader.put_part`)

    add ──► waiting ──compose──► sent with an acknowledgement ──completed: its place──► placed ──forget──► gone
               ▲ └───────────────────────────┴── forget ──► gone: nothing was stored
               └── its checkpoint did not complete: sent again with the next checkpoint

An object has a name made by this process until its place (an object of the store, and an offset in it) is known. Logs
keep that name for good; `places` translates it wherever names leave the process. Invariants: the bytes are kept until
they are durable and the place is known; a place never changes, since later acknowledgements name it; `informed` only
grows, and shows which places this process knew when it composed an acknowledgement. Names and bytes only; no I/O.
Thread-safe.
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
"""Prefix of the names of carried objects; no object of a store has it."""
SENT_MAX = 100
"""Number of uncompleted checkpoints whose sent objects are remembered; objects of further ones are sent again."""


class Composed(NamedTuple):
    """The logs that a manifest takes along, and the place of each object that it names. `log` is stored directly before
    the manifest, so places in it are in the object `HERE`, at offsets below 0.
    """

    log: bytes
    places: Mapping[str, tuple[str, int]]
    informed: CheckpointId


class PlacedLog(NamedTuple):
    """A carried object whose place is known: the object of the store that holds it, its offset there, and its bytes."""

    object: str
    offset: int
    data: bytes


class Carried:
    """The carried objects of a TaskManager's logs.

    Parameters
    ----------
    bytes_max
        Bytes that an acknowledgement may take along.
    awaited_bytes_max
        Bytes of all objects without a place, if this process stores them together with its manifest.
    """

    def __init__(self, bytes_max: int, awaited_bytes_max: int = 0) -> None:
        self.bytes_max = bytes_max
        self._awaited_bytes_max = max(bytes_max, awaited_bytes_max)
        self._lock = threading.Lock()
        self._waiting: dict[str, bytes] = {}
        self._bytes = 0
        self._places: dict[str, tuple[str, int]] = {}
        self._sent: dict[CheckpointId, dict[str, int]] = {}
        """The objects sent with each checkpoint, each with its begin relative to the checkpoint's manifest."""
        self._informed = NO_CHECKPOINT

    def add(self, data: bytes, awaited: bool = False) -> str | None:
        """Take an object and return its name; None if there is no room, so that it must be stored by itself.

        `awaited`: the manifest of a cut is going to follow soon, so that a large object may wait for it.
        """
        with self._lock:
            if self._bytes + len(data) > (self._awaited_bytes_max if awaited else self.bytes_max):
                return None
            name = f"{CARRIED}{uuid4().hex}"
            self._waiting[name] = data
            self._bytes += len(data)
            return name

    def find(self, name: str) -> bytes | tuple[str, int]:
        """Return the bytes of a carried object, or the object that has them and its begin there. An object that is not
        carried has its own bytes."""
        with self._lock:
            return self._waiting.get(name) or self._places.get(name, (name, 0))

    def compose(self, checkpoint_id: CheckpointId, objects: Iterable[str]) -> Composed:
        """Join, for a checkpoint, the members of `objects` that have no place yet. Raises `CheckpointFailed` if one was
        forgotten, because the checkpoint has ended already.
        """
        with self._lock:
            wanted = dict.fromkeys(objects)
            gone = [n for n in wanted if n.startswith(CARRIED) and n not in self._waiting and n not in self._places]
            if gone:
                raise CheckpointFailed(f"checkpoint {checkpoint_id}: its logs were given up in the meantime", soft=True)
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
        objects whose place is known now.
        """
        with self._lock:
            self._informed = max(self._informed, checkpoint_id)
            begins = self._sent.pop(checkpoint_id, {})
            self._sent = {each: sent for each, sent in self._sent.items() if each > checkpoint_id}
            return self._place(begins, manifest) if manifest else []

    def stored(self, checkpoint_id: CheckpointId, manifest: str) -> None:
        """Note that this process itself stored a manifest with the logs before it, under that reference.

        The logs have their place there at once, whether or not the checkpoint completes: the object lies in the folder
        of this process, which nobody sweeps while the process lives.
        """
        with self._lock:
            self._place(self._sent.pop(checkpoint_id, {}), manifest)

    def forget(self, objects: Iterable[str]) -> list[str]:
        """Forget the carried ones among the objects; return the others."""
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
        """Return the names of these objects in the store, without duplicates; objects without a place are left out."""
        with self._lock:
            found = [self._places[name][0] if name in self._places else name for name in objects]
        return list(dict.fromkeys(name for name in found if not name.startswith(CARRIED)))

    def _place(self, begins: Mapping[str, int], manifest: str) -> list[PlacedLog]:
        found: list[PlacedLog] = []
        part = names.part(manifest)
        if part is None:
            raise ValueError(f"{manifest!r} is no reference to a manifest in an object")
        for name, at in begins.items():
            data = self._waiting.pop(name, None)
            if data is not None:
                self._bytes -= len(data)
                self._places[name] = part.object, part.offset + at
                found.append(PlacedLog(part.object, part.offset + at, data))
        return found
