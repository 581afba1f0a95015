"""The oracle: expected results, recomputed from the input alone, and from nothing but the store."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq
from simulation_invariants import require, require_equal
from simulation_kit import LEVELS, MAX_PARALLELISM

from holdfast.formats.manifests import decode_manifest, load_manifests
from holdfast.graph.program import Program
from holdfast.journal.codec import decode_committables
from holdfast.journal.fence import journal_numbers, read_record, read_retained
from holdfast.journal.records import CheckpointRecord
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import restore_table, select
from holdfast.sinks.gathered import Named
from holdfast.storage import names
from holdfast.storage.reading import read
from holdfast.storage.store import ObjectStore, open_store

Rows = list[dict[str, Any]]


def first(rows: int, splits: int) -> dict[str, int]:
    """The positions in a `SequenceSource` after its first rows."""
    return {str(split): len(range(split, rows, splits)) for split in range(splits)}


def values(positions: Mapping[str, Any]) -> Iterator[int]:
    """All numbers before those positions."""
    splits = len(positions)
    for split, position in positions.items():
        yield from (int(split) + index * splits for index in range(position))


def counts(positions: Mapping[str, Any], keys: int) -> Counter[int]:
    """How often each key occurs before those positions."""
    return Counter(value % keys for value in values(positions))


def levels(found: Counter[int]) -> Counter[int]:
    """How many running counts there were of each remainder."""
    return Counter(n % LEVELS for count in found.values() for n in range(1, count + 1))


def check_running(found: Rows, key: str, expected: Counter[int], ordered: bool) -> None:
    """Every key's running count, each once, in order if the sink keeps an order."""
    by_key: dict[int, list[int]] = {}
    for row in found:
        by_key.setdefault(row[key], []).append(row["n"])
    wanted = {each: list(range(1, count + 1)) for each, count in expected.items()}
    found_counts = {each: values if ordered else sorted(values) for each, values in by_key.items()}
    require_equal(found_counts, wanted, "running counts")


def check_changes(found: Rows, key: str, expected: Counter[int], ordered: bool) -> None:
    """Every key's counts grow, none comes twice, and the last is the total."""
    by_key: dict[int, list[int]] = {}
    for row in found:
        by_key.setdefault(row[key], []).append(row["n"])
    for values in by_key.values():
        require((values if ordered else sorted(values)) == sorted(set(values)), "a count came twice or went back")
    require_equal({each: max(values) for each, values in by_key.items()}, dict(expected), "last counts")


def newest_checkpoint(store: ObjectStore) -> tuple[int, CheckpointRecord] | None:
    for number in sorted(journal_numbers(store), reverse=True):
        record = read_record(store, number)
        if isinstance(record, CheckpointRecord):
            return number, record
    return None


def needed_by(store: ObjectStore, record: CheckpointRecord) -> set[str]:
    """Every object that a restart from the record needs; read, so that a missing object is an error."""
    needed = set(record.objects())
    for name in record.manifests:
        for table in decode_manifest(name, read(store, name)).tables:
            needed.update(table.objects())
    for sink, groups in record.groups.items():
        for group in groups:
            stored = decode_committables(group.object, read(store, group.object))
            needed.update(Named(store, record.job).add(sink, stored.committables))
    for name in sorted(needed):
        store.get(name)
    return needed


def referenced(store: ObjectStore) -> set[str]:
    """The newest checkpoint, those that it retains, and every object that they need."""
    newest = newest_checkpoint(store)
    if newest is None:
        return set()
    kept = {newest[0]: newest[1], **read_retained(store, newest[1])}
    return {name for number, record in kept.items() for name in (names.journal(number), *needed_by(store, record))}


def unreferenced(store: ObjectStore) -> set[str]:
    """Names of objects that the newest checkpoint does not need; the job, takeover records and the history apart."""
    found = {info.name for info in store.list("") if not isinstance(names.parse(info.name), names.HistoryName)}
    found -= {names.job(), names.begun()}
    takeovers = {
        names.journal(number)
        for number in journal_numbers(store)
        if not isinstance(read_record(store, number), CheckpointRecord)
    }
    return found - takeovers - referenced(store)


def stored_state(store: ObjectStore, program: Program, operator: str, key: str, value: str) -> dict[int, int]:
    """A value of each key, as a restart would restore it."""
    newest = newest_checkpoint(store)
    assert newest is not None
    return restored(store, newest[1], program, operator, key, value)


def restored(
    store: ObjectStore, record: CheckpointRecord, program: Program, operator: str, key: str, value: str
) -> dict[int, int]:
    """A value of each key, as a restart from that record would restore it."""
    tables = restored_tables(store, record, program, operator)
    return {row[key]: row[value] for rows in tables.values() for row in rows}


def restored_tables(store: ObjectStore, record: CheckpointRecord, program: Program, operator: str) -> dict[str, Rows]:
    """All rows of an operator's tables, as a restart from that record would restore them."""
    manifests = load_manifests(store, record.manifests)
    handles = [table for manifest in manifests for table in manifest.tables]
    made = program.operators[operator].create(0, MAX_PARALLELISM)
    found: dict[str, Rows] = {}
    with ObjectCache(store) as fetch:
        for name, table in made.tables.items():
            restore_table(table, select(handles, operator, name, 0, MAX_PARALLELISM), fetch, 0, MAX_PARALLELISM)
            found[name] = table.snapshot().to_pylist()
    made.close()
    return found


def marks(positions: Mapping[str, Any], keys: int, buckets: int) -> tuple[set[int], dict[tuple[int, int], int]]:
    """State that `Marks` keeps: keys that were seen an odd number of times, and entries of (key, bucket) by threes."""
    odd = {key for key, count in counts(positions, keys).items() if count % 2}
    entries = Counter((value % keys, value % buckets) for value in values(positions))
    return odd, {place: count % 3 for place, count in entries.items() if count % 3}


def check_marks(store: ObjectStore, record: CheckpointRecord, program: Program, keys: int, buckets: int) -> None:
    """Check that the state of `Marks` follows from the input."""
    tables = restored_tables(store, record, program, "marks")
    odd = {row["k"] for row in tables["state"] if row["odd"] is not None}
    entries = {(row["k"], row["__map_key"]): row["__value"] for row in tables["seen.entries"]}
    wanted = marks(record.offsets["numbers"], keys, buckets)
    require_equal((odd, entries), wanted, f"state of marks at batch {record.batch}")


def parquet_rows(url: str) -> Rows:
    """The published rows of a `ParquetSink`, whatever is staged, with the numbers that their folders say."""
    store = open_store(url)
    found: Rows = []
    for info in store.list(""):
        if not info.name.startswith("_"):
            folders = [part.split("=") for part in info.name.split("/")[:-1]]
            said = {name: int(value) for name, value in folders}
            found += [said | row for row in pq.read_table(io.BytesIO(store.get(info.name))).to_pylist()]
    return found
