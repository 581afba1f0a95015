"""HDFS as a store, through hdfs-native: no JVM in the process.

    put       write a hidden file, then rename it over the object: readers see the old object or the new one
    create    write a hidden file, then rename it without replacing: HDFS refuses that if the object exists

A process that dies in between leaves a hidden file. Listings leave hidden files out, and the next listing of a folder
deletes its hidden files that are a day old. Empty folders are not removed: HDFS counts them like files, and a storage
has few of them.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any, TypeVar
from urllib.parse import SplitResult

from holdfast.errors import ObjectExists, ObjectNotFound, SettingsError, StorageError
from holdfast.hidden import remember_options
from holdfast.quantities import duration_s
from holdfast.storage.store import ObjectInfo
from holdfast.storage.urls import path_of

HIDDEN = "."
"""First letter of the names of unfinished files. Readers of tables skip such names, too."""
UNFINISHED_S_MAX = 86_400.0
"""Age in seconds above which an unfinished file counts as left by a dead process."""
TIMEOUT = "60s"
"""Time for a request, including its attempts at all NameNodes, unless the options set `timeout`."""
CALLS_MAX = 64
"""Most requests of a process at the same time."""
FAILOVER = {"dfs.client.failover.max.attempts": "4", "dfs.client.failover.sleep.base.millis": "200"}
"""Attempts of the client, unless the options or Hadoop's files set more. `RetryingStore` makes further attempts."""
OWN_OPTIONS = ("timeout", "connect_timeout", "hadoop_conf_dir", "kerberos_principal", "kerberos_keytab")

T = TypeVar("T")
_calls = ThreadPoolExecutor(CALLS_MAX, "holdfast-hdfs")


class HdfsStore:
    """An `ObjectStore` in a folder of HDFS."""

    def __init__(self, url: str, client: Any, folder: str, timeout_s: float) -> None:
        self.url = url
        self._client = client
        self._folder = folder.rstrip("/")
        self._timeout_s = timeout_s

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._do("put", name, lambda: self._write(name, data, overwrite=True))

    def create(self, name: str, data: bytes) -> None:
        self._do("create", name, lambda: self._write(name, data, overwrite=False))

    def get(self, name: str) -> bytes:
        return self._do("get", name, lambda: bytes(self._client.read(self._path(name)).read()))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        if length == 0:
            return b""

        def read() -> tuple[int, bytes]:
            reader = self._client.read(self._path(name))
            found = max(0, min(length, len(reader) - offset))
            return found, bytes(reader.read_range(offset, found)) if found else b""

        found, data = self._do("get a range of", name, read)
        if found != length:
            raise StorageError(f"{self.url}: {name} ends early: asked for {length} bytes from {offset}, found {found}")
        return data

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        if prefix and not prefix.endswith("/"):
            raise ValueError(f"a listing takes a folder that ends in '/' or '', not {prefix!r}")
        found = self._do("list", prefix, lambda: list(self._files(prefix)))
        return sorted(info for info in found if after is None or info.name > after)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._do("delete", name, lambda name=name: self._client.delete(self._path(name)))  # type: ignore[misc]

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _write(self, name: str, data: bytes | bytearray | memoryview, *, overwrite: bool) -> None:
        from hdfs_native import WriteOptions

        path = self._path(name)
        folder, _, base = path.rpartition("/")
        unfinished = f"{folder}/{HIDDEN}{base}.{uuid.uuid4().hex}"
        try:
            with self._client.create(unfinished, WriteOptions(create_parent=True)) as file:
                file.write(data)
            self._client.rename(unfinished, path, overwrite)
        except BaseException:
            with contextlib.suppress(Exception):
                self._client.delete(unfinished)
            raise

    def _files(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects of a folder, and delete the files that dead processes left in it."""
        root = f"{self._folder}/"
        try:
            for status in self._client.list_status(self._path(prefix).rstrip("/") or "/", True):
                if status.isdir:
                    continue
                modified_s = status.modification_time / 1000
                if not status.path.rpartition("/")[2].startswith(HIDDEN):
                    yield ObjectInfo(status.path.removeprefix(root), status.length, modified_s)
                elif modified_s < time.time() - UNFINISHED_S_MAX:
                    self._client.delete(status.path)
        except FileNotFoundError:
            return

    def _do(self, what: str, name: str, call: Callable[[], T]) -> T:
        """Make a request on another thread, since the client has no time-out for a host that does not answer."""
        shown = f"{self.url}: cannot {what} {name!r}"
        try:
            return _calls.submit(call).result(self._timeout_s)
        except NoAnswer:
            raise StorageError(f"{shown}: no answer within {self._timeout_s:g} s") from None
        except FileExistsError:
            raise ObjectExists(f"{shown}: HDFS says that it exists") from None
        except FileNotFoundError:
            raise ObjectNotFound(f"{shown}: there is no such object") from None
        except PermissionError as error:
            raise StorageError(
                f"{shown}: {_first_line(error)}: see the rights of the folder and HADOOP_USER_NAME"
            ) from None
        except Exception as error:
            raise StorageError(f"{shown}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return an error's text without the stack of the NameNode."""
    lines = str(error).replace("\\n", "\n").splitlines()
    return lines[0].strip(' "') if lines else type(error).__name__


_clients: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
_making = threading.Lock()


def hdfs_store(url: str, parts: SplitResult, storage_options: Mapping[str, str]) -> HdfsStore:
    """Open a folder of HDFS. `hdfs:///folder` is below `fs.defaultFS` of the configuration files.

    Raises
    ------
    SettingsError
        hdfs-native is not installed, or an option is not understood.
    """
    try:
        from hdfs_native import Client
    except ImportError:
        raise SettingsError(f"storage {url}: hdfs:// needs hdfs-native: pip install 'holdfast[hdfs]'") from None
    unknown = [key for key in storage_options if key not in OWN_OPTIONS and "." not in key]
    if unknown:
        raise SettingsError(
            f"storage {url}: {unknown[0]!r} in storage_options is not understood; allowed: {', '.join(OWN_OPTIONS)}, "
            "and Hadoop's own settings such as 'dfs.ha.namenodes.mycluster'"
        )
    remember_options({key: value for key, value in storage_options.items() if "password" in key or "secret" in key})
    server = f"hdfs://{parts.netloc}" if parts.netloc else None
    own = {key: value for key, value in storage_options.items() if key in OWN_OPTIONS}
    settings = {**FAILOVER, **{key: value for key, value in storage_options.items() if "." in key}}
    with _making:
        key = (str(server), tuple(sorted(storage_options.items())))
        if key not in _clients:
            try:
                _clients[key] = Client(
                    server,
                    settings,
                    own.get("hadoop_conf_dir"),
                    kerberos_principal=own.get("kerberos_principal"),
                    kerberos_keytab=own.get("kerberos_keytab"),
                )
            except Exception as error:
                raise SettingsError(
                    f"storage {url}: cannot be opened: {_first_line(error)}. Give host and port of the NameNode, or a "
                    "name service of the configuration in HADOOP_CONF_DIR or storage_options"
                ) from None
        client = _clients[key]
    return HdfsStore(url, client, path_of(parts), duration_s(own.get("timeout", TIMEOUT), "timeout"))
