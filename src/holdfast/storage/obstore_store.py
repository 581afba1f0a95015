"""The stores that obstore opens: files, memory, S3, GCS, Azure.

Invariants: obstore's own retries are off. Writing an object is atomic. Messages contain no credentials (obstore's
errors are not chained, since they may show a signed URL).
"""

import contextlib
import math
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, MemoryStore, from_url

from holdfast.errors import CorruptObject, ObjectExists, ObjectNotFound, SettingsError, StorageError
from holdfast.hidden import remember_environment, remember_options
from holdfast.storage.links import files_below, refuse_links, remove_file
from holdfast.storage.store import ObjectInfo, ObjectStore

MULTIPART_CHUNK_BYTES = 16 * 1024 * 1024
UNREADABLE_NAME = "Encountered object with invalid path"
"""Part of obstore's error message for an object whose name has an empty segment or a segment of dots."""
LISTED_AT_ONCE = 1_000
"""Number of objects that are read from a listing at once."""
LISTED_MAX = 50_000_000
"""Most objects of a listing. A listing with more counts as endless."""
CREATE_FOLDER_ATTEMPTS_MAX = 50
CLIENT_OPTIONS = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    )
)
PROVIDER_PREFIX = re.compile(r"^(aws|google|gcs|azure)_")

CONNECT_TIMEOUT = "3s"
"""Connection time-out unless the options set another. A reachable store answers in a fraction of it."""

CONNECTION_REASONS = {
    r"dns error": "the host's name is not known",
    r"ConnectionRefused": "the connection was refused",
    r"ConnectError|Connect,\s*TimedOut": "no connection in time",
    r"kind: Timeout": "no answer in time",
}
"""Plain reasons for a failed connection, by patterns in the debug output of obstore's errors (their text lacks the
reason). Patterns are tried in order. Two timers of the HTTP client watch a connection, and either may fire first."""

NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist")
NO_OBJECT = re.compile(r"\(code: NoSuchKey\)")
"""Pattern of texts by which stores say that a bucket, or one of several objects to delete, does not exist."""

T = TypeVar("T")
_shared: dict[str, "ObstoreStore"] = {}
_shared_lock = threading.Lock()


