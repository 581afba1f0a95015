import threading

import pytest

from holdfast import failpoints
from holdfast.errors import CheckpointFailed, HoldfastError, StorageError
from holdfast.materialize.keyed_state import KeyedState
from holdfast.references import object_of
from holdfast.taskmanager import hosting
from taskmanager_kit import HOOKS, NotingJobMaster, OneTaskManager
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


def test_a_cut_is_acknowledged_with_a_manifest_that_restores_the_state_at_another_parallelism(world, tmp_path):
    world.batch(0, *range(50))
    world.batch(1, *range(25))
    world.task_manager.cut(1, 1, 1)
    acknowledgement = world.acknowledged(1)
    assert (acknowledgement.batch, acknowledgement.task_manager, acknowledgement.incarnation) == (1, 0, 1)
    assert object_of(acknowledgement.manifest) in acknowledgement.objects
    assert not set(acknowledgement.objects) & set(acknowledgement.held), "a name is listed once"
    assert {info.name for info in world.store.list("")} == set(acknowledgement.objects)
    assert 0 < acknowledgement.incremental_bytes == acknowledgement.full_bytes

    other = OneTaskManager(tmp_path, parallelism=3, store=world.store, incarnation=2)
    other.task_manager.deploy(other.deployment(restore=world.handles(acknowledgement), first_batch=2))
    assert other.counts() == world.counts() == {key: 2 if key < 25 else 1 for key in range(50)}
    other.task_manager.close()


def test_the_repetition_of_an_acknowledgement_that_was_sent_as_a_difference_is_whole(world):
    for checkpoint_id in (1, 2, 3):
        world.batch(checkpoint_id, checkpoint_id)
        world.task_manager.cut(1, checkpoint_id, checkpoint_id)
        whole = world.acknowledged(checkpoint_id)
    world.batch(4, 4)
    world.job_master.silent = [False]
    world.task_manager.cut(1, 4, 4)
    repeated = world.acknowledged(4)
    assert whole.since == 2, "the names of the checkpoint before are known"
    assert repeated.since is None and object_of(repeated.manifest) in repeated.objects
    assert len(repeated.objects) > len(whole.objects)


def test_materializations_hear_of_a_checkpoint_from_its_cut_to_its_acknowledgement(world, monkeypatch):
    preceding = []
    monkeypatch.setattr(world.task_manager._hosted.uploader, "precede", preceding.append)
    world.batch(0, 1)
    world.task_manager.cut(1, 1, 0)
    [checkpoint] = preceding
    checkpoint.result(60)
    assert [note.checkpoint_id for note in world.job_master.acknowledgements] == [1]


def test_a_cut_holds_the_state_of_its_batch_while_the_next_one_is_processing_and_is_not_waited_for(world, tmp_path):
    world.batch(0, 1, 2, 3)
    begun, go_on = threading.Event(), threading.Event()

    def before(context):
        begun.set()
        assert go_on.wait(60)

    HOOKS.before = before
    processing = threading.Thread(target=world.process, args=(1, world.send(1, 1, 2, 3)))
    processing.start()
    assert begun.wait(60)
    world.task_manager.cut(1, 1, 0)
    acknowledgement = world.acknowledged(1)
    go_on.set()
    processing.join(60)
    world.task_manager.commit(1, 1)

    other = OneTaskManager(tmp_path, store=world.store, incarnation=2)
    other.task_manager.deploy(other.deployment(restore=world.handles(acknowledgement)))
    assert other.counts() == {1: 1, 2: 1, 3: 1}
    assert world.counts() == {1: 2, 2: 2, 3: 2}
    other.task_manager.close()


