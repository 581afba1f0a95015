"""Names of stored objects. Only this module builds and parses them.

    job                                              created once
    journal/<n>                                      takeover | checkpoint records
    journal/begun                                    created once, after the first checkpoint record
    gathered/<epoch>/<checkpoint>/<uuid>             small logs, manifests and committables of a checkpoint
    manifests/<epoch>/<checkpoint>/tm-<tm>           a TaskManager's part of a checkpoint; of earlier versions
    manifests/<epoch>/<checkpoint>/sink-<sink>       a checkpoint's committables of a sink; of earlier versions
    dstl/<epoch>/<incarnation>/<uuid>                changelog objects, some with a manifest at their end
    shared/<epoch>/<incarnation>/<uuid>              materialized files
    sources/<epoch>/<uuid>                           discovery chunks
    segments/<epoch>/<source>/<n>-<uuid>             changes that a source stored; clean-up leaves them to the source
    segments/<epoch>/<source>/<n>-<uuid>.<uuid>      a part of a segment, as an object of its own
    staging/<job id>/<epoch>/<run>/…                 staged output; the rest of the name is the sink's
    probes/<epoch>/<uuid>                            written and read back at start()
    history/<epoch>                                  outcomes of the last checkpoints, for people
    leader/<epoch>                                   a leading driver's heartbeat, written again and again
    standby                                          written again and again by drivers in waiting
    sinks/<sink>/begun                               created once, by a sink whose target may forget its numbers
    savepoints/…                                     never touched by clean-up
    spark/<source>/…                                 Spark's own checkpoint of a streaming DataFrame; as savepoints
    savepoint                                        in the folder of a savepoint, written last
    owner                                            in each further storage of a job: created once, names the job

Numbers are padded to `DIGITS`, so that names sort in the order of the numbers. Names that users chose (sinks) are
escaped: every byte outside `A-Z a-z 0-9 - _ .` becomes `=xx`. `parse` is strict: it returns None for an unknown name,
and callers do not touch that object. A part of a gathered object, and a manifest in a changelog object, have a
reference (`holdfast.references`), which `part` parses.
"""

import re
import string
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple
from uuid import uuid4

from holdfast.errors import CorruptObject, SettingsError
from holdfast.ids import Epoch, Incarnation, JournalNumber, RunNumber
from holdfast.references import LENGTH, MEANING, RANGE

DIGITS = 12
NAME_BYTES_MAX = 200
JOURNAL = "journal/"
GATHERED = "gathered/"
MANIFESTS = "manifests/"
CHANGELOG = "dstl/"
SHARED = "shared/"
SOURCES = "sources/"
SEGMENTS = "segments/"
STAGING = "staging/"
PROBES = "probes/"
HISTORY = "history/"
LEADER = "leader/"
SINKS = "sinks/"
ROUTED_FOLDERS = (GATHERED, CHANGELOG, SHARED)
"""Folders that may lie in other storages than the job's own (`storage.routing`)."""
EPOCH_FOLDERS = (GATHERED, MANIFESTS, CHANGELOG, SHARED, SOURCES, STAGING, PROBES)
"""Folders of objects that belong to an epoch."""

_SAFE = frozenset((string.ascii_letters + string.digits + "-_.").encode())


class JobName(NamedTuple):
    """`job`"""


class JournalName(NamedTuple):
    """`journal/<n>`"""

    number: JournalNumber


class BegunName(NamedTuple):
    """`journal/begun`"""


class HistoryName(NamedTuple):
    """`history/<epoch>`"""

    epoch: Epoch


class LeaderName(NamedTuple):
    """`leader/<epoch>`"""

    epoch: Epoch


class StandbyName(NamedTuple):
    """`standby`"""


class SinkBegunName(NamedTuple):
    """`sinks/<sink>/begun`"""

    sink: str


class GatheredName(NamedTuple):
    """`gathered/<epoch>/<checkpoint>/<uuid>`"""

    epoch: Epoch
    checkpoint: int
    uuid: str


