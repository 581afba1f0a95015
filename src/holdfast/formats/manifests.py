"""Manifests: a TaskManager's part of a checkpoint. Drawn in docs/reference/format/manifest.md.

    object := frame("HFMF", version, zlib of msgpack of `formats.handles.Manifest`)

Compressed, since the pieces of many logs lie in the same objects, and tables of many subtasks have the same schema: a
manifest of 24 logs with 64 pieces each shrinks to a sixth. A reader refuses unknown versions, naming the object.
"""

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.errors import CorruptObject
from holdfast.formats.handles import Manifest
from holdfast.storage.framing import frame, unframe
from holdfast.storage.store import ObjectStore

MAGIC = b"HFMF"
VERSION = 2
COMPRESSION = 1
DOWNLOADS_MAX = 8


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes to store."""
    return frame(MAGIC, VERSION, zlib.compress(msgspec.msgpack.encode(manifest), COMPRESSION))


def decode_manifest(name: str, data: bytes) -> Manifest:
    """The manifest stored as the object `name`. Raises `CorruptObject`."""
    payload = unframe(name, data, MAGIC, VERSION)
    try:
        return msgspec.msgpack.decode(zlib.decompress(payload), type=Manifest)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CorruptObject(f"{name}: is no manifest of this version: {error}") from error


def load_manifests(store: ObjectStore, names: Sequence[str]) -> list[Manifest]:
    """The manifests of these names, in their order, fetched in parallel.

    Raises
    ------
    StorageError, CorruptObject
        A manifest is missing or cannot be read.
    """
    with ThreadPoolExecutor(min(DOWNLOADS_MAX, max(1, len(names))), thread_name_prefix="holdfast-manifests") as pool:
        return list(pool.map(lambda name: decode_manifest(name, store.get(name)), names))