@pytest.mark.parametrize(
    ("error", "soft"),
    [(CheckpointFailed("a cut came too late", soft=True), True), (CheckpointFailed("it was undone"), False)],
)
def test_a_table_that_declines_a_cut_softly_makes_its_task_manager_decline_softly(world, monkeypatch, error, soft):
    def declined(*_):
        raise error

    monkeypatch.setattr(KeyedState, "checkpoint", declined)
    world.batch(0, 1)
    world.task_manager.cut(1, 1, 0)
    until(lambda: world.job_master.declines)
    assert world.job_master.declines[0].soft is soft


def test_a_cut_at_an_earlier_batch_than_the_last_committed_leaves_the_later_one_out(world, tmp_path):
    world.batch(0, 1)
    world.batch(1, 1)
    world.task_manager.cut(1, 1, 0)
    handles = world.handles(world.acknowledged(1))
    other = OneTaskManager(tmp_path, store=world.store, incarnation=2)
    other.task_manager.deploy(other.deployment(restore=handles))
    assert other.counts() == {1: 1}
    other.task_manager.close()


def test_a_batch_that_is_not_committed_cannot_be_cut(world):
    world.process(0, world.send(0, 1))
    with pytest.raises(HoldfastError, match="cut of checkpoint 1 at batch 0"):
        world.task_manager.cut(1, 1, 0)


def test_later_checkpoints_store_only_what_is_new(world):
    world.batch(0, *range(100))
    world.task_manager.cut(1, 1, 0)
    first = world.acknowledged(1)
    world.task_manager.complete(1, 1)
    world.batch(1, 5)
    world.task_manager.cut(1, 2, 1)
    second = world.acknowledged(2)
    assert second.incremental_bytes < second.full_bytes
    assert second.full_bytes == second.incremental_bytes + first.full_bytes


def test_an_acknowledgement_is_repeated_until_it_is_answered(tmp_path):
    silent = [ConnectionError("no route"), False, HoldfastError("not now")]
    world = OneTaskManager(tmp_path, job_master=NotingJobMaster(silent)).deployed()
    world.batch(0, 1)
    world.task_manager.cut(1, 1, 0)
    world.acknowledged(1)
    assert world.job_master.calls == 4
    world.task_manager.close()


def test_a_cut_whose_upload_fails_is_declined_until_that_is_answered_and_the_next_one_succeeds(world):
    world.job_master.silent = [False, ConnectionError("no route")]
    world.batch(0, 1, 2, 3)
    failpoints.arm("taskmanager.cut.uploaded", "raise:StorageError@1")
    world.task_manager.cut(1, 1, 0)
    until(lambda: bool(world.job_master.declines))
    [decline] = world.job_master.declines
    assert (decline.checkpoint_id, decline.soft) == (1, False)
    assert "StorageError" in decline.reason
    world.job_master.declines.clear()
    world.task_manager.abort_checkpoint(1, 1)
    world.task_manager.cut(1, 2, 0)
    assert len(world.handles(world.acknowledged(2))) == 2


def test_a_manifest_whose_put_was_not_answered_is_no_longer_there_when_its_cut_was_declined(world):
    world.batch(0, 1, 2, 3)
    failpoints.arm("taskmanager.cut.manifest", "raise:StorageError@1")
    world.task_manager.cut(1, 1, 0)
    until(lambda: bool(world.job_master.declines))
    until(lambda: not world.store.list("dstl/"))


def test_what_was_acknowledged_before_a_new_deployment_is_repeated_until_it_is_answered(tmp_path):
    world = OneTaskManager(tmp_path, job_master=NotingJobMaster([False] * 1000)).deployed()
    world.batch(0, 1)
    world.task_manager.cut(1, 1, 0)
    until(lambda: world.job_master.calls > 0)
    world.task_manager.deploy(world.deployment(run=2))
    world.job_master.silent.clear()
    world.acknowledged(1)
    world.run = 2
    world.batch(0, 1)
    world.task_manager.cut(2, 2, 0)
    world.acknowledged(2)
    world.task_manager.close()


