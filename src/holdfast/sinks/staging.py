"""Committables, and rows staged as Arrow in the job's own storage.

Invariants: a staged object's name is new for every attempt, so nothing is overwritten; a committable holds the size and
checksum of the object that it names, and a reader checks both. Small outputs are inside the committable, which is
stored with the checkpoint, so they need no object of their own. The JobMaster decides when staged objects are deleted;
the sink decides how the rows are published.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa

from holdfast.errors import CorruptObject, ObjectNotFound, PublishFailed
from holdfast.failpoints import hit
from holdfast.ids import UNIT_DIGITS
from holdfast.sinks.base import Owner, PublishContext, StageContext
from holdfast.storage import checksum, names, reading
from holdfast.storage.lost import ADVICE
from holdfast.storage.reach import check_put_if_absent
from holdfast.storage.store import ObjectStore

INLINE_BYTES_MAX = 8 * 1024
"""Bytes of Arrow data up to which rows are kept inside the committable. A higher value makes fewer objects and larger
records."""

STAGED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of rows in memory at which they are written to a staged file. A higher value makes fewer, larger files."""

SMALL_BYTES_MAX = 256 * 1024
"""Bytes of a piece up to which a sink of files gathers it with other pieces of the checkpoint into one file."""

PORTION_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of rows and files that a publication holds in the driver's memory at once; a single committable may be
larger."""

TRANSFER_THREADS_MAX = 8

T = TypeVar("T")
R = TypeVar("R")


class StagedRows(msgspec.Struct, frozen=True, tag="rows-1", tag_field="kind"):
    """An Arrow IPC stream: inside `data`, or an object of the job's storage."""

    rows: int
    size_bytes: int
    crc32: int
    memory_bytes: int
    """Bytes that the rows take in memory once they are read."""
    name: str | None = None
    data: bytes = b""


class StagedParquet(msgspec.Struct, frozen=True, tag="parquet-1", tag_field="kind"):
    """A Parquet file below `_staging/` of a target, and the folder of the target it will be copied to."""

    rows: int
    size_bytes: int
    crc32: int
    name: str
    folder: str


class StagedDeltaFile(msgspec.Struct, frozen=True, tag="delta-file-1", tag_field="kind"):
    """A data file in a Delta table's folder that no commit names yet: the fields of its add action."""

    rows: int
    size_bytes: int
    path: str
    partition_values: dict[str, str | None]
    modification_time_ms: int
    stats: str


class StagedCommittables(msgspec.Struct, frozen=True, tag="gathered-1", tag_field="kind"):
    """Other committables, stored as an object of the job's storage (see `gathered.py`)."""

    count: int
    size_bytes: int
    crc32: int
    name: str


Committable = StagedRows | StagedParquet | StagedDeltaFile | StagedCommittables
F = TypeVar("F", StagedRows, StagedParquet, StagedDeltaFile)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Committable)


def encode(committable: Committable) -> bytes:
    """Encode a committable for the checkpoint's record. The tag carries the version."""
    return _encoder.encode(committable)


def decode_rows(encoded: Iterable[bytes], owner: Owner) -> list[StagedRows]:
    """Decode the committables of a sink that stages only rows, in order. Raises `CorruptObject`, see `decode_owned`."""
    found = [decode_owned(data, owner, StagedRows) for data in encoded]
    return [one for one in found if isinstance(one, StagedRows)]


@dataclass
class Portion(Generic[F]):
    """Consecutive committables of a group of a sink of files: small pieces as rows, and the sink's own files, both in
    order."""

    number: int
    start: int
    """Number of the group's committables before this portion."""
    rows: list[StagedRows] = field(default_factory=list)
    files: list[F] = field(default_factory=list)
    memory_bytes: int = 0

    @property
    def stop(self) -> int:
        return self.start + len(self.rows) + len(self.files)


def portions(
    encoded: Iterable[bytes], kind: type[F], owner: Owner, bytes_max: int | None = None, start: int = 0
) -> Iterator[Portion[F]]:
    """Cut a group, from its `start`th committable on, into portions whose rows and files take about `bytes_max`.

    No portion is empty. The cuts depend only on the group, `start` and `bytes_max`. Raises `CorruptObject`, see
    `decode_owned`.
    """
    bytes_max = PORTION_BYTES_MAX if bytes_max is None else bytes_max
    portion: Portion[F] = Portion(0, start)
    for data in islice(encoded, start, None):
        one = decode_owned(data, owner, StagedRows, kind)
        size = one.memory_bytes if isinstance(one, StagedRows) else one.size_bytes
        if portion.memory_bytes + size > bytes_max and portion.stop > portion.start:
            yield portion
            portion = Portion(portion.number + 1, portion.stop)
        if isinstance(one, StagedRows):
            portion.rows.append(one)
        elif isinstance(one, kind):
            portion.files.append(one)
        portion.memory_bytes += size
    if portion.stop > portion.start:
        yield portion


