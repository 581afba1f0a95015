"""How fast a TaskManager reads union state: the lists of all subtasks, a small object each. No Spark.

    python -m benchmarks.union_restore --json

A job of `--objects` subtasks made a checkpoint; each of its lists is in an object of its own. One of `--task-managers`
of the next start, at parallelism `--parallelism`, is deployed on a store that takes `--latency-ms` for each request:
its subtasks' own entries are restored, and each subtask's `open` asks for the union. `parallel_s` is the whole
deployment. `serial_s` is the time of a subtask that reads the objects in sequence; it is measured with
`serial_sampled` objects and extrapolated. `processor_s` is the part of `parallel_s` that is work of this process,
`peak_memory_mb` by how much its memory grew at most during the deployment.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
from obstore.store import MemoryStore

import holdfast as hf
from holdfast.clock import SystemClock
from holdfast.formats.handles import TableHandle
from holdfast.formats.log_objects import OBJECT_HEADER, ChangeSet, LogId, encode_pieces
from holdfast.functions.process.of_subtask.subtask_list import SubtaskList
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.keygroups import key_group_range
from holdfast.graph.program import Program
from holdfast.jobmaster.batches.deployment import Layout, subtasks_of, whole_tables
from holdfast.protocol.taskmanager import Deployment
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.whole import read_whole
from holdfast.state.table import merge_changes
from holdfast.storage import names
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.checkpoints import Answers
from holdfast.taskmanager.hosting import host
from holdfast.testing import SlowStore
from holdfast.uploads.janitor import DeletionQueue

LISTED = hf.UnionListState(pa.int64())
OPENED: list[int] = []
"""How many entries each subtask saw when it opened."""


class Listing(hf.ProcessFunction):
    seen = LISTED

    def open(self, ctx: Any) -> None:
        OPENED.append(len(self.seen.union()))

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int]]:
        self.seen.add(row.value)
        yield (row.value,)


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--entries", type=int, default=10, help="of each list")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--parallelism", type=int, default=8)
    parser.add_argument("--task-managers", type=int, default=2)
    parser.add_argument("--serial-sample", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    return parser.parse_args(argv)


def program_of() -> Program:
    job = hf.Job(None, name="union-restore", storage="memory://union-restore")
    rows = job.read(hf.SequenceSource(1, name="numbers"))
    rows.key_by("value").process(Listing(), "value BIGINT", name="lists").write(hf.NoopSink(name="out"))
    return build_program(job.declared, without_spark, None)


def stored(store: ObjectStore, subtask: int, options: argparse.Namespace, max_parallelism: int) -> TableHandle:
    """Store the list of a subtask of the earlier start, as its first checkpoint does."""
    start, stop = key_group_range(subtask, options.objects, max_parallelism)
    own = SubtaskList("lists", "seen", LISTED, max_parallelism)
    own.open(range(start, stop))
    own.table.begin(0)
    own.begin()
    for number in range(options.entries):
        own.add(subtask * options.entries + number)
    own.store()
    changes = own.table.changes()
    assert changes is not None
    log = LogId("lists", "seen.list", start, stop)
    (piece,) = encode_pieces(log, [ChangeSet(0, 1, 0, 1, changes)], merge=merge_changes)
    name = names.changelog_object(1, 1)
    store.put(name, OBJECT_HEADER + b"".join(bytes(each) for each in piece.buffers))
    schema = own.table.stored_schema().serialize().to_pybytes()
    return TableHandle(log.operator, log.table, start, stop, schema, [], [piece.at(name, len(OBJECT_HEADER))])


def deployment_of(program: Program, handles: list[TableHandle], options: argparse.Namespace, groups: int) -> Deployment:
    layout = Layout(options.parallelism, groups, options.task_managers)
    return Deployment(
        job_id="0" * 32,
        epoch=2,
        run=1,
        task_manager=0,
        incarnation=1,
        program=cloudpickle.dumps(program),
        max_parallelism=groups,
        subtasks=subtasks_of(0, layout, program, handles),
        first_batch=1,
        whole=whole_tables(program, handles),
    )


def memory_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next(line for line in lines if line.startswith(f"{field}:"))
    return int(found.split()[1]) / 1024


def forget_peak() -> None:
    """Forget the peak: from now on VmHWM is the most memory since this moment."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    program, groups = program_of(), 1 << max(7, (options.objects - 1).bit_length())
    inner: ObjectStore = ObstoreStore("memory://", MemoryStore())
    handles = [stored(inner, subtask, options, groups) for subtask in range(options.objects)]
    slow = SlowStore(inner, options.latency_ms / 1000.0)
    deployment = deployment_of(program, handles, options, groups)
    forget_peak()
    before_mb, begun_s, used_s = memory_mb("VmRSS"), time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(len(deployment.subtasks)) as pool:
        hosted = host(deployment, slow, None, Answers(), DeletionQueue(slow), SystemClock(), pool)  # type: ignore[arg-type]
    processor_s = time.process_time() - used_s
    parallel_s, peak_mb = time.perf_counter() - begun_s, memory_mb("VmHWM") - before_mb
    assert [options.objects * options.entries] * len(deployment.subtasks) == OPENED
    assert hosted.recovery.fetched.objects == options.objects, "each object is read once"
    hosted.close(discard=True)
    sample = handles[: options.serial_sample]
    return {
        "objects": options.objects,
        "latency_ms": options.latency_ms,
        "parallel_s": round(parallel_s, 2),
        "serial_s": round(serial_s(slow, sample) * options.objects / len(sample), 1),
        "serial_sampled": len(sample),
        "peak_memory_mb": round(peak_mb, 1),
        "processor_s": round(processor_s, 2),
        "entries": options.objects * options.entries,
        "subtasks": len(deployment.subtasks),
    }


def serial_s(store: ObjectStore, handles: list[TableHandle]) -> float:
    begun_s = time.perf_counter()
    with ObjectCache(store, downloads_max=1) as fetch:
        for handle in handles:
            fetch.expect(handle.ranges())
            read_whole([handle], fetch)
    return time.perf_counter() - begun_s


def main(argv: list[str]) -> None:
    options = arguments(argv)
    result = measure(options)
    if not options.json:
        sys.stderr.write(
            f"{result['objects']:,} objects at {options.latency_ms:g} ms: {result['parallel_s']} s for a TaskManager "
            f"of {result['subtasks']} subtasks, one after the other {result['serial_s']} s (extrapolated)\n"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    from benchmarks import union_restore  # the function travels by the name of its module, so OPENED is this one's

    union_restore.main(sys.argv[1:])
