"""Parsing of the URLs of stores and targets, and the lengths that stores allow."""

import posixpath
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.errors import SettingsError
from holdfast.hidden import hide, passwords_of, remember

KEY_BYTES_MAX = 1_024
"""Bytes of an object's key, its folders included, that S3, Google's and Azure's stores take."""
PATH_BYTES_MAX = 4_095
COMPONENT_BYTES_MAX = 255
"""Bytes of a path, and of each of its parts, that file systems in use take."""
PATHS = ("file", "hdfs")
"""Schemes of file systems, whose names are paths."""
PROVIDERS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az", "hdfs": "hdfs"}
"""Providers by their schemes: two schemes of a provider name the same buckets."""
UNFINISHED_BYTES = 40
"""Bytes by which the name of a file is longer until it is complete."""


def split_url(url: str, whose: str = "storage") -> SplitResult:
    """Split a URL, whose password no message shows from now on.

    Raises `SettingsError` if it is no URL, or if its path is not UTF-8, because different names would then become the
    same name.
    """
    remember(*passwords_of(url))
    try:
        parts = urlsplit(url)
        path_of(parts)
    except UnicodeError:
        raise SettingsError(
            f"{whose} {hide(url)!r}: the path has bytes that are not UTF-8: stores keep names as text, in which "
            "different bytes would become the same name. Rename the folder"
        ) from None
    except ValueError:  # its text may show a password
        raise SettingsError(f"{whose} {hide(url)!r}: cannot be read as a URL") from None
    return parts


def path_of(parts: SplitResult) -> str:
    """Return the path with its percent-escapes resolved. Raises `UnicodeError` if it is not UTF-8."""
    path = unquote(parts.path, errors="strict")
    path.encode()
    return path


def provider_of(url: str) -> str:
    """Return the provider of a URL, or its scheme if it has no provider."""
    scheme = split_url(url).scheme
    return PROVIDERS.get(scheme, scheme)


def plain_url(url: str) -> str:
    """Return a URL in the spelling in which stored objects name it, so that two spellings of a folder are equal."""
    parts = split_url(url)
    return f"{provider_of(url)}://{parts.netloc}{posixpath.normpath('/' + path_of(parts).lstrip('/'))}"


def refuse_long(url: str, longest: str, whose: str) -> None:
    """Raise `SettingsError` if names up to `longest` below a URL are longer than its store allows."""
    parts = split_url(url)
    path = path_of(parts).strip("/")
    if parts.scheme == "memory":
        return
    limit = PATH_BYTES_MAX - UNFINISHED_BYTES if parts.scheme in PATHS else KEY_BYTES_MAX
    found = len(f"{path}/{longest}".encode())
    if found > limit:
        raise SettingsError(
            f"{whose} {hide(url)!r}: the names of its objects would have up to {found} bytes, and the store takes "
            f"{limit}: shorten the URL's path ({len(path.encode())} bytes), or the names of sources and sinks"
        )
    part = max(path.split("/"), key=lambda each: len(each.encode()))
    if parts.scheme in PATHS and len(part.encode()) > COMPONENT_BYTES_MAX:
        raise SettingsError(
            f"{whose} {hide(url)!r}: a folder's name has {len(part.encode())} bytes, and file systems take "
            f"{COMPONENT_BYTES_MAX}: shorten it"
        )
