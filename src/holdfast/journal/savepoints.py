"""Reads the object `savepoint` of a savepoint's folder."""

from holdfast.errors import ObjectNotFound
from holdfast.journal.codec import StoredSavepoint, decode_savepoint
from holdfast.storage import names
from holdfast.storage.store import ObjectStore


def find_savepoint(store: ObjectStore) -> StoredSavepoint | None:
    """Read a folder's savepoint; None if the folder holds none. Raises `CorruptObject`, `StorageError`."""
    try:
        return decode_savepoint(names.savepoint(), store.get(names.savepoint()))
    except ObjectNotFound:
        return None
