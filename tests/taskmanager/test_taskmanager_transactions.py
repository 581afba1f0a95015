import threading

import pyarrow as pa
import pytest

from holdfast import failpoints
from holdfast.errors import HoldfastError, StaleCall, StateTooLarge, TaskManagerLost
from holdfast.protocol.streams import Streams
from holdfast.protocol.taskmanager import ExchangeTag, ProcessRequest
from taskmanager_kit import HOOKS, JOB, OneTaskManager, counting, program, rows
from waiting import until


@pytest.fixture(autouse=True)
def _clean():
    yield
    HOOKS.before = lambda context: None
    failpoints.disarm()


@pytest.fixture
def world(tmp_path):
    world = OneTaskManager(tmp_path).deployed()
    yield world
    world.task_manager.close()


def raising(error: Exception):
    def before(context):
        raise error

    return before


def test_a_batch_is_processed_by_the_subtasks_that_own_its_keys(world):
    streams = world.send(0, 1, 2, 2, 3, 3, 3)
    result = world.process(0, streams)
    assert sorted((each.operator, each.subtask) for each in result.subtasks) == [("count", 0), ("count", 1)]
    assert sum(each.rows_in for each in result.subtasks) == 6
    assert world.output(0) == {1: 1, 2: 2, 3: 3}
    world.task_manager.commit(1, 0)
    world.batch(1, 3, 4)
    assert world.counts() == {1: 1, 2: 2, 3: 4, 4: 1}


def test_of_two_attempts_at_a_unit_only_the_named_one_counts(world):
    world.send(0, 1, 1, 1)
    named = world.send(0, 1, 2)
    world.process(0, named)
    assert world.output(0) == {1: 1, 2: 1}


def test_totals_that_differ_from_what_arrived_are_refused_and_nothing_is_processed(world):
    [stream] = world.send(0, *range(20))
    short = stream._replace(rows=stream.rows - 1)
    with pytest.raises(HoldfastError, match=r"claims 19 rows .*, but 20 .* arrived"):
        world.process(0, [short])
    world.process(0, [stream])
    assert world.output(0) == dict.fromkeys(range(20), 1)


def test_rows_for_an_operator_of_another_level_are_refused(tmp_path):
    world = OneTaskManager(tmp_path)
    two = program(counting("count"), counting("second"))
    world.task_manager.deploy(world.deployment(shipped=two, subtasks=world.subtasks([], ["count", "second"])))
    streams = world.send(0, 1, operator="second")
    with pytest.raises(HoldfastError, match="second"):
        world.process(0, streams, level=1)
    world.process(0, [], level=1)
    world.process(0, streams, level=2)
    assert world.output(0, "second") == {1: 1}
    world.task_manager.commit(1, 0)
    world.task_manager.close()


def test_calls_of_an_older_run_are_refused(world):
    world.task_manager.undo(5)
    for call in (
        lambda: world.task_manager.process(ProcessRequest(4, 0, 0, 1, Streams())),
        lambda: world.task_manager.commit(4, 0),
        lambda: world.task_manager.undo(4),
        lambda: world.task_manager.cut(4, 1, 0),
        lambda: world.task_manager.complete(4, 1),
        lambda: world.task_manager.abort_checkpoint(4, 1),
        lambda: world.task_manager.output(4, 0, "count", 0),
        lambda: world.task_manager.deploy(world.deployment(run=4)),
        lambda: world.send(0, 1),
    ):
        with pytest.raises(StaleCall, match="run 5 has begun"):
            call()


@pytest.mark.parametrize(
    "change", [{"incarnation": 2}, {"job_id": "another"}], ids=["another incarnation", "another job"]
)
def test_a_stream_or_deployment_for_another_incarnation_or_job_is_refused(world, change):
    fields = {"job_id": JOB, "run": 1, "batch": 0, "incarnation": 1, "level": 0, "unit": 0, "attempt": "a"} | change
    with pytest.raises(StaleCall):
        world.task_manager.receive(ExchangeTag(**fields), iter([("count", 0, 0, rows(1))]))


def test_a_stream_that_is_open_when_its_run_ends_is_cut_off_and_leaves_nothing(world):
    def batches():
        yield "count", 0, 0, rows(1)
        world.task_manager.undo(2)
        yield "count", 0, 0, rows(2)

    with pytest.raises(StaleCall):
        world.task_manager.receive(ExchangeTag(JOB, 1, 0, 1, 0, 0, "a"), batches())
    assert world.task_manager.metrics()["exchangeMemoryBytes"] == 0


def test_an_attempt_that_comes_after_its_batch_was_released_is_refused(world):
    world.batch(0, 1)
    with pytest.raises(StaleCall, match="batch 0 was let go"):
        world.send(0, 1)


def test_an_operator_that_raises_leaves_the_state_as_it_was_and_abort_lets_the_batch_run_again(world):
    world.batch(0, 1, 2, 3)
    before = world.counts()
    HOOKS.before = raising(HoldfastError("the user's function"))
    with pytest.raises(HoldfastError, match="the user's function"):
        world.process(1, world.send(1, 1, 2, 3, 4))
    assert world.counts() == before
    HOOKS.before = lambda context: None
    world.task_manager.undo(2)
    world.run = 2
    world.batch(2, 1, 2, 3, 4)
    assert world.counts() == {1: 2, 2: 2, 3: 2, 4: 1}


