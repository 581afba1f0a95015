"""Stored objects hold no code: no object is a pickle. That nothing stored is unpickled: see `test_tidy.py`."""

import pickletools

import pyarrow as pa
from job_kit import Feed, new_job, store_of

import holdfast as hf
from holdfast.testing import start
from waiting import until


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
        except (ValueError, DeprecationWarning):  # its reader warns of escapes in bytes that are no text
            continue
        if len(opcodes) > 3:
            return True
    return False


def test_no_stored_object_is_a_pickle_or_holds_one(tmp_path):
    found = stored_by_a_job_of_every_kind(tmp_path)
    assert {name.partition("/")[0] for name in found} >= {"job", "journal", "gathered", "shared"}
    for name, data in found.items():
        assert not is_pickle(data), name
        for trace in (b"cloudpickle", b"__reduce__", b"\x80\x04\x95", b"\x80\x05\x95", b"test_job_stored", b"Total"):
            assert trace not in data, (name, trace)


def test_a_pickle_would_be_noticed():
    import cloudpickle

    assert is_pickle(cloudpickle.dumps(Total()))
    assert is_pickle(b"HFJB" + cloudpickle.dumps({"a": 1, "b": [2]}))
