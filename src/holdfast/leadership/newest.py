"""The newest leader of a job, as its heartbeat describes it."""

from holdfast.errors import ObjectNotFound
from holdfast.formats.leader import StoredBeat, decode_beat
from holdfast.ids import Epoch
from holdfast.journal.fence import newest_epoch
from holdfast.storage import names
from holdfast.storage.store import ObjectStore


def newest_beat(store: ObjectStore) -> tuple[Epoch, StoredBeat | None]:
    """Return the epoch that took over last, 0 if none has, and its heartbeat; None if there is none yet.

    Raises `CorruptObject`, `StorageError`.
    """
    epoch = newest_epoch(store)
    name = names.leader(epoch)
    try:
        return epoch, decode_beat(name, store.get(name))
    except ObjectNotFound:
        return epoch, None
