"""The loaded table that a publication keeps for the next, which then reads only new commits instead of the table's log.

Invariant: a table is used again only while the newest commit that it has seen is still the same object. A table that
was dropped, or dropped and created anew, is loaded in full.
"""

from collections.abc import Callable
from hashlib import sha256

from deltalake import DeltaTable

from holdfast.errors import ObjectNotFound
from holdfast.storage.store import ObjectStore


class HeldTable:
    """Holds at most one table, in this process: a copy in another process holds none."""

    def __init__(self) -> None:
        self._held: tuple[DeltaTable, bytes] | None = None

    def __reduce__(self) -> tuple[type["HeldTable"], tuple[()]]:
        return HeldTable, ()

    def take(self, open_store: Callable[[], ObjectStore], load: Callable[[], DeltaTable]) -> DeltaTable:
        """Return the table with all its commits; it is not held any more."""
        held, self._held = self._held, None
        if held is None or _newest_commit(held[0], open_store()) != held[1]:
            return load()
        held[0].update_incremental()
        return held[0]

    def hold(self, table: DeltaTable, store: ObjectStore) -> None:
        """Hold a table, of which all commits that it has seen are in the store."""
        commit = _newest_commit(table, store)
        self._held = None if commit is None else (table, commit)


def _newest_commit(table: DeltaTable, store: ObjectStore) -> bytes | None:
    """The digest of the newest commit that the table has seen. None: the commit is not there (any more)."""
    try:
        return sha256(store.get(f"_delta_log/{table.version():020d}.json")).digest()
    except ObjectNotFound:
        return None
