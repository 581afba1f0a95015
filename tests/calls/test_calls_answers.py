"""`map_async` over a whole job in one process: answers, bad records, retries, time-outs, rates, repeated batches."""

import asyncio
import threading
from collections import Counter
from uuid import uuid4

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.calls.caller import Caller
from holdfast.calls.declared import as_function, checked_settings
from holdfast.clock import ManualClock, SystemClock
from holdfast.errors import QueryFailed, SettingsError, StorageError
from holdfast.testing import TestSource, run
from waiting import until

NUMBERS = [{"n": number} for number in range(20)]


class Asked:
    """Counts calls, and how many were under way at the same time."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.now = self.most = 0
        self.opened = self.closed = 0
        self.times: list[float] = []

    async def ask(self, n: int) -> int:
        self.calls[n] += 1
        self.times.append(asyncio.get_running_loop().time())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0.01)
        finally:
            self.now -= 1
        return n * n


asked = Asked()


@pytest.fixture(autouse=True)
def fresh():
    global asked
    asked = Asked()


def rows_of(fn, schema="n BIGINT, square BIGINT", batches=None, bad="fail", clock=None, **settings):
    """Run a job that asks for squares; return its rows and its dead letters' number."""
    storage = f"memory://calls/{uuid4().hex}"
    letters = {} if bad == "fail" else {"bad_records": bad, "dead_letters": f"{storage}-letters"}
    job = hf.Job(None, name="asking", storage=storage, **letters)
    sink = hf.MemorySink()
    job.read(TestSource(batches or [NUMBERS], "n BIGINT")).map_async(fn, schema, **settings).write(sink)
    query = run(job, clock=clock or ManualClock())
    return [tuple(row.values()) for row in sink.rows()], query


async def square(row):
    return {"n": row.n, "square": await asked.ask(row.n)}


def test_each_row_is_answered_in_order_and_calls_are_bounded_by_the_capacity():
    found, _ = rows_of(square, capacity=7)
    assert found == [(n, n * n) for n in range(20)]
    assert asked.most == 7 and set(asked.calls.values()) == {1}


def test_answers_may_be_none_or_many_rows():
    async def divisors(row):
        await asked.ask(row.n)
        return [(row.n, each) for each in range(1, row.n + 1) if row.n % each == 0] or None

    found, _ = rows_of(divisors, "n BIGINT, divisor BIGINT")
    assert (0, 0) not in found and [each for n, each in found if n == 12] == [1, 2, 3, 4, 6, 12]


def test_answers_that_need_no_order_are_all_there():
    async def late_first(row):
        await asyncio.sleep((20 - row.n) / 1000)
        return row.n, 0

    found, _ = rows_of(late_first, ordered=False)
    assert sorted(found) == [(n, 0) for n in range(20)]


def test_a_function_with_a_client_is_opened_once_and_closed_at_the_end():
    class Square(hf.AsyncFunction):
        async def open(self, ctx):
            asked.opened += 1
            self.capacity = ctx.capacity

        async def call(self, row):
            return row.n, self.capacity

        async def close(self):
            asked.closed += 1

    found, _ = rows_of(Square(), batches=[NUMBERS[:10], NUMBERS[10:]], capacity=30)
    assert found == [(n, 30) for n in range(20)]
    until(lambda: asked.closed)
    assert asked.opened == asked.closed == 1


def test_rows_go_in_pieces_to_a_function_of_batches():
    async def squares(rows: pa.RecordBatch):
        asked.calls[rows.num_rows] += 1
        numbers = rows.column("n").to_numpy()
        return pa.record_batch({"n": numbers, "square": numbers * numbers})

    found, _ = rows_of(squares, batch=8)
    assert found == [(n, n * n) for n in range(20)]
    assert asked.calls == {8: 2, 4: 1}


def test_a_call_that_fails_is_made_again_and_in_the_end_its_row_is_a_bad_record():
    async def moody(row):
        await asked.ask(row.n)
        if row.n == 3 or (row.n == 5 and asked.calls[5] < 3):
            raise ConnectionError("the service is busy")
        return row.n, 0

    found, query = rows_of(moody, bad="dead_letter", retries=2)
    assert [n for n, _ in found] == [n for n in range(20) if n != 3]
    assert asked.calls[3] == asked.calls[5] == 3
    assert query.totals.bad_rows == 1
    with pytest.raises(QueryFailed, match=r"map_async\(moody\) failed: ConnectionError.*busy.*after 3 attempts"):
        rows_of(moody, retries=2)


