"""Deployments: each TaskManager gets the subtasks of its place, with the state of the checkpoint that they own."""

from typing import Any
from unittest.mock import Mock, call

from jobmaster_kit import NotedTaskManagers, summing_program

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.execution.events import Deploy
from holdfast.execution.failover import UNKNOWN, Failover
from holdfast.formats.handles import Manifest, TableHandle
from holdfast.formats.manifests import encode_manifest
from holdfast.ids import BatchNumber, CheckpointId, Epoch, Incarnation, JournalNumber, RunNumber
from holdfast.jobmaster.batches.deployer import Deployer, MasterSettings, StartedJob
from holdfast.jobmaster.batches.deployment import DeployedLayout, Layout
from holdfast.jobmaster.batches.planner import BatchLimits
from holdfast.journal.codec import StoredJob
from holdfast.settings import FailoverConfig, OnLoss
from holdfast.storage.store import ObjectStore
from journal_kit import checkpoint, fresh_store

LIVE = {0: Incarnation(3), 1: Incarnation(4)}
LIMITS = BatchLimits(1000, 1000, None, None)


class Deploying:
    """A deployer with two TaskManagers for the four subtasks of `sums`."""

    def __init__(self, store: ObjectStore | None = None, **settings: Any) -> None:
        layout = Layout(4, 128, 2)
        made = MasterSettings(
            "parts", layout, hf.CheckpointConfig(), LIMITS, trigger=hf.available_now(), failover=FailoverConfig(),
            **{"drop_state": (), **settings},
        )  # fmt: skip
        stored = StoredJob("0" * 32, 128, "parts")
        job = StartedJob(made, stored, Epoch(7), summing_program(), b"program", store or fresh_store())
        self.task_managers, self.senders, self.control = NotedTaskManagers(2), Mock(), Mock()
        managers: Any = self.task_managers
        self.deployed = DeployedLayout(layout)
        self.deployer = Deployer(job, self.senders, managers, self.control, ManualClock(), self.deployed)

    def deploy(self, base: Any = None, **facts: Any) -> dict[int, Any]:
        """The deployment that each TaskManager got, by number."""
        command = Deploy(RunNumber(9), JournalNumber(1) if base else None, LIVE, (0, 1), parallelism=4, **facts)
        self.deployer.deploy(command, base, BatchNumber(12))
        found = self.task_managers.gateways.items()
        return {number: gateway.deploy.call_args.args[0] for number, gateway in found if gateway.deploy.called}


def stored_checkpoint(store: ObjectStore) -> Any:
    """A record whose manifests have a handle of each half of `sums`, and of an operator that is gone."""
    halves = [(0, 64), (64, 128)]
    handles = [TableHandle("sums", "state", start, stop, b"", [], []) for start, stop in halves]
    handles.append(TableHandle("gone", "state", 0, 128, b"", [], []))
    for number, handle in enumerate(handles):
        store.put(
            f"manifest-{number}",
            encode_manifest(Manifest(Epoch(6), CheckpointId(2), number, Incarnation(1), BatchNumber(11), [handle])),
        )
    return checkpoint(6, 2, manifests=[f"manifest-{number}" for number in range(3)], batch=BatchNumber(11))


def test_places_get_their_own_subtasks_under_the_run_and_the_incarnation() -> None:
    found = Deploying().deploy()
    assert [[each.subtask for each in found[number].subtasks] for number in (0, 1)] == [[0, 1], [2, 3]]
    assert [(found[number].run, found[number].incarnation) for number in (0, 1)] == [(9, 3), (9, 4)]
    assert found[0].first_batch == 12 and found[0].base is None and found[0].epoch == 7


def test_a_subtask_restores_its_own_part_of_the_handles_and_no_operator_that_is_gone() -> None:
    store = fresh_store()
    found = Deploying(store, drop_state=("gone",)).deploy(stored_checkpoint(store))
    restored = {
        each.subtask: [handle.key_group_start for handle in each.restore]
        for deployment in found.values()
        for each in deployment.subtasks
    }
    assert restored == {0: [0], 1: [32], 2: [64], 3: [96]}
    assert found[0].base.checkpoint_id == 2 and found[0].base.batch == 11


def test_only_those_that_join_are_deployed_while_the_others_go_on() -> None:
    deploying = Deploying()
    assert set(deploying.deploy(failover=Failover((UNKNOWN,), joining=(1,)))) == {1}
    assert deploying.task_managers.live == LIVE


def test_a_deployment_without_task_managers_changes_the_run_alone() -> None:
    deploying = Deploying()
    deploying.deployer.deploy(Deploy(RunNumber(9), None, {}), None, BatchNumber(1))
    for gateway in deploying.task_managers.gateways.values():
        gateway.deploy.assert_not_called()
    assert deploying.control.run_changed.call_args == call(9)


def test_undoing_ends_the_work_of_the_run_before_and_has_all_task_managers_undo_the_batch() -> None:
    deploying = Deploying()
    deploying.deployer.undo(RunNumber(10))
    assert deploying.senders.cancel.call_args == call(9)
    assert deploying.control.run_changed.call_args == call(10)
    for gateway in deploying.task_managers.gateways.values():
        assert gateway.undo.call_args == call(10)


def test_the_subtasks_of_a_task_manager_are_those_of_the_place_that_it_holds() -> None:
    deploying = Deploying()
    command = Deploy(RunNumber(9), None, LIVE, (1, 0), parallelism=4)
    deploying.deployer.deploy(command, None, BatchNumber(1))
    assert deploying.deployed.now.subtasks_of([1]) == [0, 1]
    assert deploying.deployer.runner(RunNumber(9), True, lambda: None).routes.owners == [1, 1, 0, 0]


def test_a_job_that_drops_rows_never_combines_them_since_it_counts_each() -> None:
    for on_loss, combines in ((OnLoss.REWIND, True), (OnLoss.DROP, False)):
        deploying = Deploying(on_loss=on_loss)
        deploying.deploy()
        assert deploying.deployer.runner(RunNumber(9), True, lambda: None).combine is combines