class ManifestName(NamedTuple):
    """`manifests/<epoch>/<checkpoint>/tm-<tm>`"""

    epoch: Epoch
    checkpoint: int
    task_manager: int


class CommittablesName(NamedTuple):
    """`manifests/<epoch>/<checkpoint>/sink-<sink>`"""

    epoch: Epoch
    checkpoint: int
    sink: str


class GatheredPart(NamedTuple):
    """A reference to a part of a gathered or changelog object: its range, and the name of the object that it
    replaces."""

    object: str
    offset: int
    length: int
    stands_for: ManifestName | CommittablesName


class ChangelogName(NamedTuple):
    """`dstl/<epoch>/<incarnation>/<uuid>`"""

    epoch: Epoch
    incarnation: Incarnation
    uuid: str


class SharedName(NamedTuple):
    """`shared/<epoch>/<incarnation>/<uuid>`"""

    epoch: Epoch
    incarnation: Incarnation
    uuid: str


class SourceName(NamedTuple):
    """`sources/<epoch>/<uuid>`"""

    epoch: Epoch
    uuid: str


class SegmentName(NamedTuple):
    """`segments/<epoch>/<source>/<n>-<uuid>`, and `.<part>` for a part in an object of its own"""

    epoch: Epoch
    source: str
    number: int
    uuid: str
    part: str = ""


class StagedName(NamedTuple):
    """`staging/<job id>/<epoch>/<run>/<rest>`"""

    job_id: str
    epoch: Epoch
    run: RunNumber
    rest: str


class ProbeName(NamedTuple):
    """`probes/<epoch>/<uuid>`"""

    epoch: Epoch
    uuid: str


RoutedName = GatheredName | ChangelogName | SharedName
"""Names of the objects in `ROUTED_FOLDERS`."""
EpochName = (
    GatheredName
    | ManifestName
    | CommittablesName
    | ChangelogName
    | SharedName
    | SourceName
    | SegmentName
    | StagedName
    | ProbeName
)
Name = JobName | JournalName | BegunName | HistoryName | LeaderName | StandbyName | SinkBegunName | EpochName


def job() -> str:
    return "job"


def savepoint() -> str:
    return "savepoint"


def owner() -> str:
    return "owner"


def journal(number: JournalNumber) -> str:
    return f"{JOURNAL}{_number(number)}"


def begun() -> str:
    return f"{JOURNAL}begun"


def history(epoch: Epoch) -> str:
    return f"{HISTORY}{_number(epoch)}"


def leader(epoch: Epoch) -> str:
    return f"{LEADER}{_number(epoch)}"


def standby() -> str:
    return "standby"


def sink_begun(sink: str) -> str:
    return f"{SINKS}{escape(sink)}/begun"


def manifest(epoch: Epoch, checkpoint: int, task_manager: int) -> str:
    return f"{MANIFESTS}{_number(epoch)}/{_number(checkpoint)}/tm-{_number(task_manager)}"


def committables(epoch: Epoch, checkpoint: int, sink: str) -> str:
    return f"{MANIFESTS}{_number(epoch)}/{_number(checkpoint)}/sink-{escape(sink)}"


def gathered_object(epoch: Epoch, checkpoint: int) -> str:
    """A new name at each call."""
    return f"{GATHERED}{_number(epoch)}/{_number(checkpoint)}/{uuid4().hex}"


def manifest_part(name: str, offset: int, length: int, task_manager: int) -> str:
    """Return the reference to a TaskManager's manifest in a gathered object."""
    return f"{name}{RANGE}{offset}{LENGTH}{length}{MEANING}tm-{_number(task_manager)}"


def manifest_behind_logs(name: str, offset: int, length: int, checkpoint: int, task_manager: int) -> str:
    """Return the reference to a TaskManager's manifest in a changelog object, whose name says no checkpoint."""
    return f"{name}{RANGE}{offset}{LENGTH}{length}{MEANING}{_number(checkpoint)}/tm-{_number(task_manager)}"