def test_errors_that_are_not_retried_fail_at_once():
    async def wrong(row):
        await asked.ask(row.n)
        raise ValueError("no such number")

    rows_of(wrong, bad="dead_letter", retries=5, retry_on=ConnectionError)
    assert set(asked.calls.values()) == {1}


def test_a_call_that_takes_too_long_is_cancelled_and_tried_again():
    async def slow(row):
        asked.calls[row.n] += 1
        await asyncio.sleep(100 if row.n == 4 else 0.1)
        return row.n, 0

    found, query = rows_of(slow, bad="dead_letter", timeout="2s", retries=1)
    assert len(found) == 19 and query.totals.bad_rows == 1 and asked.calls[4] == 2


def test_a_function_that_is_cancelled_or_exits_fails_its_row_alone():
    async def odd(row):
        if row.n == 1:
            raise asyncio.CancelledError
        if row.n == 2:
            raise SystemExit(3)
        return row.n, 0

    found, _ = rows_of(odd, bad="dead_letter", retries=0)
    assert len(found) == 18


def test_answers_of_another_form_are_bad_records():
    async def odd(row):
        return (row.n, "no number") if row.n == 1 else {"n": row.n} if row.n == 2 else (row.n, None)

    found, query = rows_of(odd, bad="dead_letter")
    assert len(found) == 18 and query.totals.bad_rows == 2


def test_attempts_are_spaced_by_the_rate():
    rows_of(square, rate=100)
    assert len(asked.times) == 20
    assert max(asked.times) - min(asked.times) > 0.17, "twenty calls at 100 a second"


def test_where_all_calls_fail_the_batch_waits_and_goes_on_once_the_service_is_back():
    """Nothing becomes a bad record, and answers that have come are not asked for again."""

    async def away_for_a_while(row):
        n = await asked.ask(row.n)
        if row.n >= 10 and sum(asked.calls[each] for each in range(10, 20)) < 13:
            raise ConnectionError("nobody is there")
        return row.n, n

    found, query = rows_of(away_for_a_while, bad="dead_letter", clock=SystemClock(), breaker=5, retries=0, capacity=2)
    assert found == [(n, n * n) for n in range(20)]
    assert query.totals.bad_rows == 0
    assert {asked.calls[n] for n in range(10)} == {1}


def test_calls_of_a_repeated_batch_are_answered_from_the_first_try():
    failed: list[int] = []

    def fails_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not failed:
            failed.append(1)
            raise StorageError("the first try fails behind the calls")
        return batch

    def ask(kept: int):
        job = hf.Job(None, name="asking", storage=f"memory://calls/{uuid4().hex}")
        sink = hf.MemorySink()
        asking = job.read(TestSource([NUMBERS], "n BIGINT"))
        asking.map_async(square, "n BIGINT, square BIGINT", kept_answers=kept).map_batches(
            fails_once, "n BIGINT, square BIGINT"
        ).write(sink)
        run(job)
        return len(sink.rows()), sum(asked.calls.values())

    assert ask(kept=100) == (20, 20)
    failed.clear()
    asked.calls.clear()
    assert ask(kept=0) == (20, 40)


def test_a_function_that_blocks_its_loop_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr("holdfast.calls.loop.END_S_MAX", 0.05)
    monkeypatch.setattr("holdfast.calls.caller.CLOSE_S_MAX", 0.05)
    blocked, let_go = threading.Event(), threading.Event()

    async def blocks() -> None:
        blocked.set()
        let_go.wait(30)

    caller = Caller(
        "asking", as_function(square), checked_settings(1, True, None, 0, 0, Exception, None, None, 1, 0), SystemClock()
    )
    caller._thread.submit(blocks())
    until(blocked.is_set)
    caller.close()
    let_go.set()
    until(lambda: not caller._thread._thread.is_alive())
    caller._thread.loop.run_until_complete(asyncio.sleep(0))
    caller._thread.loop.close()


def test_what_is_no_coroutine_function_is_refused():
    with pytest.raises(SettingsError, match="async def"):
        rows_of(lambda row: row)
    with pytest.raises(SettingsError, match="AsyncFunction has no `async def call"):
        rows_of(hf.AsyncFunction())
    with pytest.raises(SettingsError, match="capacity=0"):
        rows_of(square, capacity=0)
    with pytest.raises(SettingsError, match="rate=-1"):
        rows_of(square, rate=-1)
    with pytest.raises(SettingsError, match="timeout=0"):
        rows_of(square, timeout=0)
