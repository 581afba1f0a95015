"""How jobs, streams, queries and states show themselves, and the lines that a query logs."""

import logging
import re
import subprocess
import sys
import traceback

import pyarrow as pa
import pytest
from job_kit import Feed, new_job, new_storage, pairs, script

import holdfast as hf
from holdfast.testing import Abort, run, start
from waiting import until

ROWS = pairs((1, 10), (2, 20), (1, 5))


class Unlucky(hf.ProcessFunction):
    def process(self, row, ctx):
        raise ValueError("unlucky")


def late(df):
    return df


class Longest(hf.ProcessFunction):
    longest = hf.ValueState(pa.int64(), default=0, ttl="1h")
    seen = hf.MapState(pa.string())

    def process(self, row, ctx):
        yield {"state": repr(self.longest)}


def test_a_job_and_its_streams_show_what_was_declared():
    job = new_job("memory://words")
    assert repr(job) == "<Job 'test' on memory://words: was not started>"
    stream = job.read(Feed(name="feed")).map_batches(late, "k BIGINT")
    other = job.read(script(ROWS, name="script")).transform(late)
    assert repr(stream) == "<Stream of job 'test': feed → map_batches(late)>"
    assert repr(stream.union(other)) == "<Stream of job 'test': feed → map_batches(late) and script → transform(late)>"
    keyed = stream.key_by("k", "v")
    assert repr(keyed) == "<KeyedStream of job 'test': feed → map_batches(late) → key_by('k', 'v')>"
    counts = keyed.aggregate(n=hf.count(), name="counts")
    assert repr(counts) == "<Stream of job 'test': counts>"
    counts.write(hf.NoopSink(name="nowhere"))
    declared = "reads feed, script; keeps state in counts; writes nowhere"
    assert repr(job) == f"<Job 'test' on memory://words: {declared}; was not started>"


def test_states_show_how_they_were_declared_and_do_so_inside_a_function():
    assert repr(Longest.longest) == "ValueState(type=int64, default=0, ttl='1h', ttl_on='write')"
    assert repr(Longest.seen) == "MapState(key_type=string)"
    assert repr(hf.ReducingState(max, pa.float64())) == "ReducingState(fn=max, type=double)"
    assert repr(hf.ListState(pa.date32())) == "ListState(type=date32[day])"
    assert repr(hf.AggregatingState(max, 0, abs)) == "AggregatingState(add=max, initial=0, result=abs)"
    job, sink = new_job(), hf.MemorySink()
    job.read(script(pairs((1, 1)))).key_by("k").process(Longest(), "state STRING").write(sink)
    run(job)
    assert "ValueState(" in sink.rows()[0]["state"]


def test_a_query_shows_what_it_does_and_has_done():
    job, feed = new_job(), Feed(name="feed")
    job.read(feed).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    query = start(job, hf.processing_time())
    feed.put(ROWS)
    query.processAllAvailable()
    shown = r"<Query 'test', run [0-9a-f-]{36}: Processing; 3 rows in \d+ batches, \d+ checkpoints, 0 restarts>"
    assert re.fullmatch(shown, repr(query)), repr(query)
    assert repr(job).endswith("runs>")
    query.stop()
    assert ": Stopped; 3 rows" in repr(query) and repr(job).endswith("has ended>")


def test_totals_show_figures_and_no_lists():
    job = new_job()
    job.read(script(ROWS, ROWS)).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    totals = run(job).totals
    assert (totals.batches, totals.completed_checkpoints) == (len(totals.batch_rows), len(totals.checkpoints))
    assert repr(totals) == (
        f"Totals(rows=6, bad_rows=0, batches={totals.batches}, completed_checkpoints={totals.completed_checkpoints}, "
        "failed_checkpoints=0, aborted_checkpoints=0, refused_checkpoints=0)"
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines about the query as a whole, from INFO up."""
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("test: ")]


def counting(storage: str, *rows: object) -> hf.Job:
    job = new_job(storage)
    job.read(script(*rows, name="script")).key_by("k").aggregate(n=hf.count(), name="n").write(hf.NoopSink(name="out"))
    return job


def test_start_restore_restart_and_end_are_a_line_each(caplog):
    caplog.set_level(logging.INFO, logger="holdfast")
    storage = new_storage()
    run(counting(storage, ROWS))
    assert [re.sub(r"\d+", "N", line) for line in lines(caplog)] == [
        f"test: starts on {re.sub(r'[0-9]+', 'N', storage)}, as epoch N",
        "test: there is no checkpoint yet: begins with empty state",
        "test: ended: everything available was processed and published",
    ]
    caplog.clear()
    run(counting(storage, ROWS, Abort(), ROWS))
    first, *between, last = [re.sub(r"\d+", "N", line) for line in lines(caplog)]
    assert first == f"test: starts on {re.sub(r'[0-9]+', 'N', storage)}, as epoch N"
    assert sorted(between) == [  # the process that ends at once may be told of before the start's own line
        "test: goes on from checkpoint N, which was taken after batch N",
        "test: goes on from checkpoint N, which was taken after batch N",
        "test: restarting from the last checkpoint: TaskManager N ended: killed",
    ]
    assert last == "test: ended: everything available was processed and published"


def failing(batch):
    raise ValueError("this row is wrong")


def test_a_failure_is_an_error_in_the_log_only_where_nobody_waits_for_it(caplog):
    caplog.set_level(logging.INFO, logger="holdfast")
    for somebody_waits in (True, False):
        job, feed = new_job(), Feed(name="feed")
        job.read(feed).map_batches(failing, "k BIGINT").write(hf.NoopSink())
        query = start(job, hf.processing_time())
        if somebody_waits:
            promise = query._master.process_all_available()
        feed.put(ROWS)
        until(lambda query=query: not query.isActive)
        if somebody_waits:
            assert "this row is wrong" in str(promise.exception(10))
        (record,) = [each for each in caplog.records if each.getMessage().startswith("test: ended: ")]
        assert record.levelno == (logging.INFO if somebody_waits else logging.ERROR)
        assert "UserFunctionError: " in record.getMessage() and "this row is wrong" in record.getMessage()
        caplog.clear()


def test_a_failure_that_is_raised_shows_its_message_and_not_the_way_through_holdfast():
    job = new_job()
    job.read(script(ROWS)).key_by("k").process(Unlucky(), "k BIGINT").write(hf.NoopSink())
    with pytest.raises(hf.QueryFailed) as caught:
        run(job)
    shown = "".join(traceback.format_exception(caught.value))
    assert re.search(r"raised ValueError: unlucky \(test_job_words\.py, line \d+\)", shown)
    assert "jobmaster" not in shown, shown


def test_the_package_lists_its_public_names_alone():
    assert dir(hf) == sorted([*hf.__all__, "__version__"])
    assert all(hasattr(hf, name) for name in dir(hf))


def test_a_module_of_the_package_is_imported_by_itself_before_the_api():
    program = "from holdfast.query import Query; import holdfast as hf; assert hf.Query is Query"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
