"""Broadcast streams of whole jobs in process: order, failures, rescaling, rewinds, event time, refusals.

Scripts give a batch of each source at a time, so the rules of batch n apply to the orders of batch n and later ones,
however often batches are repeated: a direct computation gives the expected output.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from job_kit import Feed, new_job, new_storage, script, tuples

import holdfast as hf
from holdfast import failpoints
from holdfast.errors import JobRefused, QueryFailed, SettingsError, UserFunctionError
from holdfast.storage.store import open_store
from holdfast.stored_state.opened import open_checkpoint
from holdfast.testing import Fault, FaultyStore, run, start
from holdfast.testing.local import LocalCluster
from holdfast.testing.source import Abort, Eof, TestSource
from waiting import until

RULES = "kind BIGINT, limit BIGINT, note STRING"
RULES_OF_CHANGE_DATA = "kind BIGINT, limit BIGINT, _change_type STRING"
OUT = "k BIGINT, v BIGINT, limit BIGINT, seen BIGINT"


class Limited(hf.ProcessFunction):
    """Gives each order with the rule of its kind, and counts the orders of its key."""

    rules = hf.BroadcastState()
    seen = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Iterable[tuple[Any, ...]]:
        self.seen.update(self.seen.value() + 1)
        rule = self.rules.get(row.v % 5)
        yield row.k, row.v, None if rule is None else rule.limit, self.seen.value()


class LimitedBatches(hf.BatchFunction):
    """The same by arrays."""

    rules = hf.BroadcastState()
    seen = hf.ValueState(pa.int64(), default=0)

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Any) -> pa.RecordBatch:
        before = self.seen.values().to_numpy()
        self.seen.update(pa.array(before + np.bincount(groups, minlength=keys.num_rows)))
        ranks = [int((groups[:place] == group).sum()) for place, group in enumerate(groups)]
        rules = self.rules.rows()
        found = pc.index_in(pa.array(batch["v"].to_numpy() % 5), value_set=rules["kind"])
        seen = pa.array(before[groups] + np.array(ranks, np.int64) + 1)
        return pa.record_batch([batch["k"], batch["v"], rules["limit"].take(found), seen], schema=SCHEMA)


SCHEMA = pa.schema([(name, pa.int64()) for name in ("k", "v", "limit", "seen")])


def rule(kind: int, limit: int | None) -> dict[str, Any]:
    return {"kind": kind, "limit": limit, "note": None if limit is None else f"n{limit}"}


RULE_STEPS = [
    [rule(1, 10), rule(2, 20)],
    [],
    [rule(1, 11), rule(1, 12), rule(3, 30)],
    [rule(2, None)],
    [rule(2, 21), rule(2, None), rule(2, 22), rule(4, 40), rule(4, None)],
    [],
    [rule(0, 1), rule(1, None), rule(9, None)],
    [rule(1, 13)],
]
ORDER_STEPS = [[{"k": (n * 7 + i) % 6, "v": n * 20 + i} for i in range(20)] for n in range(len(RULE_STEPS))]


def expected(rules: list[list[dict[str, Any]]] = RULE_STEPS) -> list[tuple[Any, ...]]:
    """The output by a direct computation."""
    now: dict[int, int] = {}
    seen: dict[int, int] = {}
    out = []
    for changes, orders in zip(rules, ORDER_STEPS, strict=True):
        for each in changes:
            if each["limit"] is None:
                now.pop(each["kind"], None)
            else:
                now[each["kind"]] = each["limit"]
        for order in orders:
            seen[order["k"]] = seen.get(order["k"], 0) + 1
            out.append((order["k"], order["v"], now.get(order["v"] % 5), seen[order["k"]]))
    return sorted(out)


def limited(job: hf.Job, orders: Any, rules: Any, function: Any = None) -> hf.Stream:
    keyed = job.read(rules).key_by("kind")
    return job.read(orders).key_by("k").process(function or Limited(), OUT, broadcast={"rules": keyed}, name="limited")


def with_aborts(steps: list[Any], at: Iterable[int]) -> list[Any]:
    return [each for place, step in enumerate(steps) for each in ([step, Abort()] if place in at else [step])]


@pytest.mark.parametrize(
    ("function", "state", "changelog"),
    [
        pytest.param(Limited(), hf.HashMapState(), True, marks=pytest.mark.long),
        (Limited(), hf.RocksDBState(cache_max_entries=2), False),
        (LimitedBatches(), hf.RocksDBState(cache_max_entries=2), True),
        pytest.param(LimitedBatches(), hf.HashMapState(), False, marks=pytest.mark.long),
    ],
    ids=["rows", "rows, cache, no changelog", "arrays, cache", "arrays, no changelog"],
)
def test_rules_are_exactly_once_over_aborts_restarts_and_another_parallelism(function, state, changelog) -> None:
    storage, sink = new_storage(), hf.MemorySink(name="out")
    empty: list[Any] = []
    aborted = {2, 4, 6}
    rules = TestSource([*with_aborts(RULE_STEPS, aborted), Eof()], RULES, name="rules")
    orders = TestSource(
        [each for n, step in enumerate(ORDER_STEPS) for each in ([step, empty] if n in aborted else [step])] + [Eof()],
        "k BIGINT, v BIGINT",
        name="orders",
    )
    length = rules.length
    for parallelism, part in ((3, 0.3), (1, 0.6), (4, 1.0)):
        rules.length = orders.length = round(length * part)
        job = new_job(
            storage,
            parallelism=parallelism,
            task_managers=min(2, parallelism),
            max_parallelism=16,
            checkpoint=hf.CheckpointConfig(trigger=hf.every("20ms"), changelog=changelog),
            state=state,
        )
        limited(job, orders, rules, function).write(sink)
        run(job)
    assert sorted(tuples(sink)) == expected()
    assert hf.read_state(storage, "limited", "rules", key={"kind": 3})["limit"].to_pylist() == [30]
    stored = hf.read_state(storage, "limited", "rules").sort_by("kind").to_pylist()
    assert [(row["kind"], row["limit"], row["note"]) for row in stored] == [
        (0, 1, "n1"), (1, 13, "n13"), (2, 22, "n22"), (3, 30, "n30"),
    ]  # fmt: skip


def test_the_state_is_stored_once_and_not_by_every_subtask() -> None:
    storage = new_storage()
    job = new_job(storage, parallelism=4, task_managers=2)
    limited(job, script(*ORDER_STEPS, name="orders"), script(*RULE_STEPS, schema=RULES, name="rules")).write(
        hf.MemorySink()
    )
    run(job)
    handles = open_checkpoint(open_store(storage), "latest").handles
    ranges = [(each.table, each.key_group_start, each.key_group_stop) for each in handles]
    assert [each for each in ranges if each[0] == "rules.broadcast"] == [("rules.broadcast", 0, 128)]
    assert len([each for each in ranges if each[0] == "state"]) == 4


@pytest.mark.parametrize("on_loss", ["rewind", "restart"])
def test_a_lost_task_manager_has_the_rules_of_the_others_again(on_loss) -> None:
    for victim in (0, 1):
        orders, rules, sink = Feed(name="orders"), Feed(RULES, name="rules"), hf.MemorySink()
        clusters: list[LocalCluster] = []
        job = new_job(parallelism=4, task_managers=2, on_loss=on_loss)
        limited(job, orders, rules).write(sink)
        query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
        rules.put([rule(kind, 10 + kind) for kind in range(5)])
        until(lambda query=query: query.totals.rows == 5)
        orders.put({"k": k, "v": k} for k in range(20))
        query.processAllAvailable()
        rules.put([rule(1, 77), rule(2, None)])
        until(lambda query=query: query.totals.rows == 27)
        clusters[0].kill(victim)
        orders.put({"k": k, "v": 100 + k} for k in range(20))
        query.processAllAvailable()
        query.stop()
        limits = {v % 5: limit for _, v, limit, _ in tuples(sink) if v >= 100}
        assert limits == {0: 10, 1: 77, 2: None, 3: 13, 4: 14}
        assert sorted(v for _, v, _, _ in tuples(sink)) == [*range(20), *range(100, 120)]


def test_an_undone_batch_leaves_no_rules_behind() -> None:
    """Two attempts at a batch fail once it has changed the rules; the third counts."""
    orders, rules, sink = Feed(name="orders"), Feed(RULES, name="rules"), hf.MemorySink()
    job = new_job(parallelism=2, task_managers=2)
    limited(job, orders, rules).write(sink)
    query = start(job, hf.processing_time("0s"))
    rules.put([rule(1, 10)])
    until(lambda: query.totals.rows == 1)
    fails = [True, True]

    def fail() -> None:
        if fails:
            fails.pop()
            raise OSError("twice")

    failpoints.arm("jobmaster.process.after", fail)
    rules.put([rule(1, None), rule(2, 20)])
    until(lambda: query.totals.rows == 3)
    failpoints.disarm()
    assert not fails
    orders.put({"k": k, "v": k} for k in range(5))
    query.processAllAvailable()
    query.stop()
    assert {v: limit for _, v, limit, _ in tuples(sink)} == {0: None, 1: None, 2: 20, 3: None, 4: None}


def test_change_data_says_which_rules_are_removed() -> None:
    changes = [
        [(1, 10, "insert"), (2, None, "insert"), (3, 30, "insert")],
        [(1, 10, "update_preimage"), (4, 40, "update_postimage"), (3, 30, "delete")],
    ]
    steps = [[dict(zip(("kind", "limit", "_change_type"), row, strict=True)) for row in step] for step in changes]
    sink = hf.MemorySink()
    job = new_job()

    class All(hf.ProcessFunction):
        rules = hf.BroadcastState()

        def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
            entries = self.rules.items()
            assert [key for key, _ in entries] == self.rules.keys() and len(self.rules.values()) == len(entries)
            yield row.v, str([(key, value.limit) for key, value in entries])

    orders = script([{"k": 1, "v": 0}], [{"k": 1, "v": 1}])
    keyed = job.read(script(*steps, schema=RULES_OF_CHANGE_DATA)).key_by("kind")
    job.read(orders).key_by("k").process(All(), "v BIGINT, rules STRING", broadcast={"rules": keyed}).write(sink)
    run(job)
    assert tuples(sink) == [(0, "[(1, 10), (2, None), (3, 30)]"), (1, "[(2, None), (4, 40)]")]


def test_a_broadcast_of_an_operators_output_and_keys_of_several_columns(capsys) -> None:
    """Rules are counted per pair by another operator before they go to every subtask."""

    class Counted(hf.ProcessFunction):
        pairs = hf.BroadcastState()

        def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
            found = self.pairs.get((row.v, f"a{row.v}"))
            assert self.pairs.contains((row.v, f"a{row.v}")) is (found is not None)
            yield row.v, 0 if found is None else found.n

    job, sink = new_job(parallelism=3, task_managers=2), hf.MemorySink()
    told = script(
        [{"b": 1, "a": "a1"}, {"b": 1, "a": "a1"}, {"b": 2, "a": "a2"}],
        [{"b": 1, "a": "a1"}],
        schema="b BIGINT, a STRING",
    )
    pairs = job.read(told).key_by("b", "a").aggregate(n=hf.count()).key_by("b", "a")
    orders = [[{"k": k, "v": k} for k in range(4)] for _ in range(2)]
    keyed = job.read(script(*orders)).key_by("k")
    keyed.process(Counted(), "v BIGINT, n BIGINT", broadcast={"pairs": pairs}).write(sink)
    run(job)
    assert sorted(tuples(sink)) == [(0, 0), (0, 0), (1, 2), (1, 3), (2, 1), (2, 1), (3, 0), (3, 0)]
    job.explain()
    assert "by b, a as 'pairs' to every subtask of operator 'process-1'" in capsys.readouterr().out


def test_timers_read_rules_and_a_broadcast_stream_does_not_hold_event_time_back() -> None:
    """The rules have no watermark in the first job, and a watermark that stands still in the second."""

    class Late(hf.ProcessFunction):
        rules = hf.BroadcastState()

        def process(self, row: Any, ctx: Any) -> None:
            ctx.timers.register_event_time(row.at)

        def on_timer(self, timestamp: Any, ctx: Any) -> Iterator[tuple[int, int]]:
            yield ctx.key, self.rules.get(1).limit

    for timed in (False, True):
        job, sink = new_job(), hf.MemorySink()
        orders = script(
            *[[{"k": n, "at": pa.scalar(n * 1_000_000, pa.timestamp("us", "UTC")).as_py()}] for n in range(6)],
            schema="k BIGINT, at TIMESTAMP",
        )
        told = [
            [{"kind": 1, "limit": 10 + n, "told": pa.scalar(0, pa.timestamp("us", "UTC")).as_py()}] for n in range(6)
        ]
        rules = job.read(TestSource(told, "kind BIGINT, limit BIGINT, told TIMESTAMP"))
        rules = rules.with_watermark("told", 0) if timed else rules
        keyed = job.read(orders).with_watermark("at", 0).key_by("k")
        late = keyed.process(Late(), "k BIGINT, limit BIGINT", broadcast={"rules": rules.key_by("kind")})
        late.write(sink)
        run(job)
        assert tuples(sink) == [*((n, 11 + n) for n in range(5)), (5, 15)]


def test_a_rule_without_a_key_is_a_bad_record() -> None:
    job = new_job()
    rules = script([{"kind": None, "limit": 1, "note": ""}], schema=RULES)
    limited(job, script(ORDER_STEPS[0]), rules).write(hf.MemorySink())
    with pytest.raises(QueryFailed, match=r"null in a key column \(kind\) of operator 'limited'"):
        run(job)
    job, sink = new_job(bad_records="dead_letter", dead_letters=new_storage()), hf.MemorySink()
    limited(job, script(ORDER_STEPS[0]), rules).write(sink)
    run(job)
    assert len(sink.rows()) == len(ORDER_STEPS[0])


def test_a_rule_with_an_unknown_change_type_is_a_bad_record_once(tmp_path: Path) -> None:
    changes = [(1, 10, "insert"), (2, 20, "upsert"), (3, 30, None), (None, 40, "insert")]
    names = ("kind", "limit", "_change_type")
    rules = script([dict(zip(names, each, strict=True)) for each in changes], schema=RULES_OF_CHANGE_DATA)
    unknown = r"_change_type is 'upsert' in the broadcast stream 'rules' of operator 'limited'; expected one of insert"
    job = new_job()
    limited(job, script(ORDER_STEPS[0]), rules).write(hf.MemorySink())
    with pytest.raises(QueryFailed, match=unknown):
        run(job)
    job = new_job(parallelism=3, bad_records="dead_letter", dead_letters=tmp_path.as_uri())
    sink = hf.MemorySink()
    limited(job, script(ORDER_STEPS[0]), rules).write(sink)
    run(job)
    assert {(row["v"] % 5, row["limit"]) for row in sink.rows()} == {(0, None), (1, 10), (2, None), (3, 30), (4, None)}
    letters = [row for file in tmp_path.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert sorted((row["position"], row["payload"]) for row in letters) == [
        ("1", '{"kind":2,"limit":20,"_change_type":"upsert"}'),
        ("3", '{"kind":null,"limit":40,"_change_type":"insert"}'),
    ]


class NothingDeclared(hf.ProcessFunction):
    def process(self, row: Any, ctx: Any) -> None:
        return None


class KeyNamed(hf.ProcessFunction):
    k = hf.BroadcastState()

    def process(self, row: Any, ctx: Any) -> None:
        return None


class OpensEarly(hf.ProcessFunction):
    rules = hf.BroadcastState()

    def open(self, ctx: Any) -> None:
        self.rules.get(1)

    def process(self, row: Any, ctx: Any) -> None:
        return None


class Writes(hf.ProcessFunction):
    rules = hf.BroadcastState()

    def process(self, row: Any, ctx: Any) -> None:
        self.rules = {}


@pytest.mark.parametrize(
    ("function", "broadcast", "message"),
    [
        (Limited(), {}, "declares the broadcast state 'rules', but no stream fills it"),
        (NothingDeclared(), {"rules": ("kind",)}, "NothingDeclared has no attribute rules = hf.BroadcastState"),
        (Limited(), {"rules": ("kind",), "ruls": ("kind",)}, "Limited has no attribute ruls .*it has: rules"),
        (Limited(), {"rules": ()}, "expected a stream.key_by"),
        (Limited(), {"rules": ("unknown",)}, "key column 'unknown' is not among the columns of its input"),
        (Limited(), {"rules": ("share",)}, "key column 'share' is double: in Python a NaN"),
        (Limited(), {"rules": (hf.window("at", "1s"),)}, "is keyed by .*; key it by columns alone"),
        (KeyNamed(), {"k": ("kind",)}, "state 'k' has the name of a key column"),
        (OpensEarly(), {"rules": ("kind",)}, "only while a row or timer of an operator is processed"),
        (Writes(), {"rules": ("kind",)}, "'rules' is a broadcast state of Writes, which is only read"),
    ],
)  # fmt: skip
def test_refusals_name_the_state(function, broadcast, message) -> None:
    job = new_job()
    with pytest.raises((JobRefused, SettingsError, UserFunctionError, QueryFailed), match=message):
        rules = job.read(script([], schema="kind BIGINT, share DOUBLE, at TIMESTAMP"))
        streams = {name: rules.key_by(*keys) if keys else rules for name, keys in broadcast.items()}
        job.read(script([{"k": 1, "v": 1}])).key_by("k").process(function, "a BIGINT", broadcast=streams).write(
            hf.NoopSink()
        )
        run(job)


def test_a_broadcast_behind_a_window_or_of_another_job_is_refused() -> None:
    job, other = new_job(), new_job()
    rules = job.read(script([], schema=RULES)).key_by("kind")
    orders = job.read(script([], schema="k BIGINT, at TIMESTAMP")).with_watermark("at", 0)
    with pytest.raises(SettingsError, match="of this job"):
        orders.key_by("k").process(
            Limited(), OUT, broadcast={"rules": other.read(script([], schema=RULES)).key_by("kind")}
        )
    orders.key_by("k", hf.window("at", "1s")).process(Limited(), OUT, broadcast={"rules": rules}).write(hf.NoopSink())
    with pytest.raises(JobRefused, match=r"process\(broadcast=…\) behind a window is not possible"):
        run(job)


class Listing(hf.ProcessFunction):
    """Has a list of the subtask besides, so that its copy is made anew where the job goes back."""

    rules = hf.BroadcastState()
    orders = hf.SplitListState(pa.int64())

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.orders.add(row.v)
        rule = self.rules.get(1)
        yield row.k, row.v, None if rule is None else rule.limit, len(self.orders.get())


def test_a_copy_of_a_function_that_is_made_anew_has_the_rules() -> None:
    orders, rules, sink, clusters = (
        Feed(name="orders"),
        Feed(RULES, name="rules"),
        hf.MemorySink(),
        list[LocalCluster](),
    )
    job = new_job(parallelism=2, task_managers=2)
    limited(job, orders, rules, Listing()).write(sink)
    query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
    rules.put([rule(1, 10)])
    query.processAllAvailable()
    clusters[0].kill(0)
    orders.put({"k": k, "v": k} for k in range(12))
    query.processAllAvailable()
    query.stop()
    assert {limit for _, _, limit, _ in tuples(sink)} == {10} and len(sink.rows()) == 12


def test_a_job_gets_a_broadcast_state_later_and_its_rules_get_a_column() -> None:
    storage, sink = new_storage(), hf.MemorySink(name="out")
    orders, rules = TestSource(ORDER_STEPS[:3], "k BIGINT, v BIGINT", name="orders"), [[rule(1, 10)], [], [rule(2, 20)]]
    orders.length = 1
    job = new_job(storage)
    job.read(orders).key_by("k").process(Plain(), OUT, name="limited").write(sink)
    run(job)
    first = TestSource(rules, RULES, name="rules")
    for length, told in ((2, first), (3, TestSource(rules, f"{RULES}, since DATE", name="rules"))):
        orders.length = told.length = length
        job = new_job(storage)
        limited(job, orders, told).write(sink)
        run(job)
    rows = hf.read_state(storage, "limited", "rules").sort_by("kind").to_pylist()
    assert [(row["kind"], row["limit"], row["since"]) for row in rows] == [(1, 10, None), (2, 20, None)]
    assert [row[3] for row in sorted(tuples(sink)) if row[0] == 0] == list(range(1, 11))
    with pytest.raises(JobRefused, match=r"operator 'limited', state 'rules.broadcast': stored with the key columns"):
        job = new_job(storage)
        kinds = script([], schema="note STRING, kind BIGINT, limit BIGINT", name="rules")
        keyed = job.read(kinds).key_by("note")
        job.read(orders).key_by("k").process(Limited(), OUT, broadcast={"rules": keyed}, name="limited").write(sink)
        run(job)


class Plain(hf.ProcessFunction):
    """`Limited`, before it had rules."""

    seen = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.seen.update(self.seen.value() + 1)
        yield row.k, row.v, None, self.seen.value()


def test_a_new_job_begins_with_rows_of_its_own_states_and_no_rules() -> None:
    values = pa.table({"k": [1], "seen": [100]})
    job, sink = new_job(initial_state={"limited": values}), hf.MemorySink()
    limited(job, script([{"k": 1, "v": 1}]), script([rule(1, 10)], schema=RULES)).write(sink)
    run(job)
    assert tuples(sink) == [(1, 1, 10, 101)]
    job = new_job(initial_state={"limited": {"rules": pa.table({"kind": [1]})}})
    limited(job, script([]), script([], schema=RULES)).write(hf.NoopSink())
    with pytest.raises(JobRefused, match="names state 'rules'; it has 'values'"):
        run(job)


def test_a_rewind_downloads_nothing_for_the_survivor() -> None:
    """The survivor's rules go back by undo, past a checkpoint that a replica stored nothing of."""
    storage, clusters, reads = new_storage(), list[LocalCluster](), list[str]()
    orders, rules, sink = Feed(name="orders"), Feed(RULES, name="rules"), hf.MemorySink()

    def note(operation: str, name: str) -> Fault | None:
        if operation.startswith("get") and "shared" in name:
            reads.append(name)
        return None

    job = new_job(storage, parallelism=2, task_managers=2)
    limited(job, orders, rules).write(sink)
    store = FaultyStore(open_store(storage), note)
    query = start(job, hf.processing_time("0s"), store=store, on_cluster=clusters.append)
    for number in range(3):
        rules.put([rule(1, number)])
        query.processAllAvailable()
    rules.put([rule(1, 50)])
    until(lambda: query.totals.rows == 4)
    clusters[0].kill(0)
    orders.put({"k": k, "v": 1} for k in range(8))
    query.processAllAvailable()
    query.stop()
    assert {limit for _, _, limit, _ in tuples(sink)} == {50}
    assert len(sink.rows()) == 8