class ObstoreStore:
    """An `ObjectStore` that uses any of obstore's stores."""

    multipart_bytes_min: float = 64 * 1024 * 1024

    def __init__(self, url: str, store: Any) -> None:
        self.url = url
        self._store = store

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        large = len(data) >= self.multipart_bytes_min
        self._do(
            "put",
            name,
            lambda: obstore.put(self._store, name, data, use_multipart=large, chunk_size=MULTIPART_CHUNK_BYTES),
        )

    def create(self, name: str, data: bytes) -> None:
        self._do("create", name, lambda: obstore.put(self._store, name, data, mode="create", use_multipart=False))

    def get(self, name: str) -> bytes:
        return self._do("get", name, lambda: bytes(obstore.get(self._store, name).bytes()))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        data = self._do(
            "get a range of", name, lambda: bytes(obstore.get_range(self._store, name, start=offset, length=length))
        )
        if len(data) != length:
            raise StorageError(
                f"{self.url}: {name} ends early: asked for {length} bytes from {offset}, found {len(data)}"
            )
        return data

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        _require_folder(prefix)
        try:
            return sorted(self._do("list", prefix, lambda: _listed(self._store, prefix, after)))
        except StorageError as error:
            if UNREADABLE_NAME in str(error):
                raise CorruptObject(f"{error}: such an object cannot be listed or read: rename or delete it") from None
            raise

    def delete(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            self._do("delete", names[0], lambda: obstore.delete(self._store, list(names)))
        except ObjectNotFound:
            # Some stores stop at a missing object, so the others are then deleted one by one.
            self._delete_each(names)

    def _delete_each(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(ObjectNotFound):
                self._do("delete", name, partial(obstore.delete, self._store, name))

    def _do(self, what: str, name: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except FileNotFoundError as error:
            if what in ("put", "create") or NO_BUCKET.search(str(error)):
                raise StorageError(
                    f"{self.url}: cannot {what} {name!r}: the store says that there is no such bucket or container: "
                    "see that it exists, and that the endpoint is right"
                ) from None
            raise ObjectNotFound(f"{self.url}: cannot {what} {name!r}: there is no such object") from None
        except AlreadyExistsError:
            raise ObjectExists(f"{self.url}: cannot {what} {name!r}: the store says that it exists") from None
        except (BaseError, OSError, ValueError) as error:
            if what == "delete" and NO_OBJECT.search(str(error)):
                raise ObjectNotFound(f"{self.url}: cannot delete {name!r}: there is no such object") from None
            raise StorageError(f"{self.url}: cannot {what} {name!r}: {_reason(error)}") from None


def _listed(store: Any, prefix: str, after: str | None) -> list[ObjectInfo]:
    """Return a listing. Raises `ValueError` for a listing that does not end."""
    found: list[ObjectInfo] = []
    begun: set[str] = set()
    for page in obstore.list(store, prefix=prefix or None, offset=after, chunk_size=LISTED_AT_ONCE):
        if page and page[0]["path"] in begun:
            raise ValueError(f"the listing comes again to {page[0]['path']!r} after {len(found)} objects")
        begun.update(meta["path"] for meta in page[:1])
        found += [ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp()) for meta in page]
        if len(found) > LISTED_MAX:
            raise ValueError(f"the listing has more than {LISTED_MAX} objects")
    return found


def _reason(error: BaseException) -> str:
    """Return the text of obstore's error without its debug output, and with a plain reason for a failed connection."""
    text, _, source = str(error).partition("\n\nDebug source")
    text = text.strip() or type(error).__name__
    reason = next((words for marker, words in CONNECTION_REASONS.items() if re.search(marker, source)), None)
    return text if reason is None else f"{text} ({reason})"


class FileStore(ObstoreStore):
    """Files below a folder. Emptied folders are removed; a concurrent put that fails because of that tries again.

    Symbolic links below the folder are not followed: nothing is written, listed or deleted through them. Large files
    are written, and files deleted, without parallelism: obstore would use ten threads and leave no processor to others.
    """

    multipart_bytes_min = math.inf

    def __init__(self, url: str, path: str, *, make: bool, private: bool = True) -> None:
        if make and private and not Path(path).exists():
            make_private_folder(Path(path))
        super().__init__(url, LocalStore(path, mkdir=make))
        self._path = path
        self._private = private

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._write(name, lambda: super(FileStore, self).put(name, data))

    def create(self, name: str, data: bytes) -> None:
        self._write(name, lambda: super(FileStore, self).create(name, data))

    def _write(self, name: str, write: Callable[[], None]) -> None:
        """Write a file into its folder. A private file gets its permissions only afterwards, so its folder is private
        too."""
        refuse_links(self._path, name)
        file = Path(self._path, name)

        def write_privately() -> None:
            # Another process removes empty folders at the same moment: the put makes them again.
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                make_private_folder(file.parent)
            write()
            with contextlib.suppress(FileNotFoundError):
                file.chmod(0o600)

        if not self._private:
            self._in_folder(write)
        else:
            self._in_folder(lambda: self._do("put", name, write_privately))

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        _require_folder(prefix)
        found = self._do("list", prefix, lambda: list(files_below(self._path, prefix)))
        return sorted(info for info in found if after is None or info.name > after)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._do("delete", name, partial(remove_file, self._path, name))

    @staticmethod
    def _in_folder(write: Callable[[], None]) -> None:
        for attempt in range(CREATE_FOLDER_ATTEMPTS_MAX):
            try:
                return write()
            except (ObjectExists, ObjectNotFound):
                raise
            except StorageError as error:
                # The folder is made before anything is written, so this does not repeat a put.
                if "Unable to create dir" not in str(error) or attempt + 1 == CREATE_FOLDER_ATTEMPTS_MAX:
                    raise
        raise AssertionError("unreachable")


class PublicFileStore(FileStore):
    """A folder that other programs read as a table. They skip names that begin with `_`.

    obstore writes to `<name>#1` and then renames it. A process that dies in between would leave that file for readers
    of the table, so the file is first written under a name that they skip.
    """

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        refuse_links(self._path, name)
        folder, slash, base = name.rpartition("/")
        unfinished = f"{folder}{slash}_{base}.{uuid.uuid4().hex}"
        super().put(unfinished, data)
        self._do("put", name, lambda: obstore.rename(self._store, unfinished, name))


def _require_folder(prefix: str) -> None:
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"a listing takes a folder that ends in '/' or '', not {prefix!r}")


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, with access only for this user."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def file_store(url: str, path: str, *, make: bool = True, public: bool = False, private: bool = True) -> ObjectStore:
    """Open a store in a folder. `make`: create the folder, which must exist otherwise. `public`: other programs read it
    as a table. `private`: only this user may access the files that the store makes."""
    if not make and not Path(path).is_dir():
        raise StorageError(f"storage {url}: there is no such folder")
    kind = PublicFileStore if public else FileStore
    try:
        return kind(url, path, make=make, private=private)
    except (BaseError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise StorageError(f"storage {url}: the folder cannot be made or read: {reason}") from None


def memory_store(url: str) -> ObjectStore:
    """Return the store in this process's memory under that URL."""
    with _shared_lock:
        if url not in _shared:
            _shared[url] = ObstoreStore(url, MemoryStore())
        return _shared[url]


def cloud_store(url: str, storage_options: Mapping[str, str]) -> ObjectStore:
    """Open a store at a cloud provider, or at a service with the same protocol."""
    config, client = _split_options(storage_options)
    client.setdefault("connect_timeout", CONNECT_TIMEOUT)
    remember_options(config)
    remember_options(client)
    remember_environment()
    _check_urls({**config, **client})
    try:
        opener: Any = from_url
        store = opener(url, config=config, client_options=client, retry_config={"max_retries": 0})
    except (BaseError, OSError, ValueError, TypeError) as error:
        raise SettingsError(
            f"storage {url}: cannot be opened with storage_options {sorted(storage_options)}: {_reason(error)}"
        ) from None
    return ObstoreStore(url, store)


def _check_urls(options: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a URL that would make obstore panic at its first request."""
    for name, value in options.items():
        if name.endswith(("endpoint", "url")):
            try:
                _ = urlsplit(str(value)).port
            except ValueError:
                raise SettingsError(
                    f"storage_options[{name!r}] is no URL: its host and port cannot be read; escape characters like "
                    "/, @ and # in a password as %2F, %40 and %23"
                ) from None


def _split_options(storage_options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide options into the provider's and the HTTP client's, as obstore expects them."""
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for key, value in storage_options.items():
        lowered = key.lower()
        bare = PROVIDER_PREFIX.sub("", lowered)
        if bare in CLIENT_OPTIONS:
            client[bare] = value
        else:
            config[lowered] = value
    return config, client
