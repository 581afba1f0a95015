"""Sink into a folder of Parquet files.

    <url>/_staging/<job id>/<epoch>/<run>/<sink>/…         staged; readers of the folder skip it
    <url>/_published/<job id>/<sink>                       the number that was published last, in decimal digits
    <url>/<column=value>/…/part-<sink digest>-<number>-<index>.parquet
    <url>/<column=value>/…/part-<sink digest>-<number>-rows-<portion>.parquet   small pieces, gathered

Small pieces are staged as rows in the job's storage instead, and gathered into a file for each partition and portion.
Invariants: a published name depends only on job id, sink, number and place in the group, and the file's content only on
the staged rows and the group's layout, so publishing again changes nothing. A file becomes visible as a whole; a
checkpoint's files become visible in turn. `<url>/<column=value>/…/_SUCCESS` marks a finished partition: it is written
after all files of the group whose watermark has passed the partition's end.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from holdfast.errors import JobRefused, ObjectNotFound, PublishFailed, SettingsError, StorageError
from holdfast.failpoints import hit
from holdfast.sinks import staging
from holdfast.sinks.base import Gone, PublishContext, Sink, SinkContext, StageContext
from holdfast.sinks.partition_time import MARKER, PartitionTime, unmarked_folders
from holdfast.sinks.partitions import (
    divide,
    folder,
    parquet_bytes,
    parquet_refusal,
    partition_differences,
    unstorable,
    unwritable,
)
from holdfast.sinks.staging import (
    SMALL_BYTES_MAX,
    StagedParquet,
    check,
    discard_rows,
    encode,
    fetch,
    pieces,
    portions,
    probe,
    read_rows,
    stage_table,
    staged_name,
    transfer,
)
from holdfast.storage import checksum, names
from holdfast.storage.counted import counted
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore, open_store
from holdfast.watermarks import FIRST_US


class ParquetLayout(msgspec.Struct, frozen=True):
    """Settings that decide into which files a group's small pieces go."""

    partition_by: tuple[str, ...]
    portion_bytes_max: int


