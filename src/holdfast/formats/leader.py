"""The two objects through which a leading driver and drivers in waiting learn of each other.

    leader/<epoch>   StoredBeat      the leader of an epoch overwrites it with a higher count, and says how it ended
    standby          StoredWaiting   drivers in waiting overwrite it, so that the leader knows that somebody waits

Neither decides anything: the journal alone says who leads. Times are never stored, since clocks of machines differ.
"""

from enum import StrEnum

import msgspec

from holdfast.ids import Epoch, JobId, JournalNumber
from holdfast.storage.framing import frame, unframe
from holdfast.storage.names import LeaderName, check_same, leader, parse
from holdfast.storage.reading import decode

BEAT_MAGIC, BEAT_VERSION, BEAT_VERSION_MIN = b"HFLB", 2, 1
WAITING_MAGIC, WAITING_VERSION = b"HFSW", 1


class LeaderState(StrEnum):
    """State of a start that leads or has led."""

    LEADS = "leads"
    STOPPED = "stopped"
    """Stopped in order, by `query.stop()` or with its program."""
    COMPLETE = "complete"
    """Everything that was available was processed and published."""
    FAILED = "failed"
    """Ended with an error, or found another leader."""


class StoredBeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A heartbeat. `address`: the host and port of the leader's link; empty if it has none. `record`: the number of its
    newest checkpoint record, shown to people; 0 if there is none yet. `session`: the id of the Spark Connect session
    through which programs reach a leader in the cluster; empty for a leader in a program. Version 1 has no session, and
    is still written without one, so that older drivers in waiting read it."""

    job: JobId
    epoch: Epoch
    count: int
    state: LeaderState
    address: str
    record: JournalNumber
    session: str = ""


class StoredWaiting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The note of a driver in waiting that it watches the leader: its own id, a count, and the silence after which it
    takes over."""

    job: JobId
    waiting: str
    count: int
    takeover_after_s: float


_BEAT = msgspec.msgpack.Decoder(StoredBeat)
_WAITING = msgspec.msgpack.Decoder(StoredWaiting)
_UNFIT = "the payload does not fit its format version"


def encode_beat(beat: StoredBeat) -> bytes:
    version = BEAT_VERSION if beat.session else BEAT_VERSION_MIN
    return frame(BEAT_MAGIC, version, msgspec.msgpack.encode(beat, order="deterministic"))


def decode_beat(name: str, data: bytes) -> StoredBeat:
    """Raises `CorruptObject`."""
    beat = decode(name, unframe(name, data, BEAT_MAGIC, BEAT_VERSION, BEAT_VERSION_MIN), _BEAT, _UNFIT)
    if isinstance(parse(name), LeaderName):
        check_same(name, leader, beat.epoch)
    return beat


def encode_waiting(waiting: StoredWaiting) -> bytes:
    return frame(WAITING_MAGIC, WAITING_VERSION, msgspec.msgpack.encode(waiting, order="deterministic"))


def decode_waiting(name: str, data: bytes) -> StoredWaiting:
    """Raises `CorruptObject`."""
    return decode(name, unframe(name, data, WAITING_MAGIC, WAITING_VERSION), _WAITING, _UNFIT)
