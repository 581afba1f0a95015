"""Slots of several queries in one session: who holds them, who gives senders up, refusals that name the holders."""

from unittest.mock import Mock

import pytest
from host_kit import NamedHost

import holdfast as hf
from holdfast.spark.claims import Claim, SlotClaims
from holdfast.spark.classic_host import ClassicHost
from holdfast.spark.cluster import SparkCluster
from holdfast.spark.slots import resident_senders
from holdfast.spark.tasks import Shipment
from holdfast.testing import TestSource


def claimed(
    claims: SlotClaims, name: str, slots: int = 4, processes: int = 1, senders: int | None = None, wished: int = 0
) -> Claim:
    job = hf.Job(None, name=name, storage="memory://x")
    job.read(TestSource([], "k BIGINT")).write(hf.NoopSink())
    from holdfast.graph.build import build_program, without_spark

    program = build_program(job.declared, without_spark, None)
    return claims.claim(
        name, slots, processes, senders, lambda left: resident_senders(senders, left, program).count, wished
    )


def on_yarn(claim: Claim, claims: SlotClaims, slots_left: int) -> tuple[SparkCluster, Mock]:
    """A cluster of a query on executors with two slots each, and the stand-in for Spark below it."""
    spark = Mock(spec=["ship", "slots", "ask_for", "has_ended"])
    spark.has_ended.return_value = False
    host = NamedHost("yarn", spark, dynamicAllocation__enabled="true", executor__cores="2")
    shipment = Shipment("j", b"", "memory://x", {}, "secret")
    return SparkCluster(host, claim.name, Mock(), shipment, Mock(), claim, claims, slots_left), spark


def test_three_queries_fit_into_four_slots_and_the_first_takes_its_senders_again():
    claims = SlotClaims()
    first = claimed(claims, "first")
    assert (first.processes, first.senders) == (1, 2)
    second = claimed(claims, "second")
    assert (first.senders, second.senders) == (1, 0)
    third = claimed(claims, "third")
    assert (first.senders, second.senders, third.senders) == (0, 0, 0) and claims.held() == 3
    claims.release(second)
    claims.release(second)
    assert (first.senders, third.senders) == (1, 0)
    claims.release(third)
    assert first.senders == 2


def test_a_query_that_finds_no_slots_is_refused_with_the_holders():
    claims = SlotClaims()
    claimed(claims, "first", processes=2, senders=1)
    claimed(claims, "tiny", processes=0)
    with pytest.raises(
        hf.JobRefused,
        match=r"needs 2 slots at least \(1 for TaskManagers.*Spark has 4, of which query 'first' holds 3 "
        r"\(TaskManagers: 2, senders: 1\); query 'tiny' holds 0.*stop a query",
    ):
        claimed(claims, "third")
    assert claims.held() == 3, "a refused query holds nothing"


def test_senders_that_a_user_asked_for_stay_and_leave_a_slot_to_queries_without_senders():
    claims = SlotClaims()
    small = claimed(claims, "small", slots=2)
    assert small.senders == 0
    large = claimed(claims, "large", slots=6, senders=4)
    assert large.senders == 0, "five slots would be needed beside the shared one"
    claims.release(large)
    fitting = claimed(claims, "fitting", slots=6, senders=3)
    assert fitting.senders == 3
    with pytest.raises(hf.JobRefused, match="query 'fitting' holds 4"):
        claimed(claims, "later", slots=6)
    assert fitting.senders == 3


def test_slots_that_come_later_go_to_queries_that_miss_senders_and_no_further():
    claims = SlotClaims()
    first = claimed(claims, "first", slots=2, senders=2, wished=2)
    second = claimed(claims, "second", slots=3, wished=1)
    assert (first.senders, second.senders) == (0, 0)
    for slots, senders in ((3, (0, 0)), (4, (1, 0)), (8, (2, 1)), (2, (2, 1))):
        claims.grow(slots)
        assert (first.senders, second.senders) == senders


