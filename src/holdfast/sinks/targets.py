"""Check that no two sinks and storages of a job share a folder.

The clean-up of a job deletes unneeded objects in its storage, and a reader of a folder reads every file below it as
rows. So a folder inside another is refused like the same folder, however the two URLs are spelled. Pure, except that
symbolic links are followed.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import PurePath

from holdfast.errors import JobRefused
from holdfast.sinks.base import Sink
from holdfast.storage.urls import PROVIDERS, path_of, split_url

_PREFIX = re.compile("^(aws|azure|google)_(storage_)?")
_PLACES = ("endpoint", "endpoint_url", "account_name")
"""Options, without the provider's prefix, that tell apart buckets of the same name."""


@dataclass(frozen=True)
class TargetFolder:
    """A folder at a provider."""

    provider: str
    bucket: str
    folders: tuple[str, ...]
    whose: Mapping[str, str]

    def shares(self, other: "TargetFolder") -> bool:
        """True if the two folders are the same or nested. Buckets of the same name count as the same if their owners
        are not stated."""
        if (self.provider, self.bucket) != (other.provider, other.bucket):
            return False
        if any(other.whose.get(option, value) != value for option, value in self.whose.items()):
            return False
        if self.provider == "memory":
            return self.folders == other.folders
        shorter = min(len(self.folders), len(other.folders))
        return self.folders[:shorter] == other.folders[:shorter]


def place_of(url: str, storage_options: Mapping[str, str]) -> TargetFolder | None:
    """Parse a URL into the folder that it names; None for a scheme that no store is opened for."""
    parts = split_url(url, "target")
    if parts.scheme == "memory":
        return TargetFolder("memory", parts.netloc, (parts.path,), {})
    if parts.scheme == "file":
        return TargetFolder("file", "", PurePath(os.path.realpath(path_of(parts))).parts, {})
    provider = PROVIDERS.get(parts.scheme)
    if provider is None:
        return None
    whose = {}
    for option, value in storage_options.items():
        bare = _PREFIX.sub("", option.lower())
        if bare in _PLACES:
            whose[bare.removesuffix("_url")] = str(value).rstrip("/")
    path = posixpath.normpath("/" + path_of(parts))
    return TargetFolder(provider, parts.netloc.partition("@")[0], tuple(filter(None, path.split("/"))), whose)


def refuse_shared_targets(
    storage: str,
    storage_options: Mapping[str, str],
    sinks: Mapping[str, Sink],
    others: Iterable[tuple[str, str, Mapping[str, str]]] = (),
) -> None:
    """Raise `JobRefused` if two sinks or storages of the job share a folder; both are named.

    `others`: the job's other storages, each with a name for messages, its URL and its options.
    """
    used = [("the job's storage", storage, place_of(storage, storage_options))]
    used += [(whose, url, place_of(url, options)) for whose, url, options in others]
    for name, sink in sinks.items():
        if sink.target is not None:
            url, options = sink.target
            used.append((f"sink {name!r}", url, place_of(url, options)))
    for (one, url, place), (other, other_url, other_place) in combinations(used, 2):
        if place is not None and other_place is not None and place.shares(other_place):
            raise JobRefused(
                f"{other} at {other_url} and {one} at {url} share a folder: {_relation(place, other_place)}. Give each "
                "a folder of its own, none inside another; unite streams for one target before you write them"
            )


def _relation(place: TargetFolder, other: TargetFolder) -> str:
    if place.folders == other.folders:
        return "both are the same folder"
    inside = len(other.folders) > len(place.folders)
    return "the first is inside the second" if inside else "the second is inside the first"