def decode_owned(data: bytes, owner: Owner, *kinds: type[Committable]) -> Committable:
    """Decode a committable of a sink of this job. Raises `CorruptObject` as `decode_one` does, and if the committable
    names a file that another sink staged: several jobs may have files at a target, and named files are published and
    deleted."""
    committable = decode_one(data, owner.sink, *kinds)
    if not _is_owned(committable, owner):
        raise CorruptObject(
            f"{_what(data, owner.sink)} names {_places(committable)}, expected a file that this sink of job id "
            f"{owner.job} staged; restore the object that holds it from a copy"
        )
    return committable


def decode_one(data: bytes, sink: str, *kinds: type[Committable]) -> Committable:
    """Decode a committable, whichever process staged it. If `kinds` are given, it must be of these.

    Raises
    ------
    CorruptObject
        The committable cannot be read, has a version unknown to this release, was made by another kind of sink, or
        names a place at which no output is staged.
    """
    what = _what(data, sink)
    problem = "cannot be read; expected a committable written by this or an earlier release of Holdfast"
    committable: Committable = reading.decode(what, data, _decoder, problem)
    if not _is_staged_output(committable):
        raise CorruptObject(
            f"{what} names {_places(committable)}, expected an object below {names.STAGING} or a file that its sink "
            "has written; restore the object that holds it from a copy"
        )
    if kinds and not isinstance(committable, kinds):
        raise CorruptObject(
            f"a committable of sink {sink!r} is a {type(committable).__name__}, expected {kinds[-1].__name__}: a sink "
            "of another kind staged it; publish it with the old sink first, or rename the new sink"
        )
    return committable


def _what(data: bytes, sink: str) -> str:
    return f"a committable of sink {sink!r} ({len(data)} bytes)"


def _places(committable: Committable) -> str:
    if isinstance(committable, StagedDeltaFile):
        return repr(committable.path)
    folder = f" for folder {committable.folder!r}" if isinstance(committable, StagedParquet) else ""
    return f"{committable.name!r}{folder}"


def _is_staged_output(committable: Committable) -> bool:
    """True if a committable names only files and objects in places for staged output, since the named ones are copied
    and deleted."""
    if isinstance(committable, StagedDeltaFile):
        return _is_relative(committable.path) and _data_file_of(committable) is not None
    if isinstance(committable, StagedParquet) and not _is_relative(committable.folder or "a"):
        return False
    return committable.name is None or _staged_name_of(committable) is not None


def _is_owned(committable: Committable, owner: Owner) -> bool:
    if isinstance(committable, StagedDeltaFile):
        file = _data_file_of(committable)
        return file is not None and (owner.job is None or file[1] in (None, owner.digest))
    if committable.name is None:
        return True
    name = _staged_name_of(committable)
    return name is not None and owner.job in (None, name.job_id) and sink_of(name) == owner.sink


def _staged_name_of(committable: StagedRows | StagedParquet | StagedCommittables) -> names.StagedName | None:
    """Parts of the staged object's name; those in a target's folder begin with `_`."""
    name = committable.name or ""
    if isinstance(committable, StagedParquet):
        name = name[1:] if name.startswith("_") else ""
    parsed = names.parse(name)
    return parsed if isinstance(parsed, names.StagedName) else None


def data_file(owner: Owner) -> str:
    """A new name at each call for a data file of a sink, in a folder in which others have files, too."""
    return f"part-{owner.digest}-{uuid4().hex}{_DATA_FILE_SUFFIX}"


def _data_file_of(committable: StagedDeltaFile) -> "re.Match[str] | None":
    """Match of a name made by `data_file`; its group is the owner's digest, which earlier releases left out."""
    return _DATA_FILE.fullmatch(committable.path.rpartition("/")[2])


_DATA_FILE_SUFFIX = ".snappy.parquet"
_DATA_FILE = re.compile(rf"part-(?:([0-9a-f]{{16}})-)?[0-9a-f]{{32}}{re.escape(_DATA_FILE_SUFFIX)}", re.ASCII)


def _is_relative(path: str) -> bool:
    """True if a path of folders, with or without a slash at its end, stays below the folder that it is relative to."""
    return {"", ".", ".."}.isdisjoint(path.removesuffix("/").split("/")) and "://" not in path and "\0" not in path


def staged_name(context: StageContext, index: int, suffix: str) -> str:
    """A name below the run's staging folder that no other attempt, unit, batch or sink uses."""
    unit = f"{context.batch:0{names.DIGITS}d}-{context.unit:0{UNIT_DIGITS}d}"
    return f"{context.folder}/{names.escape(context.sink)}/{unit}-{names.escape(context.attempt)}-{index:04d}{suffix}"


