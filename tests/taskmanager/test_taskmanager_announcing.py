"""A TaskManager with a large log announces its part of a checkpoint, and acknowledges it once the log is stored."""

import random
import threading

import pytest
from msgspec.structs import replace

from holdfast.changelog_config import ChangelogConfig, RetryPolicy
from holdfast.formats.manifests import load_manifests
from holdfast.storage import names
from holdfast.storage.store import open_store
from holdfast.testing.stores import Fault, FaultyStore
from taskmanager_kit import NotingJobMaster, OneTaskManager
from waiting import until

KEYS = random.Random(1).sample(range(1 << 60), 2_000)
"""Keys whose changes take more bytes than travel."""
TRAVELS = 4_000


class Logs:
    """A `FaultyStore`'s decision: puts of logs wait until they are let go, the first of them for longer."""

    def __init__(self, first: bool = False) -> None:
        self.let_go = threading.Event()
        self.first_let_go = threading.Event()
        self.puts: list[str] = []
        self.only_first = first

    def __call__(self, operation: str, name: str) -> Fault | None:
        if operation == "put" and isinstance(names.parse(name), names.ChangelogName):
            self.puts.append(name)
            waits = self.first_let_go if self.only_first and len(self.puts) == 1 else self.let_go
            assert waits.wait(60)
        return None


def world(tmp_path, logs, travels=TRAVELS, **retries):
    store = FaultyStore(open_store(f"file://{tmp_path}/store"), logs)
    made = OneTaskManager(tmp_path, parallelism=1, store=store, job_master=NotingJobMaster())
    policy = RetryPolicy.fixed(**retries) if retries else RetryPolicy()
    changelog = ChangelogConfig(persist_delay=0, gathered_size_max=travels, retries=policy)
    made.task_manager.deploy(replace(made.deployment(), changelog=changelog.settings()))
    return made


def restored(acknowledgement, world, tmp_path, part):
    """The state in a part, as it would be read from the gathered object that the JobMaster stores."""
    name = names.gathered_object(1, acknowledgement.checkpoint_id)
    world.store.put(name, part.part)
    length = len(part.part) - part.manifest_start
    reference = names.manifest_part(name, part.manifest_start, length, 0, acknowledgement.moved)
    [manifest] = load_manifests(world.store, [reference])
    other = OneTaskManager(tmp_path, 1, store=world.store, incarnation=2)
    other.task_manager.deploy(other.deployment(restore=manifest.tables))
    counts = other.counts()
    other.task_manager.close()
    return counts


def test_the_part_is_announced_while_its_log_is_stored_and_left_out_of_the_acknowledgement(tmp_path):
    logs = Logs()
    made = world(tmp_path, logs)
    made.batch(0, *KEYS)
    made.task_manager.cut(1, 1, 0)
    until(lambda: made.job_master.announcements)
    [announcement] = made.job_master.announcements
    assert announcement.part and not made.job_master.acknowledgements, "no log is stored"
    logs.let_go.set()
    acknowledgement = made.acknowledged(1)
    assert (acknowledgement.part, acknowledgement.manifest, acknowledgement.moved) == (b"", "", {})
    assert acknowledgement.objects == logs.puts
    assert restored(acknowledgement, made, tmp_path, announcement) == dict.fromkeys(KEYS, 1)
    made.task_manager.close()


def test_an_acknowledgement_says_which_attempt_at_a_log_has_won(tmp_path):
    logs = Logs(first=True)
    logs.let_go.set()
    made = world(tmp_path, logs, timeout="50ms")
    made.batch(0, *KEYS)
    made.task_manager.cut(1, 1, 0)
    acknowledgement = made.acknowledged(1)
    [(named, real)] = acknowledgement.moved.items()
    assert named == logs.puts[0] and real in logs.puts[1:]
    assert acknowledgement.objects == [real]
    [announcement] = made.job_master.announcements
    assert restored(acknowledgement, made, tmp_path, announcement) == dict.fromkeys(KEYS, 1)
    logs.first_let_go.set()
    until(lambda: [info.name for info in made.store.list("dstl/")] == [real])
    made.task_manager.close()


@pytest.mark.parametrize("answer", [False, ConnectionError("no route")])
def test_a_part_whose_announcement_was_not_answered_comes_with_the_acknowledgement(tmp_path, monkeypatch, answer):
    def announce(self, announcement):
        self.announcements.append(announcement)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(NotingJobMaster, "announce", announce)
    logs = Logs()
    made = world(tmp_path, logs)
    made.batch(0, *KEYS)
    made.task_manager.cut(1, 1, 0)
    until(lambda: made.job_master.announcements)
    logs.let_go.set()
    acknowledgement = made.acknowledged(1)
    assert acknowledgement.part == made.job_master.announcements[0].part
    made.task_manager.close()


def test_a_part_that_the_job_master_lacks_comes_with_the_repetition(tmp_path):
    logs = Logs()
    made = world(tmp_path, logs)
    made.job_master.silent = [False]
    made.batch(0, *KEYS)
    made.task_manager.cut(1, 1, 0)
    until(lambda: made.job_master.announcements)
    logs.let_go.set()
    assert made.acknowledged(1).part == made.job_master.announcements[0].part
    made.task_manager.close()


def test_a_manifest_too_large_to_travel_is_stored_beside_the_log_that_it_names(tmp_path):
    logs = Logs()
    made = world(tmp_path, logs, travels=0)
    made.batch(0, *KEYS)
    made.task_manager.cut(1, 1, 0)
    until(lambda: made.store.list("gathered/"))
    assert not made.job_master.acknowledgements
    assert [each.part for each in made.job_master.announcements] == [b""], "the JobMaster need not wait for it"
    logs.let_go.set()
    acknowledgement = made.acknowledged(1)
    other = OneTaskManager(tmp_path, 1, store=made.store, incarnation=2)
    other.task_manager.deploy(other.deployment(restore=made.handles(acknowledgement)))
    assert other.counts() == dict.fromkeys(KEYS, 1)
    other.task_manager.close()
    made.task_manager.close()


def test_a_manifest_that_was_stored_beside_a_log_which_failed_is_deleted(tmp_path):
    class Failing(Logs):
        def __call__(self, operation, name):
            super().__call__(operation, name)
            is_log = isinstance(names.parse(name), names.ChangelogName)
            return Fault.FAIL if operation == "put" and is_log else None

    logs = Failing()
    made = world(tmp_path, logs, travels=0, max_attempts=1, timeout=None)
    made.batch(0, *KEYS)
    made.task_manager.cut(1, 1, 0)
    until(lambda: made.store.list("gathered/"))
    logs.let_go.set()
    until(lambda: made.job_master.declines)
    until(lambda: not made.store.list("gathered/"))
    made.task_manager.close()
