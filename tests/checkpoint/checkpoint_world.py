"""A random world around the real coordinator: TaskManagers, store, journal, sinks, failovers, takeovers.

Drawn from a seed. Oracles: what a restart needs is always there; output is published once, in order; nothing is left.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from checkpoint_world_end import (
    CLOSE,
    UPDATE,
    check_answer,
    check_last_record,
    check_nothing_is_left,
    check_nothing_needed_is_gone,
    check_published_exactly_once,
)
from checkpoint_world_parts import GatheredObjects, Manifest, Record, TaskManager

from holdfast.availability import Refusal
from holdfast.checkpoint import events as ev
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.demand import NotifyRefused
from holdfast.checkpoint.gathering import Gather, GatherFailed
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, JournalNumber, RunNumber
from holdfast.observe.event_log import EventLog, ObservedRules
from holdfast.settings import CheckpointConfig, every, manual

SINKS = ("a", "b")


class World:
    """Feeds the coordinator, executes its commands with delays and faults, and checks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faulty = True
        self.config = CheckpointConfig(
            trigger=self.random.choice([every(1), every(3), manual()]),
            timeout=self.random.choice([2, 10]),
            min_pause=self.random.choice([0, 0, 1]),
            max_concurrent=self.random.choice([1, 1, 2, 3]),
            tolerable_failed_checkpoints=self.random.choice([0, 2]),
            tolerable_failure_timeout=self.random.choice([None, 15]),
            unpublished_max=self.random.choice([2, 5, 100]),
        )
        self.task_manager_count = self.random.choice([0, 1, 2, 3])
        self.fault_rate = self.random.choice([0.0, 0.05, 0.2])
        self.refusal_rate = self.random.choice([0.0, 0.0, 0.3, 0.9])
        self.now = 1000.0
        self.order = 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.store: set[str] = set()
        self.staged: dict[bytes, str] = {}
        self.journal: dict[int, Record | None] = {}
        self.shown: dict[str, dict[int, list[bytes]]] = {sink: {} for sink in SINKS}
        self.contents: dict[str, list[bytes]] = {}
        self.gathered = GatheredObjects()
        self.names = 0
        self.requests: dict[str, bool] = {}
        self.kept: dict[str, Any] = {}
        """Updates that the newest record is to hold."""
        self.epoch = 0
        self.completed = 0
        self.deployment = 0
        self.stopped = False
        self.manifests: dict[tuple[int, int], Manifest] = {}
        self.take_over()

    def run(self) -> None:
        """Forty faulty seconds; forty healthy ones, to recover in; then the end, when all must be tidy."""
        self.run_for(40)
        self.faulty = False
        self.run_for(40)
        self.stopped = True
        for _ in range(3):
            assert self.running and not self.paused, "a healthy world did not recover"
            self.commit_one()
            self.request()
            self.run_for(15)
        check_published_exactly_once(self)
        check_nothing_is_left(self)
        self.close()
        self.run_for(15)
        check_last_record(self)

    def run_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self.queue[0][0] <= end:
            time, _, action = heapq.heappop(self.queue)
            self.now = max(self.now, time)
            action()
        self.now = end

    # --- the driver ---------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """A new JobMaster: clean up objects that the newest record does not name, start from it."""
        number = max(self.journal, default=0) + 1
        self.epoch = number
        self.queue = []
        self.requests = {}
        base = self.newest()
        self.journal[number] = None
        if base is not None:
            self.journal = {key: each for key, each in self.journal.items() if each is None or key == base}
        record = self.journal[base] if base is not None else None
        groups = record.groups if record else {}
        named = (record.objects() if record else frozenset()) | {g.object for each in groups.values() for g in each}
        self.store &= named
        kept = {one for each in groups.values() for group in each for one in self.contents[group.object]}
        self.staged = {one: sink for one, sink in self.staged.items() if one in kept}
        self.kept = record.kept if record else {}
        self.coordinator = Coordinator(self.config, self.kept)
        self.rules = ObservedRules("checkpoints", self.coordinator, EventLog(lambda: self.now))
        self.run_number, self.batch, self.last_incarnation = 0, 0, 0
        self.task_managers: dict[int, TaskManager] = {}
        self.offset = record.offset if record else 0
        self.running, self.paused = False, set[str]()
        self.refusals: tuple[Refusal, ...] = ()
        self.refused: set[CheckpointId] = set()
        self.needed: dict[int, set[str]] = {}
        self.sent: int | None = None
        started = None
        if base and record:
            started = ev.BaseRecord(JournalNumber(base), record.objects(), groups, kept=self.kept)
        self.tell(ev.CoordinatorStarted(self.now, self.now, started))
        self.restore(base)
        self.at(0.1, self.tick)

    def tell(self, event: ev.Event) -> None:
        commands = self.rules.handle(event)
        self.rules.validate()
        for command in commands:
            self.execute(command)
        self.check()

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now + delay_s, self.order, action))

    def soon(self, action: Callable[[], None]) -> None:
        delay_s = self.random.choice([0.01, 0.1, 0.5, 3.0]) if self.faulty else 0.1
        self.at(delay_s * self.random.random(), action)

    def fault(self) -> bool:
        return self.faulty and self.random.random() < self.fault_rate

    def tick(self) -> None:
        self.at(0.4, self.tick)
        self.tell(ev.CoordinatorTick(self.now, self.now))
        dice = self.random.random()
        if dice < 0.1 and self.running and self.task_managers and not self.stopped:
            self.materialize(self.random.choice(list(self.task_managers.values())))
        elif dice < 0.11 and self.faulty:
            self.take_over()
        elif dice < 0.13 and self.faulty and self.running and self.task_managers:
            self.kill(self.random.choice(list(self.task_managers)))
        elif dice < 0.18 and self.faulty:
            self.request()
        elif dice < 0.21 and self.faulty:
            self.close()
        elif dice < 0.23 and self.faulty:
            self.update()

    def ask(self, kind: str, event: Callable[[str], ev.Event]) -> None:
        name = f"{kind}{len(self.requests)}"
        self.requests[name] = False
        self.tell(event(name))

    def request(self) -> None:
        self.ask("request-", ev.TriggerRequested)

    def close(self) -> None:
        """Ask for an orderly end; it may still not come to that."""
        self.ask(CLOSE, ev.CloseRequested)

    def update(self) -> None:
        """Change the settings, with updates to keep, or without them: all that were kept are to be forgotten then."""
        self.kept = self.random.choice([{}, {"retained": 1, "timeout": len(self.requests)}])
        self.ask(UPDATE, lambda name: ev.ConfigChanged(self.config, self.kept, name))

    def commit(self, run: int) -> None:
        """Run a further batch, whose output per sink is the range of offsets it covers."""
        if run != self.run_number or not self.running or self.stopped:
            return
        self.at(self.random.choice([0.2, 0.6]), lambda: self.commit(run))
        if not self.paused:
            self.commit_one()

    def commit_one(self) -> None:
        self.batch += 1
        progress = self.stopped or self.random.random() < 0.8
        start, self.offset = self.offset, self.offset + (1 if progress else 0)
        committables = {}
        if progress:
            for sink in SINKS:
                one = f"{self.epoch}/{self.batch}/{sink}/{start}".encode()
                self.staged[one] = sink
                committables[sink] = [one]
        position = ev.Position(self.batch, {"source": {"split": self.offset}})
        self.refusals = self.refuse()
        event = ev.CommitAcknowledged(BatchNumber(self.batch), position, progress, committables, self.refusals)
        self.tell(event)
        if self.fault():
            self.tell(event)

    def refuse(self) -> tuple[Refusal, ...]:
        """Draw who refuses a cut after the present batch."""
        if not self.faulty or self.random.random() >= self.refusal_rate:
            return ()
        return (Refusal("source", "in the middle of a transaction", hard=self.random.random() < 0.2),)

    # --- TaskManagers -------------------------------------------------------------------------------------------------

    def kill(self, number: int) -> None:
        del self.task_managers[number]
        self.fail_over(f"TaskManager {number} ended")

    def fail_over(self, reason: str) -> None:
        if self.running:
            self.running = False
            self.tell(ev.FailoverBegan(reason))

    def restore(self, base: int | None) -> None:
        """Deploy after a while; a deployment may fail, and a further failover begin meanwhile."""
        self.deployment += 1
        mine = self.deployment
        if self.fault():
            self.at(0.3, lambda: None if self.running else self.tell(ev.FailoverBegan("the deployment failed")))
        self.at(0.5, lambda: self.deploy(base) if self.deployment == mine else None)

    def deploy(self, base: int | None) -> None:
        record = self.journal[base] if base is not None else None
        assert record is None or record.objects() <= self.store, "a restart finds objects missing"
        assert self.sent is None, "deployed while a record was unanswered"
        self.run_number += 1
        self.offset = record.offset if record else 0
        for number in range(self.task_manager_count):
            self.task_managers[number] = self.restored(number, self.task_managers.get(number), record)
        live = {number: Incarnation(each.incarnation) for number, each in self.task_managers.items()}
        self.running = True
        self.tell(ev.TaskManagersChanged(RunNumber(self.run_number), live))
        for incarnation in set(range(1, self.last_incarnation + 1)) - set(live.values()):
            self.soon(lambda i=incarnation: self.sweep(i))  # type: ignore[misc]
        self.commit(self.run_number)

    def restored(self, number: int, old: TaskManager | None, record: Record | None) -> TaskManager:
        """A survivor keeps its incarnation, and deletes the objects that it uploaded and never acknowledged."""
        new = TaskManager(number, 0, persisted=self.offset)
        for manifest in record.manifests if record else []:
            if manifest.task_manager == number:
                new.materialized = [manifest.materialized] if manifest.materialized else []
                new.pieces = [(name, start, min(stop, self.offset)) for name, start, stop in manifest.pieces]
                new.acknowledged = set(manifest.objects())
        if old is not None and not (self.faulty and self.random.random() < 0.2):
            new.incarnation, new.sequence = old.incarnation, old.sequence
            new.acknowledged |= old.acknowledged
            self.store -= old.held() - new.acknowledged
        else:
            self.last_incarnation += 1
            new.incarnation = self.last_incarnation
        return new

    def folder(self, incarnation: int) -> str:
        return f"dstl/{self.epoch}/{incarnation}/"

    def sweep(self, incarnation: int) -> None:
        found = frozenset(name for name in self.store if name.startswith(self.folder(incarnation)))
        self.tell(ev.ObjectsFound(found))

    def new_object(self, prefix: str) -> str:
        self.names += 1
        name = f"{prefix}{self.names}"
        self.store.add(name)
        return name

    def materialize(self, task_manager: TaskManager) -> None:
        boundary = self.offset
        if boundary > max((each[1] for each in task_manager.materialized), default=0):
            name = self.new_object(self.folder(task_manager.incarnation) + "m")
            task_manager.materialized.append((name, boundary))

    def persist(self, cut: ev.Cut, number: int, offset: int) -> None:
        """Upload the objects that the cut needs, compose the acknowledgement, send it (late, lost, doubled)."""
        task_manager = self.task_managers.get(number)
        if task_manager is None or task_manager.incarnation != cut.task_managers[number] or self.run_number != cut.run:
            return
        if self.fault():
            soft = self.random.random() < 0.5
            decline = ev.Declined(cut.checkpoint_id, number, cut.task_managers[number], "cannot", soft)
            self.soon(lambda: self.tell(decline))
            return
        if offset > task_manager.persisted:
            name = self.new_object(self.folder(task_manager.incarnation) + "l")
            task_manager.pieces.append((name, task_manager.persisted, offset))
            task_manager.persisted = offset
        name = f"manifests/{self.epoch}/{cut.checkpoint_id}/{cut.run}/{number}"
        self.store.add(name)
        manifest = task_manager.manifest(name, offset)
        task_manager.manifests[cut.checkpoint_id] = manifest
        task_manager.sequence += 1
        event = ev.Acknowledged(
            cut.checkpoint_id,
            number,
            cut.task_managers[number],
            cut.batch,
            name,
            manifest.objects(),
            task_manager.held(),
            task_manager.sequence,
        )
        task_manager.acknowledged |= manifest.objects()
        self.manifests[(cut.checkpoint_id, number)] = manifest
        self.send(event, self.epoch)

    def send(self, event: ev.Acknowledged, epoch: int) -> None:
        """Repeated until answered; an answer can be lost after the acknowledgement arrived."""
        if self.fault():
            if event.task_manager in self.task_managers or self.random.random() < 0.5:
                self.soon(lambda: self.send(event, epoch))
            else:
                self.soon(lambda: self.lost(event))
            return
        self.soon(lambda: self.arrive(event))
        if self.fault():
            self.soon(lambda: self.send(event, epoch))

    def lost(self, event: ev.Acknowledged) -> None:
        """Lose a TaskManager before its acknowledgement is answered; the manifest is found by listing."""
        self.tell(ev.ObjectsFound(frozenset([event.manifest])))

    def arrive(self, event: ev.Acknowledged) -> None:
        if event.checkpoint_id in self.needed:
            self.needed[event.checkpoint_id] |= event.objects
        self.tell(event)

    # --- commands -----------------------------------------------------------------------------------------------------

    def execute(self, command: ev.Command) -> None:
        match command:
            case ev.Cut():
                assert self.running and command.batch == self.batch, "a cut is at the last committed batch"
                assert not self.refusals, f"a cut where {self.refusals} refuse"
                self.needed[command.checkpoint_id] = set()
                for number in command.task_managers:
                    offset = self.offset
                    self.soon(lambda c=command, n=number, o=offset: self.persist(c, n, o))  # type: ignore[misc]
            case ev.StoreAndRecord():
                assert self.sent is None, "two records at once"
                self.sent = command.checkpoint_id
                self.soon(lambda: self.record(command))
            case ev.RecordAgain():
                assert self.sent is None, "two records at once"
                self.sent = command.checkpoint_id
                self.soon(lambda: self.record_again(command))
            case ev.NotifyCompleted():
                self.completed += 1
                del self.needed[command.checkpoint_id]
                for task_manager in list(self.task_managers.values()):
                    self.soon(lambda t=task_manager: self.truncate(t, command.checkpoint_id))  # type: ignore[misc]
            case ev.NotifyAborted():
                assert self.sent != command.checkpoint_id, "a checkpoint whose record was sent cannot be aborted"
                del self.needed[command.checkpoint_id]
            case NotifyRefused():
                assert command.refusals == self.refusals != (), "named are those who refuse the last boundary"
                assert command.checkpoint_id not in self.refused | self.needed.keys(), "counted once"
                self.refused.add(command.checkpoint_id)
            case ev.CheckOwnership() | StoreAhead():
                pass  # there is nobody else, and `StoreAndRecord` wants the same again
            case ev.Resolve():
                check_answer(self, command)
                self.requests[command.request_id] = True
            case ev.AskFailover():
                self.soon(lambda: self.fail_over(command.reason))
            case ev.RestoreFrom():
                assert command.number == self.newest(), "the base is the newest record"
                self.restore(command.number)
            case ev.DropStaged():
                for one in self.gathered.expanded(command.committables):
                    assert one not in self.recorded(), "dropped what a record holds"
                    self.staged.pop(one, None)
            case Gather():
                self.soon(lambda: self.gather(command))
            case ev.PausePlanning():
                self.paused.add(command.sink)
            case ev.ResumePlanning():
                self.paused.remove(command.sink)
            case _:
                self.execute_deletion_or_publication(command)

    def execute_deletion_or_publication(self, command: ev.Command) -> None:
        match command:
            case ev.ExpireRecords():
                assert self.newest() not in command.numbers and self.sent is None
                self.soon(lambda: self.expire(frozenset(command.numbers)))
            case ev.DeleteObjects():
                assert self.sent is None, "nothing is deleted while a record is unanswered"
                self.soon(lambda: self.delete(frozenset(command.names)))
            case ev.Publish():
                self.soon(lambda: self.publish(command))
            case ev.Discard():
                assert self.sent is None, "nothing is discarded while a record is unanswered"
                self.soon(lambda: self.discard(command))
            case _:
                raise AssertionError(f"unexpected: {command}")

    def truncate(self, task_manager: TaskManager, checkpoint_id: CheckpointId) -> None:
        if self.task_managers.get(task_manager.number) is task_manager:
            self.store -= task_manager.completed(checkpoint_id)

    def record(self, command: ev.StoreAndRecord) -> None:
        stored = {}
        for sink, committables in command.committables.items():
            stored[sink] = f"manifests/{self.epoch}/{command.checkpoint_id}/{sink}"
            self.store.add(stored[sink])
            self.contents[stored[sink]] = self.gathered.expanded(committables)
        if self.fault():
            self.soon(lambda: self.answer(ev.RecordFailed(command.checkpoint_id, "?", frozenset(stored.values()))))
            return
        number = max(self.journal) + 1
        manifests = [self.manifests[(command.checkpoint_id, int(name.split("/")[-1]))] for name in command.manifests]
        groups = {sink: list(each) for sink, each in command.carried.items()}
        for sink, name in stored.items():
            groups.setdefault(sink, []).append(ev.Group(JournalNumber(number), name))
        offset = int(command.position.offsets["source"]["split"])  # type: ignore[arg-type]
        assert all(manifest.offset == offset for manifest in manifests), "all of one cut"
        assert len(manifests) == self.task_manager_count
        self.journal[number] = Record(command.checkpoint_id, manifests, groups, offset, dict(command.kept))
        self.soon(lambda: self.answer(ev.RecordWritten(command.checkpoint_id, JournalNumber(number), stored)))

    def record_again(self, command: ev.RecordAgain) -> None:
        record = self.journal[command.number]
        assert record is not None and command.number == self.newest()
        number = max(self.journal) + 1
        again = replace(record, checkpoint_id=command.checkpoint_id, groups=command.carried, kept=dict(command.kept))
        self.journal[number] = again
        self.soon(lambda: self.answer(ev.RecordWritten(command.checkpoint_id, JournalNumber(number), {})))

    def answer(self, event: ev.RecordWritten | ev.RecordFailed) -> None:
        self.sent = None
        self.tell(event)
        if self.fault():
            self.tell(event)

    def expire(self, numbers: frozenset[JournalNumber]) -> None:
        if self.fault():
            self.tell(ev.ExpireFailed(numbers))
            return
        for number in numbers:
            self.journal.pop(number, None)
        self.tell(ev.ExpireFailed(numbers) if self.fault() else ev.RecordsExpired(numbers))

    def delete(self, names: frozenset[str]) -> None:
        gone = names if not self.fault() else frozenset(sorted(names)[: len(names) // 2])
        self.store -= gone
        self.check()
        self.tell(ev.ObjectsDeleted(names) if gone == names and not self.fault() else ev.DeleteFailed(names))

    def gather(self, command: Gather) -> None:
        failed = GatherFailed(command.sink, command.gathering)
        self.tell(failed if self.fault() else self.gathered.store(command, self.epoch))

    def publish(self, command: ev.Publish) -> None:
        assert command.object in self.store, "committables to publish are gone"
        committables = self.contents[command.object]
        shown = self.shown[command.sink]
        if not self.fault():
            assert all(one in self.staged for one in committables), "staged files to publish are gone"
            assert shown.get(command.number, committables) == committables, "other content under the same number"
            assert command.number in shown or command.number > max(shown, default=0), "published out of order"
            shown[command.number] = committables
        if command.number in shown and not self.fault():
            self.tell(ev.Published(command.sink, command.number))
        else:
            self.tell(ev.PublicationFailed(command.sink, command.number, "no storage", io=True))

    def discard(self, command: ev.Discard) -> None:
        assert command.object in self.store, "the object that tells what to discard is gone"
        for one in self.contents[command.object]:
            self.staged.pop(one, None)
        answer = ev.DiscardFailed if self.fault() else ev.Discarded
        self.tell(answer(command.sink, command.number))

    # --- oracles ------------------------------------------------------------------------------------------------------

    def newest(self) -> int | None:
        return max((number for number, record in self.journal.items() if record is not None), default=None)

    def recorded(self) -> set[bytes]:
        records = [record for record in self.journal.values() if record is not None]
        groups = [group for record in records for each in record.groups.values() for group in each]
        return {one for group in groups for one in self.contents[group.object]}

    def check(self) -> None:
        check_nothing_needed_is_gone(self)