def sink_of(name: names.StagedName) -> str | None:
    """Sink in a name made by `staged_name`; None if there is none."""
    escaped, slash, _ = name.rest.partition("/")
    return names.unescape(escaped) if slash else None


def batch_of(name: names.StagedName) -> int | None:
    """Batch number in a name made by `staged_name`; None for other names."""
    match = _STAGED_BATCH.match(name.rest)
    return None if match is None else int(match[1])


_STAGED_BATCH = re.compile(rf"[^/]+/(\d{{{names.DIGITS}}})-", re.ASCII)


def pieces(batches: Iterator[pa.RecordBatch], bytes_max: int = STAGED_BYTES_MAX) -> Iterator[pa.Table]:
    """Yield the rows in order as tables of about `bytes_max` bytes, none of them empty."""
    held: list[Any] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= bytes_max:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def stage_rows(tables: Iterator[pa.Table], context: StageContext) -> list[bytes]:
    """Stage rows as Arrow for a `publish` that reads them back with `read_rows`."""
    return [encode(stage_table(table, context, index)) for index, table in enumerate(tables)]


def stage_table(table: pa.Table, context: StageContext, index: int) -> StagedRows:
    """Stage a single piece; `index` distinguishes it from others of the same attempt."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue().to_pybytes()
    crc32 = checksum.crc32(data)
    if len(data) <= INLINE_BYTES_MAX:
        return StagedRows(table.num_rows, len(data), crc32, table.nbytes, data=data)
    name = staged_name(context, index, ".arrow")
    context.store.put(name, data)
    hit("sink.staged")
    return StagedRows(table.num_rows, len(data), crc32, table.nbytes, name=name)


def read_rows(staged: Sequence[StagedRows], context: PublishContext) -> pa.Table:
    """Read all rows of a group, in order; a column that only some files have is null in the others' rows.

    Raises
    ------
    PublishFailed
        A staged object is gone, or two of them have the same column with different types.
    CorruptObject
        A staged object was altered.
    """
    tables = transfer(lambda one: _read_table(one, context), staged)
    if not tables:
        return context.schema.empty_table()
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowInvalid as error:
        raise PublishFailed(
            f"sink {context.sink!r}: the rows staged for a checkpoint have different types in a column: {error}"
        ) from error


def _read_table(staged: StagedRows, context: PublishContext) -> pa.Table:
    if staged.name is None:
        return open_rows(staged.data, staged, f"sink {context.sink!r}: rows inside a committable")
    data = fetch(context.store, staged.name, staged.size_bytes, staged.crc32, context.sink)
    return open_rows(data, staged, staged.name)


def open_rows(data: bytes, staged: StagedRows, where: str) -> pa.Table:
    """Open the table in an Arrow stream that `stage_rows` wrote."""
    check(data, staged.size_bytes, staged.crc32, where)
    table = reading.read_table(where, data)
    if table.num_rows != staged.rows:
        raise CorruptObject(f"{where}: {table.num_rows} rows found, {staged.rows} were staged")
    return table


def fetch(store: ObjectStore, name: str, size_bytes: int, crc32: int, sink: str) -> bytes:
    """Read and check a staged object. Raises `PublishFailed` if the object is gone: trying again cannot bring it
    back."""
    try:
        data = store.get(name)
    except ObjectNotFound as error:
        raise PublishFailed(
            f"sink {sink!r}: staged file {name!r} is gone from {store.url}: unless another JobMaster has published and "
            f"dropped it: {ADVICE}"
        ) from error
    check(data, size_bytes, crc32, f"{store.url}: {name}")
    return data


def check(data: bytes, size_bytes: int, crc32: int, where: str) -> None:
    """Compare the data with the committable's size and checksum."""
    if len(data) != size_bytes or checksum.crc32(data) != crc32:
        raise CorruptObject(
            f"{where}: {len(data)} bytes with checksum {checksum.crc32(data):#010x}, expected {size_bytes} bytes with "
            f"checksum {crc32:#010x}; nothing of it was used"
        )


def discard_rows(staged: Sequence[StagedRows], context: PublishContext) -> None:
    """Delete the staged objects; missing objects are no error."""
    context.store.delete([one.name for one in staged if one.name is not None])


def probe(store: ObjectStore, folder: str, *, exclusive: bool = False) -> None:
    """Check that a target can be written to: write and delete an empty object. Raises `StorageError`.

    `exclusive`: the target relies on put-if-absent. Raises `JobRefused` if it ignores the condition.
    """
    name = f"{folder}/probe-{uuid4().hex}"
    store.put(name, b"")
    try:
        if exclusive:
            check_put_if_absent(store, name, b"")
    finally:
        store.delete([name])


def transfer(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call `call` for each item, several at a time; results are in order. The first error is raised after all calls
    have ended."""
    if len(items) <= 1:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(TRANSFER_THREADS_MAX, len(items)), thread_name_prefix="sink-transfer") as pool:
        return list(pool.map(call, items))
