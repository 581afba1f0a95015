"""The tree for a path as users write it."""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from holdfast.errors import SettingsError
from holdfast.hidden import hide_url, passwords_of
from holdfast.sources.files.local_tree import URL, LocalTree, name_of
from holdfast.sources.files.store_tree import StoreTree
from holdfast.sources.files.trees import FileTree, PathFilter


def open_tree(pattern: str, storage_options: Mapping[str, str], wanted: PathFilter) -> FileTree:
    """Return the tree for a path, a folder, a glob, or a URL of these; `wanted` filters paths. Does no I/O."""
    if passwords_of(pattern):
        raise SettingsError(f"{hide_url(pattern)!r}: credentials go into storage_options, not into the URL")
    if "://" not in pattern or pattern.startswith(URL):
        name = os.path.expanduser(name_of(pattern))  # noqa: PTH111
        return LocalTree(os.path.abspath(name), wanted)  # noqa: PTH100 (links stay as they are)
    parts = urlsplit(pattern)
    key_pattern = pattern.partition("://")[2].partition("/")[2]
    return StoreTree(f"{parts.scheme}://{parts.netloc}", key_pattern, storage_options, wanted)
