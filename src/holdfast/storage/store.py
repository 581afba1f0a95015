"""Interface of an object store, and the function that opens a store.

Names are relative to the store's URL and come from `storage.names` alone. Every failure is a
`StorageError` that names object and store; credentials never appear in a message.
The stores opened here do not retry: `RetryingStore` does, and never for `create`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from holdfast.errors import SettingsError
from holdfast.hidden import hide, passwords_of
from holdfast.storage import names
from holdfast.storage.urls import path_of, refuse_long, split_url

PRIVATE, UMASK = "private", "umask"
"""Values of the storage option `file_permissions`: the permissions of files and folders made below a `file://` URL."""

CHANGELOG_OPTIONS, SHARED_OPTIONS = "changelog.", "shared."
"""Prefixes of storage options that are only for a job's storage for logs, or for its shared storages."""

SCHEMES = ("file", "memory", "s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs")


class ObjectInfo(NamedTuple):
    """An object in a listing."""

    name: str
    size: int
    modified_s: float
    """Seconds since the Unix epoch by the store's clock; for reports and order, never to decide a deletion."""


class ObjectStore(Protocol):
    """Objects by name. Safe to use from several threads."""

    url: str

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Write an object, and replace any object of that name. Atomic: readers see the old or the new object, never a
        part."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Write an object if none of that name exists, atomically. Nothing below the caller retries this.

        Raises `ObjectExists` if the store reports that the object exists. After this or any other error the object may
        have been written, or may be written later: the caller reads it back.
        """
        ...

    def get(self, name: str) -> bytes:
        """Return the complete object. Raises `ObjectNotFound`."""
        ...

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`. Raises `ObjectNotFound`; `StorageError` if the object is
        shorter."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """Return all objects in a folder (`"journal/"`, or `""` for all) and below it, sorted by name.

        Only names greater than `after` are returned. Objects that are created or deleted meanwhile may be missing; all
        objects that exist during the complete call are returned.
        """
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, in the given order if the store deletes them singly; missing objects are no error."""
        ...


def open_store(
    url: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    make: bool = True,
    public: bool = False,
    private: bool = True,
    whose: str = "storage",
) -> ObjectStore:
    """Open `file:///…`, `memory://…`, `s3://…`, `gs://…`, `az://…` or `hdfs://…`.

    A `memory://` URL names a store shared within the process. `storage_options` are obstore's (`aws_access_key_id`,
    `aws_endpoint`, `allow_http`, `timeout`, …), never stored or logged; those for other storages are passed over. Does
    no I/O except creating the folder of a `file://` URL; without `make` a missing folder is an error. `public`: others
    read the folder as a table; a process that dies in a put leaves no file that they would read as rows. `private`:
    folders and files that the store makes on a disk are for this user alone, unless `storage_options` say
    `file_permissions="umask"`; a folder that is there keeps its own rights. `whose`: the setting that holds the URL,
    for messages.

    Raises
    ------
    SettingsError
        The URL or an option is not understood.
    StorageError
        The folder cannot be made, or is missing.
    """
    from holdfast.storage.obstore_store import cloud_store, file_store, memory_store

    storage_options = own_options(storage_options or {})
    parts = split_url(url, whose)
    place = urlsplit(hide(url))
    is_url = "://" in url or parts.scheme in SCHEMES
    shown = f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}" if is_url else hide(url)
    if parts.scheme not in SCHEMES:
        folder = "" if is_url else f"; the folder of that path on this machine is {_folder_url(shown)!r}"
        raise SettingsError(
            f"{whose} {shown!r}: expected a URL that starts with one of {', '.join(SCHEMES)}, then ://{folder}"
        )
    user_info = "@" in parts.netloc and parts.scheme not in ("abfs", "abfss")  # there: the container
    if parts.query or parts.fragment or user_info or passwords_of(url):
        raise SettingsError(f"{whose} {shown!r}: credentials and parameters go into storage_options, not into the URL")
    if parts.scheme == "memory":
        return memory_store(shown)
    refuse_long(url, names.longest((), ()), whose)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            relative = _folder_url(parts.netloc + path_of(parts))
            raise SettingsError(f"{whose} {shown!r}: expected an absolute path, for example {hide(relative)!r}")
        private = private and _permissions(f"{whose} {shown!r}", storage_options) == PRIVATE
        return file_store(url, path_of(parts), make=make, public=public, private=private)
    if parts.scheme == "hdfs":
        from holdfast.storage.hdfs_store import hdfs_store

        return hdfs_store(url, parts, storage_options)
    if not parts.netloc:
        raise SettingsError(f"{whose} {shown!r}: expected a bucket or account: {parts.scheme}://name/folder")
    return cloud_store(url, storage_options)


def own_options(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those that are only for other storages of a job."""
    others = (CHANGELOG_OPTIONS, SHARED_OPTIONS)
    return {key: value for key, value in storage_options.items() if not key.startswith(others)}


def _folder_url(path: str) -> str:
    """Return the URL of a local path, which may be relative to the working folder or to the home of a user."""
    return Path(os.path.abspath(os.path.expanduser(path))).as_uri()  # noqa: PTH100, PTH111 (links stay as they are)


def _permissions(shown: str, storage_options: Mapping[str, str]) -> str:
    found = storage_options.get("file_permissions", PRIVATE)
    if found not in (PRIVATE, UMASK):
        raise SettingsError(
            f"{shown}: file_permissions={found!r} in storage_options is not understood; allowed: {PRIVATE!r} "
            f"(files for this user alone), {UMASK!r} (the rights that the umask gives)"
        )
    return found
