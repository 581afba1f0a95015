"""Arrow values that their types do not have, such as a text that is not UTF-8: neither state nor output gets them."""

import pyarrow as pa
import pyarrow.parquet as pq
from job_kit import new_job, tuples

import holdfast as hf
from holdfast.testing import Eof, TestSource, run


def test_a_row_with_a_value_that_its_type_does_not_have_is_bad_before_it_reaches_state_or_output(tmp_path):
    class Viewed(hf.BatchFunction):
        def process(self, batch, keys, groups, ctx):
            yield viewed(batch)

    def viewed(rows):
        texts = pa.array([b"\xff" if n == 1 else b"x" for n in rows["n"].to_pylist()]).view(pa.string())
        return pa.record_batch([rows["n"], texts], names=["n", "text"])

    job = new_job(bad_records="dead_letter", dead_letters=f"file://{tmp_path}")
    rows = job.read(TestSource([[{"n": 0}, {"n": 1}, {"n": 2}], Eof()], "n BIGINT", name="numbers"))
    made, given, kept = hf.MemorySink(), hf.MemorySink(), hf.MemorySink()
    schema = "n BIGINT, text STRING"
    rows.map_batches(viewed, schema).write(made)
    rows.key_by("n").process(Viewed(), schema, name="viewed").write(given)
    rows.map_batches(viewed, schema).key_by("n").aggregate(text=hf.last("text"), name="last").write(kept)
    query = run(job)
    assert [sorted(tuples(sink)) for sink in (made, given, kept)] == [[(0, "x"), (2, "x")]] * 3
    assert query.totals.bad_rows == 3
    reasons = pq.read_table(tmp_path, schema=pa.schema([("reason", pa.string())])).column("reason").to_pylist()
    assert set(reasons) == {"column 'text' holds a text that is not UTF-8"}