@dataclass(repr=False)
class ParquetSink(Sink):
    """Appends rows to Parquet files below `url`, in Hive folders for `partition_by`. `storage_options`: its store's."""

    url: str
    partition_by: Sequence[str] = ()
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    finished: PartitionTime | None = None
    """The times of partitions: `_SUCCESS` is written into partitions whose end the watermark has passed."""

    def __post_init__(self) -> None:
        if isinstance(self.partition_by, str):
            raise SettingsError(f"{type(self).__name__}(partition_by={self.partition_by!r}): expected column names")
        self.partition_by = tuple(self.partition_by)
        self._unfinished: set[str] | None = None
        """Folders of partitions that may lack `_SUCCESS`; None before the first publication."""

    @property
    def kind(self) -> str:
        return "parquet"

    @property
    def setting(self) -> str:
        """The setting that holds the URL, for messages."""
        return f"{type(self).__name__} url"

    @property
    def private(self) -> bool:
        """True if files on a disk must be readable by this user only. For a table, the umask decides."""
        return False

    @property
    def target(self) -> tuple[str, Mapping[str, str]]:
        return self.url, self.storage_options

    def prepare(self, schema: pa.Schema, context: SinkContext) -> None:
        refusal = parquet_refusal(schema)
        found = partition_differences(schema, self.partition_by) + ([refusal] if refusal else [])
        if self.finished is not None and not (self.partition_by and context.has_watermark):
            found.append("finished= needs partition_by=, and a watermark for all rows: declare with_watermark(...)")
        if found:
            raise JobRefused(f"sink {context.sink!r} cannot write to {self.url}: " + "; ".join(found))
        try:
            probe(self._open(context), "_staging")
        except StorageError as error:
            raise JobRefused(f"sink {context.sink!r} cannot write to {self.url}: {error}") from error

    def last_number(self, context: SinkContext) -> int:
        """Read the noted number. An earlier release noted none; then the names of published files show it."""
        store = self._open(context)
        with suppress(ObjectNotFound, ValueError):
            return int(store.get(_last(context.job_id, context.sink)))
        published = re.compile(rf"(?:.*/)?part-{context.owner.digest}-(\d{{{names.DIGITS}}})-.*")
        found = (published.fullmatch(info.name) for info in store.list(""))
        return max((int(match[1]) for match in found if match), default=0)

    def refused(self, rows: pa.RecordBatch) -> dict[int, str]:
        return {**unstorable(rows), **unwritable(rows, self.partition_by)}

    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        store = self._open(context)
        staged: list[bytes] = []
        for rows in pieces(batches):
            if rows.nbytes <= SMALL_BYTES_MAX:
                staged.append(encode(stage_table(rows, context, len(staged))))
                continue
            for part in divide(rows, self.partition_by):
                data = parquet_bytes(part.rows)
                name = "_" + staged_name(context, len(staged), ".parquet")
                store.put(name, data)
                hit("sink.staged")
                one = StagedParquet(part.rows.num_rows, len(data), checksum.crc32(data), name, folder(part.values))
                staged.append(encode(one))
        return staged

    @property
    def awaited_us(self) -> int | None:
        if self.finished is None or self._unfinished is None:
            return None if self.finished is None else FIRST_US
        ends = [self.finished.end_us(one) for one in self._unfinished]
        return min((end_us for end_us in ends if end_us is not None), default=None)

    def layout(self, context: PublishContext) -> bytes:
        return msgspec.msgpack.encode(ParquetLayout(tuple(self.partition_by), staging.PORTION_BYTES_MAX))

    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        layout = msgspec.msgpack.decode(context.layout or self.layout(context), type=ParquetLayout)
        store = self._open(context)
        prefix = _published_prefix(context, number)
        published = 0
        folders: set[str] = set()
        for portion in portions(committables, StagedParquet, context.owner, layout.portion_bytes_max):
            if not portion.number:
                store.put(_last(context.job_id, context.sink), str(number).encode())
            _copy_all(portion.files, store, prefix, published, context)
            published += len(portion.files)
            folders.update(one.folder for one in portion.files)
            if portion.rows:
                for part in divide(read_rows(portion.rows, context), layout.partition_by):
                    name = f"{folder(part.values)}{prefix}-rows-{portion.number:06d}.parquet"
                    store.put(name, parquet_bytes(part.rows))
                    folders.add(folder(part.values))
                    hit("sink.parquet.copied")
        if self.finished is not None:
            self._mark_finished(self.finished, store, folders, context.watermark_us)

    def _mark_finished(
        self, finished: PartitionTime, store: ObjectStore, written: set[str], watermark_us: int | None
    ) -> None:
        """Write `_SUCCESS` into partitions whose end the watermark has passed. Rows that come later renew it."""
        if self._unfinished is None:
            self._unfinished = unmarked_folders(info.name for info in store.list(""))
        self._unfinished |= written
        for one in sorted(self._unfinished):
            end_us = finished.end_us(one)
            if end_us is not None and watermark_us is not None and end_us <= watermark_us:
                store.put(f"{one}{MARKER}", b"")
                self._unfinished.discard(one)

    def discard(self, committables: Iterable[bytes], context: PublishContext) -> None:
        store = self._open(context)
        for portion in portions(committables, StagedParquet, context.owner):
            discard_rows(portion.rows, context)
            store.delete([one.name for one in portion.files])

    def sweep(self, gone: Gone, named: Collection[bytes], context: PublishContext) -> None:
        kept = {one.name for portion in portions(named, StagedParquet, context.owner) for one in portion.files}
        store = self._open(context)
        dropped = []
        for info in store.list(f"_staging/{context.job_id}/"):
            parsed = names.parse(info.name.removeprefix("_"))
            if isinstance(parsed, names.StagedName) and staging.sink_of(parsed) == context.sink and gone(parsed):
                dropped.append(info.name)
        store.delete([name for name in dropped if name not in kept])

    def _open(self, context: SinkContext | StageContext | PublishContext) -> ObjectStore:
        opened = open_store(self.url, self.storage_options, public=True, private=self.private, whose=self.setting)
        return counted(RetryingStore(opened), context.store)


def _published_prefix(context: PublishContext, number: int) -> str:
    return f"part-{context.owner.digest}-{number:0{names.DIGITS}d}"


def _last(job_id: str, sink: str) -> str:
    return f"_published/{job_id}/{names.escape(sink)}"


def _copy_all(
    files: Sequence[StagedParquet], store: ObjectStore, prefix: str, first: int, context: PublishContext
) -> None:
    """Copy staged files to their places, several at a time; `first` is the number of the first file in its group."""

    def copy(index: int) -> None:
        one = files[index]
        _copy(store, one, f"{one.folder}{prefix}-{first + index:06d}.parquet", context)
        hit("sink.parquet.copied")

    transfer(copy, range(len(files)))


def _copy(store: ObjectStore, staged: StagedParquet, name: str, context: PublishContext) -> None:
    """Copy a staged file to its place, unless the file is gone because it was copied before."""
    try:
        data = fetch(store, staged.name, staged.size_bytes, staged.crc32, context.sink)
    except PublishFailed as gone:
        try:
            check(store.get(name), staged.size_bytes, staged.crc32, f"{store.url}: {name}")
        except ObjectNotFound:
            raise gone from None
    else:
        store.put(name, data)