def test_abort_undoes_a_batch_that_was_processed_and_lets_go_of_its_rows(world):
    world.batch(0, 1)
    world.process(1, world.send(1, 1, 2))
    world.task_manager.undo(2)
    assert world.counts() == {1: 1}
    assert world.task_manager.metrics()["exchangeMemoryBytes"] == 0
    world.run = 2
    with pytest.raises(StaleCall, match="not held"):
        world.output(1)


def test_commit_is_answered_again_for_a_batch_that_is_committed(world):
    world.process(0, world.send(0, 1))
    for _ in range(3):
        world.task_manager.commit(1, 0)
    assert world.counts() == {1: 1}


def test_a_batch_that_was_not_processed_cannot_be_committed(world):
    world.process(0, world.send(0, 1))
    with pytest.raises(HoldfastError, match="in flight is batch 0 of run 1"):
        world.task_manager.commit(1, 1)


def test_a_second_batch_cannot_begin_before_the_first_ended_nor_a_level_twice(world):
    world.process(0, world.send(0, 1))
    for batch in (0, 1):
        with pytest.raises(HoldfastError, match="commit or undo it first"):
            world.process(batch, [])
    world.task_manager.commit(1, 0)
    with pytest.raises(HoldfastError, match="batch 0 is committed"):
        world.process(0, [])


@pytest.mark.parametrize("at", ["taskmanager.commit.between", "taskmanager.commit.before"])
def test_a_commit_that_fails_is_either_repeated_or_the_task_manager_is_lost_until_it_is_deployed_anew(world, at):
    world.process(0, world.send(0, 1, 2, 3))
    failpoints.arm(at, "raise@1")
    with pytest.raises(HoldfastError):
        world.task_manager.commit(1, 0)
    if at == "taskmanager.commit.before":
        world.task_manager.commit(1, 0)
        assert world.counts() == {1: 1, 2: 1, 3: 1}
        return
    with pytest.raises(TaskManagerLost, match="commit of batch 0 failed"):
        world.task_manager.commit(1, 0)
    world.task_manager.deploy(world.deployment(run=2))
    world.run = 2
    world.batch(0, 1)
    assert world.counts() == {1: 1}


def test_released_batches_leave_no_memory(world):
    for batch in range(5):
        world.send(batch, 7, 7)
        world.batch(batch, 1, 2, 3)
    assert world.task_manager.metrics()["exchangeMemoryBytes"] == 0


def test_input_and_output_past_the_bound_are_spilled_and_nothing_is_lost(tmp_path):
    world = OneTaskManager(tmp_path, memory_bytes=400).deployed()
    first = world.send(0, *range(100))
    second = world.send(0, *range(100), unit=1)
    assert world.task_manager.metrics()["exchangeSpilledBytes"] >= 1500
    # The table is larger than that: the test is of the exchange.
    with pytest.raises(StateTooLarge):
        world.process(0, first + second)
    assert world.output(0) == dict.fromkeys(range(100), 2)
    world.task_manager.close()
    assert list((tmp_path / "spill").iterdir()) == []


def test_state_past_the_memory_bound_fails_with_advice_and_nothing_committed(tmp_path):
    world = OneTaskManager(tmp_path, memory_bytes=400).deployed()
    with pytest.raises(StateTooLarge, match="memory="):
        world.process(0, world.send(0, 1))
    world.task_manager.undo(2)
    assert world.counts() == {}
    world.task_manager.close()


def test_deploying_drops_what_was_hosted(world):
    world.batch(0, 1)
    world.process(1, world.send(1, 1))
    world.task_manager.deploy(world.deployment(run=2))
    assert world.counts() == {}
    assert world.task_manager.metrics()["exchangeMemoryBytes"] == 0


def test_nothing_is_processed_before_something_is_deployed(tmp_path):
    with pytest.raises(StaleCall, match="nothing is deployed"):
        OneTaskManager(tmp_path).process(0, [])


def test_a_new_run_is_refused_to_older_streams_while_a_batch_of_the_old_one_still_processes(world):
    begun, go_on = threading.Event(), threading.Event()

    def before(context):
        begun.set()
        assert go_on.wait(60)

    HOOKS.before = before
    streams = world.send(0, 1, 2, 3)
    processing = threading.Thread(target=world.process, args=(0, streams))
    processing.start()
    assert begun.wait(60)
    aborting = threading.Thread(target=world.task_manager.undo, args=(2,))
    aborting.start()
    until(lambda: _is_stale(world))
    go_on.set()
    processing.join(60)
    aborting.join(60)
    assert not aborting.is_alive()
    assert world.counts() == {}


def _is_stale(world: OneTaskManager) -> bool:
    try:
        world.task_manager.complete(1, 0)
    except StaleCall:
        return True
    return False


def test_an_unknown_operator_has_no_output_schema(world):
    assert world.task_manager.output_schema("count") == pa.schema(
        [("k", pa.int64()), pa.field("n", pa.int64(), nullable=False)]
    )
    with pytest.raises(HoldfastError, match="count"):
        world.task_manager.output_schema("other")