def committables_part(name: str, offset: int, length: int, sink: str) -> str:
    """Return the reference to a sink's committables in a gathered object."""
    return f"{name}{RANGE}{offset}{LENGTH}{length}{MEANING}sink-{escape(sink)}"


def changelog_object(epoch: Epoch, incarnation: Incarnation) -> str:
    """A new name at each call."""
    return f"{CHANGELOG}{_number(epoch)}/{_number(incarnation)}/{uuid4().hex}"


def shared_object(epoch: Epoch, incarnation: Incarnation) -> str:
    """A new name at each call."""
    return f"{SHARED}{_number(epoch)}/{_number(incarnation)}/{uuid4().hex}"


def source_chunk(epoch: Epoch) -> str:
    """A new name at each call."""
    return f"{SOURCES}{_number(epoch)}/{uuid4().hex}"


def segment(epoch: Epoch, source: str, number: int) -> str:
    """A new name at each call."""
    return f"{SEGMENTS}{_number(epoch)}/{escape(source)}/{_number(number)}-{uuid4().hex}"


def spark_checkpoint(source: str) -> str:
    """Return the folder of Spark's own checkpoint of a source, without a slash at its end."""
    return f"spark/{escape(source)}"


def segment_part(segment: str) -> str:
    """Return a new name for a part of that segment at each call."""
    return f"{segment}.{uuid4().hex}"


def staging_folder(job_id: str, epoch: Epoch, run: RunNumber) -> str:
    """Return the folder of a run's staged output, without a slash at its end."""
    if not is_id(job_id):
        raise ValueError(f"a job id is 32 hexadecimal digits, not {job_id!r}")
    return f"{STAGING}{job_id}/{_number(epoch)}/{_number(run)}"


def is_id(text: str) -> bool:
    """True if a text has the form of a job's or savepoint's id."""
    return _HEX.fullmatch(text) is not None


def staging_epoch_folder(job_id: str, epoch: Epoch) -> str:
    """Return the folder of everything that all runs of an epoch staged, for `list`."""
    return f"{staging_folder(job_id, epoch, RunNumber(0)).rpartition('/')[0]}/"


def probe(epoch: Epoch) -> str:
    """A new name at each call."""
    return f"{PROBES}{_number(epoch)}/{uuid4().hex}"


def incarnation_folders(epoch: Epoch, incarnation: Incarnation) -> tuple[str, str]:
    """Return the folders to which an incarnation of a TaskManager writes, for `list`."""
    path = f"{_number(epoch)}/{_number(incarnation)}/"
    return CHANGELOG + path, SHARED + path


def epoch_folders(epoch: Epoch) -> list[str]:
    """Return the folders to which all TaskManagers of an epoch write, for `list`."""
    return [f"{CHANGELOG}{_number(epoch)}/", f"{SHARED}{_number(epoch)}/"]


def sources_folder(epoch: Epoch) -> str:
    """Return the folder of an epoch's discovery chunks, for `list`."""
    return f"{SOURCES}{_number(epoch)}/"


def checkpoint_folders(epoch: Epoch) -> tuple[str, str]:
    """Return the folders of an epoch's checkpoints, for `list`."""
    return f"{GATHERED}{_number(epoch)}/", f"{MANIFESTS}{_number(epoch)}/"


def epoch_of_folder(folder: str) -> Epoch | None:
    """Return the epoch of all objects in a folder of `list`; None if the folder has objects of several epochs."""
    epoch = folder.split("/")[1:2]
    return Epoch(int(epoch[0])) if epoch and re.fullmatch(_N, epoch[0]) else None


def longest(sources: Iterable[str], sinks: Iterable[str]) -> str:
    """Return a name as long as the longest name of a job's objects. Raises `SettingsError` as `escape` does."""
    unit = "x" * 80  # batch, unit, attempt and number of a staged file
    found = [segment_part(segment(Epoch(0), source, 0)) for source in sources]
    found += [f"{staging_folder('0' * 32, Epoch(0), RunNumber(0))}/{escape(sink)}/{unit}" for sink in sinks]
    found += [segment_part(shared_object(Epoch(0), Incarnation(0)))]
    return max(found, key=len)


