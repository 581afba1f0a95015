"""Each state backend runs the same jobs with the same result, also after a switch between them."""

import pyarrow as pa
import pytest
from job_kit import new_job, new_storage, pairs, script, tuples

import holdfast as hf
from holdfast.testing import run
from sampling import some

BACKENDS = [hf.HashMapState(), hf.RocksDBState(), hf.RocksDBState(cache_max_entries=2)]
ROWS = pairs(*((k % 7, k) for k in range(50)))
MORE = pairs(*((k % 9, -k) for k in range(20)))


class Longest(hf.ProcessFunction):
    seen = hf.ValueState(default=[])

    def process(self, row, ctx):
        self.seen.update([*self.seen.value(), row.v][-3:])
        yield {"k": row.k, "seen": str(self.seen.value())}


def results(storage: str, state: hf.HashMapState | hf.RocksDBState, *batches) -> list[list[tuple]]:
    counts, lists = hf.MemorySink(name="counts"), hf.MemorySink(name="lists")
    job = new_job(storage, state=state, parallelism=2)
    keyed = job.read(script(*batches, name="script")).key_by("k")
    keyed.aggregate(n=hf.count(), least=hf.min("v"), name="count").write(counts)
    keyed.process(Longest(), pa.schema([("k", pa.int64()), ("seen", pa.string())]), name="longest").write(lists)
    run(job)
    return [sorted(tuples(counts)), sorted(tuples(lists))]


@pytest.mark.parametrize("state", BACKENDS[1:], ids=str)
def test_a_job_gives_the_same_on_every_backend(state):
    assert results(new_storage(), state, ROWS, MORE) == results(new_storage(), hf.HashMapState(), ROWS, MORE)


@pytest.mark.parametrize("before", some(BACKENDS, 0, 2), ids=str)
def test_a_job_goes_on_with_another_backend(before):
    for after in BACKENDS:
        storage = new_storage()
        results(storage, before, ROWS)
        expected = results(new_storage(), hf.HashMapState(), ROWS, MORE)
        found = results(storage, after, ROWS, MORE)
        assert all(set(rows) <= set(all_rows) for rows, all_rows in zip(found, expected, strict=True))
        assert found[0]


def test_what_is_no_backend_is_refused():
    with pytest.raises(hf.SettingsError, match=r"state='rocksdb' is not allowed: HashMapState\(\) or RocksDBState\(\)"):
        new_job(state="rocksdb")
