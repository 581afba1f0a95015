"""Stored objects hold no code: no object is a pickle, and nothing that was stored is unpickled."""

import ast
import pickletools
from pathlib import Path

import pyarrow as pa
from job_kit import Feed, new_job, store_of

import holdfast as hf
from holdfast.testing import start
from waiting import until

SOURCES = Path(hf.__file__).parent

UNPICKLERS = {
    "taskmanager/hosting.py": "the program, sent by the JobMaster, whose secret the Flight server has checked",
    "spark/tasks.py": "the program and its steps, sent by Spark with the task",
    "spark/probe.py": "the program, sent by Spark with the probe",
    "sources/pyspark_reader.py": "a partition, planned by the JobMaster and sent with the task",
    "functions/windows/process.py": "the same, of a function behind a window",
    "functions/process/declared.py": "a round trip in one process: each subtask's own copy of a function",
}
"""The only modules that unpickle, and what: all of it comes from the running driver."""


class Total(hf.ProcessFunction):
    total = hf.ValueState(pa.int64(), default=0)
    anything = hf.ValueState()

    def process(self, row, ctx):
        self.total.update(self.total.value() + row.v)
        self.anything.update({"seen": [row.v]})
        yield {"k": row.k, "total": self.total.value()}


def stored_by_a_job_of_every_kind(tmp_path) -> dict[str, bytes]:
    """All objects in the storage of a running job with state, staged output and a backlog."""

    def unreachable(table, number):
        raise ConnectionError("not now")

    job = new_job(
        bad_records="dead_letter",
        dead_letters=f"file://{tmp_path}",
        checkpoint=hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(log_handles_max=1)),
    )
    feed = Feed()
    keyed = job.read(feed).key_by("k")
    keyed.process(Total(), "k BIGINT, total BIGINT").write(hf.CallbackSink(unreachable))
    keyed.aggregate(n=hf.count()).write(hf.MemorySink())
    query = start(job, hf.processing_time())
    for batch in range(1, 5):
        feed.put([{"k": batch, "v": batch}, "malformed"])
        until(lambda batch=batch: len(query.recentProgress) == batch)
        query.trigger_checkpoint(30)
    query.stop()
    store = store_of(job)
    return {info.name: store.get(info.name) for info in store.list("")}


def is_pickle(data: bytes) -> bool:
    """True if the bytes, from any of their first places on, are opcodes of a pickle that does something."""
    for first in range(min(len(data), 64)):
        try:
            opcodes = [opcode.name for opcode, _, _ in pickletools.genops(data[first:])]
        except (ValueError, DeprecationWarning):  # its reader warns of escapes in what is no text
            continue
        if len(opcodes) > 3:
            return True
    return False


def test_no_stored_object_is_a_pickle_or_holds_one(tmp_path):
    found = stored_by_a_job_of_every_kind(tmp_path)
    assert {name.partition("/")[0] for name in found} >= {"job", "journal", "manifests", "dstl", "shared"}
    for name, data in found.items():
        assert not is_pickle(data), name
        for trace in (b"cloudpickle", b"__reduce__", b"\x80\x04\x95", b"\x80\x05\x95", b"test_job_stored", b"Total"):
            assert trace not in data, (name, trace)


def test_a_pickle_would_be_noticed():
    import cloudpickle

    assert is_pickle(cloudpickle.dumps(Total()))
    assert is_pickle(b"HFJB" + cloudpickle.dumps({"a": 1, "b": [2]}))


def test_only_what_the_running_driver_sends_is_unpickled():
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"pickle", "marshal", "shelve", "dill"} & set(imported), path
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in ("loads", "Unpickler"):
                owner = called.value.id if isinstance(called.value, ast.Name) else ""
                if owner not in ("json", "tomllib"):
                    found.add(path.relative_to(SOURCES).as_posix())
    assert found == set(UNPICKLERS)
