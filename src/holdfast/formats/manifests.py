"""Manifests: a TaskManager's part of a checkpoint. docs/reference/format/manifest.md draws them.

    object := frame("HFMF", version, zlib of msgpack of `formats.handles.Manifest`)

The content is compressed, because the pieces of many logs are in the same objects, and tables of many subtasks have the
same schema: a manifest of 24 logs with 64 pieces each shrinks to a sixth. A reader refuses unknown versions, naming the
object.
"""

import zlib
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.errors import ObjectNotFound
from holdfast.formats.handles import HERE, Manifest, TableHandle, check_handle, check_objects, placed
from holdfast.ids import Epoch
from holdfast.references import object_of
from holdfast.storage import names
from holdfast.storage.framing import frame, unframe
from holdfast.storage.lost import ADVICE
from holdfast.storage.reading import decode, inflate, read_all
from holdfast.storage.store import ObjectStore

MAGIC = b"HFMF"
VERSION, VERSION_MIN = 4, 2
COMPRESSION = 1
DOWNLOADS_MAX = 8
_PROBLEM = "is no manifest of this version"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes to store."""
    return frame(MAGIC, VERSION, zlib.compress(msgspec.msgpack.encode(manifest), COMPRESSION))


def decode_manifest(name: str, data: bytes) -> Manifest:
    """Return the manifest that is stored under that name or reference. Raises `CorruptObject`."""
    payload = inflate(name, unframe(name, data, MAGIC, VERSION, VERSION_MIN), _PROBLEM)
    manifest = decode(name, payload, _MANIFEST, _PROBLEM)
    part = names.part(name)
    if part is not None:
        here = {HERE: (part.object, part.offset)}
        manifest = msgspec.structs.replace(manifest, tables=[placed(each, here) for each in manifest.tables])
    for table in manifest.tables:
        check_handle(name, table)
    if isinstance(names.meaning(name), names.ManifestName):
        names.check_same(name, names.manifest, manifest.epoch, manifest.checkpoint_id, manifest.task_manager)
        check_objects(name, manifest)
    return manifest


def load_manifests(store: ObjectStore, wanted: Sequence[str], writers: Collection[str] = frozenset()) -> list[Manifest]:
    """Return the manifests with these names or references, in their order. They are fetched in parallel, and each
    object once.

    `writers`: ids of the jobs that may have written them; empty if any job may.

    Raises
    ------
    StorageError, CorruptObject
        A manifest is missing, cannot be read, or belongs to another job.
    """

    together: dict[str, list[str]] = {}
    for name in wanted:
        together.setdefault(object_of(name), []).append(name)

    def load(some: list[str]) -> dict[str, Manifest]:
        try:
            found = {name: decode_manifest(name, data) for name, data in zip(some, read_all(store, some), strict=True)}
        except ObjectNotFound:
            return {}
        for name, manifest in found.items():
            names.check_writer(name, manifest.job, writers)
        return found

    found: dict[str, Manifest] = {}
    workers = min(DOWNLOADS_MAX, max(1, len(together)))
    with ThreadPoolExecutor(workers, thread_name_prefix="holdfast-manifests") as pool:
        for some in pool.map(load, together.values()):
            found |= some
    if missing := [name for name in wanted if name not in found]:
        raise ObjectNotFound(_lost(store, missing, len(wanted)))
    return [found[name] for name in wanted]


class ManifestsOfStart:
    """The manifests of the checkpoint that a start goes on from, read once for all readers. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._kept: dict[tuple[str, ...], list[Manifest]] = {}

    def load(self, wanted: Sequence[str], writers: Collection[str]) -> list[Manifest]:
        """Load manifests as `load_manifests` does, and keep them for `take`."""
        found = load_manifests(self._store, wanted, writers)
        self._kept = {tuple(wanted): found}
        return found

    def take(self, wanted: Sequence[str], writers: Collection[str]) -> list[Manifest]:
        """Return the manifests that were kept and forget them, or load them if they were not kept."""
        kept, self._kept = self._kept, {}
        found = kept.get(tuple(wanted))
        return load_manifests(self._store, wanted, writers) if found is None else found


def without_dropped(manifests: Sequence[Manifest], drop_state: Collection[str], epoch: Epoch) -> list[TableHandle]:
    """Return the handles of all tables except those that operators in `drop_state` had before the start of `epoch`."""
    return [
        table
        for manifest in manifests
        for table in manifest.tables
        if table.operator not in drop_state or manifest.epoch == epoch
    ]


def _lost(store: ObjectStore, missing: Sequence[str], wanted: int) -> str:
    return (
        f"{store.url}: {len(missing)} of the {wanted} manifests of the checkpoint are missing, the first is "
        f"{missing[0]!r}; its record is in journal/. {ADVICE}"
    )


_MANIFEST = msgspec.msgpack.Decoder(Manifest)