def test_the_end_of_a_task_manager_ends_the_repeating(tmp_path):
    world = OneTaskManager(tmp_path, job_master=NotingJobMaster([False] * 1000)).deployed()
    world.batch(0, 1)
    world.task_manager.cut(1, 1, 0)
    until(lambda: world.job_master.calls > 0)
    world.task_manager.close()
    until(lambda: not any(thread.name.startswith("checkpoint") for thread in threading.enumerate()))


def test_acknowledgements_are_numbered_in_the_order_in_which_what_is_held_was_looked_at(world):
    world.batch(0, 1, 2, 3)
    world.task_manager.cut(1, 1, 0)
    first = world.acknowledged(1)
    world.batch(1, 1, 2, 3)
    world.task_manager.cut(1, 2, 1)
    second = world.acknowledged(2)
    world.task_manager.deploy(world.deployment(run=2, restore=world.handles(second)))
    world.run = 2
    world.batch(2, 1)
    world.task_manager.cut(2, 3, 2)
    third = world.acknowledged(3)
    assert 0 < first.sequence < second.sequence < third.sequence


def test_one_that_is_composed_after_the_next_deployment_began_is_ordered_before_all_of_its(world, tmp_path):
    held = tmp_path / "held"
    failpoints.arm("taskmanager.cut.manifest", f"pause:{held}@1")
    world.batch(0, 1, 2, 3)
    world.task_manager.cut(1, 1, 0)
    until(held.exists)
    world.task_manager.deploy(world.deployment(run=2))
    world.run = 2
    world.batch(0, 1)
    world.task_manager.cut(2, 2, 0)
    new = world.acknowledged(2)
    held.unlink()
    late = world.acknowledged(1)
    assert late.sequence < new.sequence


def test_ending_deletes_nothing_in_the_store(world):
    world.batch(0, 1)
    world.task_manager.cut(1, 1, 0)
    world.acknowledged(1)
    before = world.store.list("")
    world.task_manager.close()
    assert world.store.list("") == before


def test_a_restore_that_fails_leaves_nothing_hosted_and_the_next_deployment_works(world):
    world.batch(0, 1)
    world.task_manager.cut(1, 1, 0)
    handles = world.handles(world.acknowledged(1))
    deployment = world.deployment(run=2, restore=handles)
    kept = {info.name: world.store.get(info.name) for info in world.store.list("dstl/")}
    world.store.delete(list(kept))
    with pytest.raises(StorageError):
        world.task_manager.deploy(deployment)
    for name, data in kept.items():
        world.store.put(name, data)
    world.task_manager.deploy(deployment)
    assert world.counts() == {1: 1}


class SlowStore:
    """A store that gives objects only once somebody was told how far the restore is."""

    def __init__(self, store, told):
        self._store, self._told = store, told

    def _wait(self):
        until(self._told)

    def get(self, name):
        self._wait()
        return self._store.get(name)

    def get_range(self, name, offset, length):
        self._wait()
        return self._store.get_range(name, offset, length)

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_long_restore_tells_how_far_it_is_and_does_not_depend_on_being_heard(world, tmp_path, monkeypatch, is_heard):
    monkeypatch.setattr(hosting, "PROGRESS_S", 0.01)
    world.batch(0, *range(50))
    world.task_manager.cut(1, 1, 0)
    handles, told = world.handles(world.acknowledged(1)), []

    class Listening(NotingJobMaster):
        def restoring(self, progress):
            told.append(progress)
            if not is_heard:
                raise TimeoutError("the answer is lost")
            return True

    other = OneTaskManager(tmp_path, store=SlowStore(world.store, lambda: told), job_master=Listening(), incarnation=2)
    try:
        other.task_manager.deploy(other.deployment(restore=handles))
        first, last = told[0], told[-1]
        assert (first.subtasks, first.restored, first.size_bytes) == (2, 0, 0)
        assert last.restored == 2 and last.size_bytes > 0 and last.process == other.settings.process
        assert other.counts() == world.counts()
    finally:
        other.task_manager.close()