def escape(name: str) -> str:
    """Escape a user's name into a single path segment; `unescape` gives it back.

    Raises `SettingsError` for an empty name and for a name longer than `NAME_BYTES_MAX` when escaped.
    """
    dots_only = not name.strip(".")
    escaped = "".join(
        chr(byte) if byte in _SAFE and not dots_only else f"={byte:02x}"
        for byte in name.encode("utf-8", "surrogatepass")
    )
    if not name or len(escaped) > NAME_BYTES_MAX:
        raise SettingsError(f"name {name!r}: expected 1 to {NAME_BYTES_MAX} bytes when escaped, found {len(escaped)}")
    return escaped


def unescape(escaped: str) -> str | None:
    """Restore a name from its escaped form; None if `escape` cannot have made this form."""
    try:
        raw = re.sub(r"=([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), escaped).encode("latin-1")
        name = raw.decode("utf-8", "surrogatepass")
        return name if escape(name) == escaped else None
    except (UnicodeError, SettingsError):
        return None


def parse(name: str) -> Name | None:
    """Parse a name. Returns None if this module cannot have built it."""
    if name in _SINGLE:
        return _SINGLE[name]
    area, _, rest = name.partition("/")
    parser = _PARSERS.get(area + "/")
    match = parser.fullmatch(rest) if parser else None
    if match is None:
        return None
    return _build(area + "/", match.groupdict())


def part(reference: str) -> GatheredPart | None:
    """Parse the reference to a part of a gathered object, or to a manifest in a changelog object; None for anything
    else."""
    found = _PART.fullmatch(reference)
    whole = parse(found["object"]) if found is not None else None
    if found is None or not isinstance(whole, GatheredName | ChangelogName):
        return None
    checkpoint = f"{_number(whole.checkpoint)}/" if isinstance(whole, GatheredName) else ""
    stands_for = parse(f"{MANIFESTS}{_number(whole.epoch)}/{checkpoint}{found['meaning']}")
    if not isinstance(stands_for, ManifestName | CommittablesName if checkpoint else ManifestName):
        return None
    return GatheredPart(found["object"], int(found["offset"]), int(found["length"]), stands_for)


def meaning(reference: str) -> Name | None:
    """Parse a name. For the reference to a part, return the name of the object that the part replaces."""
    found = part(reference)
    return parse(reference) if found is None else found.stands_for


def check_same(name: str, built: Callable[..., str], *parts: object) -> None:
    """Check that the content of an object, or of a part of an object, fits its name: `built(*parts)` must give the
    name. Raises `CorruptObject`."""
    try:
        said = built(*parts)
    except (ValueError, SettingsError):
        said = f"of {', '.join(map(repr, parts))}, of which no name can be built"
    if name != said and (part(name) is None or meaning(name) != parse(said)):
        raise CorruptObject(
            f"{name}: holds the object {said}: the two were exchanged, or this one was copied to the wrong name; "
            "restore the object from a copy"
        )


def check_writer(name: str, said: str | None, jobs: Collection[str]) -> None:
    """Check the id of the job that wrote an object. `said`: the id in the object, None in old objects. `jobs`: the
    allowed ids; empty if any job may have written it. Raises `CorruptObject`."""
    if said is not None and jobs and said not in jobs:
        raise CorruptObject(
            f"{name}: was written by job id {said}, expected {' or '.join(sorted(jobs))}: it belongs to the storage of "
            "another job; restore the object from a copy"
        )


def epoch_of(name: str) -> int | None:
    """Return the epoch to which an object belongs; None for the job, the journal, the history, heartbeats and unknown
    names."""
    parsed = parse(name)
    return parsed.epoch if isinstance(parsed, EpochName) else None


_N = rf"\d{{{DIGITS}}}"
_SINGLE: dict[str, Name] = {job(): JobName(), begun(): BegunName(), standby(): StandbyName()}
_HEX = re.compile(r"[0-9a-f]{32}")
_DOTS = {"", ".", ".."}
"""Segments that no name contains, since file systems read them as other folders."""
_UUID = r"(?P<uuid>[0-9a-f]{32})"
_PARSERS = {
    JOURNAL: re.compile(rf"(?P<number>{_N})", re.ASCII),
    HISTORY: re.compile(rf"(?P<epoch>{_N})", re.ASCII),
    LEADER: re.compile(rf"(?P<epoch>{_N})", re.ASCII),
    SINKS: re.compile(r"(?P<sink>[^/]+)/begun", re.ASCII),
    GATHERED: re.compile(rf"(?P<epoch>{_N})/(?P<checkpoint>{_N})/{_UUID}", re.ASCII),
    MANIFESTS: re.compile(rf"(?P<epoch>{_N})/(?P<checkpoint>{_N})/(?:tm-(?P<tm>{_N})|sink-(?P<sink>[^/]+))", re.ASCII),
    CHANGELOG: re.compile(rf"(?P<epoch>{_N})/(?P<incarnation>{_N})/{_UUID}", re.ASCII),
    SHARED: re.compile(rf"(?P<epoch>{_N})/(?P<incarnation>{_N})/{_UUID}", re.ASCII),
    SOURCES: re.compile(rf"(?P<epoch>{_N})/{_UUID}", re.ASCII),
    SEGMENTS: re.compile(
        rf"(?P<epoch>{_N})/(?P<source>[^/]+)/(?P<number>{_N})-{_UUID}(?P<part>(?:\.[0-9a-f]{{32}})?)", re.ASCII
    ),
    STAGING: re.compile(rf"(?P<job>[0-9a-f]{{32}})/(?P<epoch>{_N})/(?P<run>{_N})/(?P<rest>.+)", re.ASCII | re.DOTALL),
    PROBES: re.compile(rf"(?P<epoch>{_N})/{_UUID}", re.ASCII),
}
_PART = re.compile(
    rf"(?P<object>[^{RANGE}]+){RANGE}(?P<offset>\d{{1,{DIGITS}}})\{LENGTH}(?P<length>\d{{1,{DIGITS}}}){MEANING}"
    r"(?P<meaning>.+)",
    re.ASCII | re.DOTALL,
)


def _build(area: str, found: dict[str, str]) -> Name | None:
    if area == JOURNAL:
        return JournalName(JournalNumber(int(found["number"])))
    if area == SINKS:
        name = unescape(found["sink"])
        return None if name is None else SinkBegunName(name)
    epoch = Epoch(int(found["epoch"]))
    if area in (HISTORY, LEADER):
        return (HistoryName if area == HISTORY else LeaderName)(epoch)
    if area == GATHERED:
        return GatheredName(epoch, int(found["checkpoint"]), found["uuid"])
    if area == MANIFESTS:
        if found["tm"] is not None:
            return ManifestName(epoch, int(found["checkpoint"]), int(found["tm"]))
        sink = unescape(found["sink"])
        return None if sink is None else CommittablesName(epoch, int(found["checkpoint"]), sink)
    if area == STAGING:
        if not _DOTS.isdisjoint(found["rest"].split("/")):
            return None
        return StagedName(found["job"], epoch, RunNumber(int(found["run"])), found["rest"])
    if area == SEGMENTS:
        source = unescape(found["source"])
        number, part = int(found["number"]), found["part"][1:]
        return None if source is None else SegmentName(epoch, source, number, found["uuid"], part)
    if area in (SOURCES, PROBES):
        return (SourceName if area == SOURCES else ProbeName)(epoch, found["uuid"])
    kind = ChangelogName if area == CHANGELOG else SharedName
    return kind(epoch, Incarnation(int(found["incarnation"])), found["uuid"])


def _number(value: int) -> str:
    if not 0 <= value < 10**DIGITS:
        raise ValueError(f"a number in an object's name is in [0, 10^{DIGITS}), not {value}")
    return f"{value:0{DIGITS}d}"