def test_senders_without_slots_take_those_that_come_and_ask_for_the_others_now_and_then():
    claims = SlotClaims()
    claim = claimed(claims, "late", slots=2, senders=3, wished=3)
    cluster, spark = on_yarn(claim, claims, slots_left=1)
    spark.slots.return_value = 2
    cluster.check()
    cluster.check()
    spark.ask_for.assert_called_once_with(2 + 3)
    assert (cluster.residents, cluster.residents_that_fit()) == (0, 0)
    spark.slots.return_value = 8
    cluster.check()
    assert (cluster.residents, cluster.residents_that_fit()) == (3, 3)


def test_slots_that_were_free_at_the_start_are_for_senders_when_executors_are_lost():
    claims = SlotClaims()
    other, claim = claimed(claims, "other", slots=9, senders=1), claimed(claims, "spare", slots=9, senders=2)
    cluster, spark = on_yarn(claim, claims, slots_left=6)
    for slots, fit in ((9, 2), (6, 2), (5, 1), (4, 0)):
        spark.slots.return_value = slots
        assert cluster.residents_that_fit() == fit
    claims.release(other)
    assert cluster.residents_that_fit() == 2


@pytest.mark.parametrize(("slots", "fits"), [(10, 7), (7, 4), (6, 3), (3, 0)])
def test_two_queries_that_lose_executors_give_up_no_more_senders_than_slots_are_missing(slots, fits):
    claims = SlotClaims()
    firm = claimed(claims, "firm", slots=10, senders=3)
    clusters = []
    for claim in (firm, claimed(claims, "default", slots=10)):
        cluster, spark = on_yarn(claim, claims, slots_left=claim.senders + 1)
        spark.slots.return_value = slots
        clusters.append((cluster, spark))
    assert sum(cluster.residents for cluster, _ in clusters) == 7
    for _ in range(2):
        assert sum([cluster.residents_that_fit() for cluster, _ in clusters]) == fits
    for cluster, spark in clusters:
        spark.slots.return_value = 10
        cluster.residents_that_fit()
    assert sum(cluster.residents_that_fit() for cluster, _ in clusters) == 7


def test_senders_that_were_given_all_slots_keep_them():
    claims = SlotClaims()
    cluster, spark = on_yarn(claimed(claims, "full", slots=4, processes=2, senders=2), claims, slots_left=2)
    spark.slots.return_value = 4
    assert cluster.residents_that_fit() == 2


def test_no_slots_at_all_are_a_refusal_and_no_error_of_arithmetic():
    with pytest.raises(hf.JobRefused, match="Spark has 0"):
        claimed(SlotClaims(), "alone", slots=0)


def test_three_jobs_in_one_session_start_by_default_and_process(tmp_path, spark):
    if int(spark.sparkContext.defaultParallelism) != 4:
        pytest.skip("the session has other slots")
    queries, sinks = [], [hf.MemorySink() for _ in range(3)]
    for number, sink in enumerate(sinks):
        job = hf.Job(spark, name=f"job-{number}", storage=f"file://{tmp_path}/{number}")
        rows = job.read(hf.SequenceSource(20))
        rows.key_by("value").aggregate(n=hf.count(), name="counts").write(sink)
        queries.append(job.start())
    for query, sink in zip(queries, sinks, strict=True):
        query.processAllAvailable()
        assert len(sink.rows()) == 20
    for query in queries:
        query.stop()


def test_a_start_in_the_midst_of_the_loss_of_executors_waits_or_is_refused_by_name(spark, tmp_path, monkeypatch):
    """There may be no slot between two looks at them."""
    sink, looks = hf.MemorySink(name="out"), [4, 0, 4]

    def job():
        made = hf.Job(spark, name="lossy", storage=f"file://{tmp_path}/s")
        made.read(hf.SequenceSource(20, name="numbers")).key_by("value").aggregate(n=hf.count(), name="n").write(sink)
        return made

    monkeypatch.setattr(ClassicHost, "slots", lambda host: looks.pop(0) if looks else 0)
    query = job().start(hf.available_now())
    query.awaitTermination(60)
    assert len(sink.rows()) == 20
    looks.append(4)
    with pytest.raises(hf.JobRefused, match="Spark had 4 slots and has none any more: its executors were lost"):
        job().start()
