"""Scenarios of the coordinator, line by line.

`config` takes settings by their names and comes first. Durations are in seconds. `commit 3 soft=a hard=b`: `a` and `b`
refuse a cut after that batch.
"""

from typing import Any

from holdfast.availability import Refusal
from holdfast.checkpoint import events as ev
from holdfast.checkpoint.ahead import StoreAhead
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.demand import NotifyRefused
from holdfast.checkpoint.holding import HoldNewest, LetGo, SavepointRequested
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, JournalNumber, RunNumber
from holdfast.settings import CheckpointConfig, cron, every, manual
from scenario_text import Scenario


class CheckpointsScenario(Scenario):
    """A coordinator, driven by lines of text."""

    def __init__(self) -> None:
        super().__init__()
        self.config: dict[str, Any] = {"trigger": manual()}
        self.coordinator: Coordinator | None = None

    def carry_out(self, name: str, plain: list[str], named: dict[str, str]) -> list[str]:
        if name == "config":
            self.configure(named)
            if self.coordinator is None:
                self.coordinator = Coordinator(CheckpointConfig(**self.config))
                return []
            event: ev.Event = ev.ConfigChanged(CheckpointConfig(**self.config))
        else:
            event = self.event(name, plain, named)
        if self.coordinator is None:
            self.coordinator = Coordinator(CheckpointConfig(**self.config))
        return [show(command) for command in self.told(self.coordinator, [event])]

    def configure(self, named: dict[str, str]) -> None:
        for field, value in named.items():
            kind, _, argument = value.partition(":")
            triggers = {"manual": lambda _: manual(), "every": every, "cron": lambda text: cron(text.replace("_", " "))}
            triggers["default"] = lambda _: CheckpointConfig().trigger
            self.config[field] = triggers[kind](argument) if field == "trigger" else int(value)

    def event(self, name: str, plain: list[str], named: dict[str, str]) -> ev.Event:
        match name:
            case "start":
                base = None
                if "base" in named:
                    groups = {sink: parse_groups(named[sink]) for sink in named if sink not in ("base", "objects")}
                    base = ev.BaseRecord(JournalNumber(int(named["base"])), names(named, "objects"), groups)
                return ev.CoordinatorStarted(self.now, self.now, base)
            case "tick":
                self.now += float(plain[0])
                return ev.CoordinatorTick(self.now, self.now)
            case "deploy":
                live = {int(tm): Incarnation(int(number)) for tm, number in (word.split(":") for word in plain)}
                return ev.TaskManagersChanged(RunNumber(int(named["run"])), live)
            case "commit-begins":
                return ev.CommitBegan()
            case "commit":
                batch = int(plain[0])
                refusals = tuple(
                    Refusal(who, "busy", hard=kind == "hard")
                    for kind in ("hard", "soft")
                    for who in named.pop(kind, "").split(",")
                    if who
                )
                staged = {sink: [one.encode() for one in each.split(",")] for sink, each in named.items()}
                position = ev.Position(batch, {"source": {"split": batch}})
                progress, broadcast = "idle" not in plain, "broadcast" in plain
                return ev.CommitAcknowledged(BatchNumber(batch), position, progress, staged, refusals, broadcast)
            case "request":
                return ev.TriggerRequested(plain[0])
            case "close":
                return ev.CloseRequested(plain[0])
            case "failover" | "join":
                return ev.FailoverBegan(" ".join(plain), goes_on=name == "join")
            case "missing":
                return ev.TaskManagersMissing("gone", frozenset(map(int, plain)))
            case "savepoint":
                return SavepointRequested(plain[0])
            case "hold":
                return HoldNewest(plain[0])
            case "let-go":
                return LetGo(JournalNumber(int(plain[0])))
            case "superseded":
                return ev.Superseded()
            case "ack" | "decline" | "written" | "failed":
                return self.checkpoint_event(name, plain, named)
            case _:
                return self.outcome(name, plain)

    def checkpoint_event(self, name: str, plain: list[str], named: dict[str, str]) -> ev.Event:
        checkpoint_id = CheckpointId(int(plain[0]))
        if name == "written":
            stored = {sink: each for sink, each in named.items() if sink != "number"}
            return ev.RecordWritten(checkpoint_id, JournalNumber(int(named["number"])), stored)
        if name == "failed":
            return ev.RecordFailed(checkpoint_id, "no storage", frozenset(named.values()))
        task_manager, incarnation = (int(number) for number in named["tm"].split(":"))
        if name == "decline":
            soft = "soft" in plain
            return ev.Declined(checkpoint_id, task_manager, Incarnation(incarnation), "cannot", soft)
        manifest = f"manifest-{checkpoint_id}-{task_manager}"
        return ev.Acknowledged(
            checkpoint_id,
            task_manager,
            Incarnation(incarnation),
            BatchNumber(int(named["batch"])),
            manifest,
            names(named, "objects") | {manifest},
            names(named, "held"),
            int(named.get("sequence", "0")),
        )

    def outcome(self, name: str, plain: list[str]) -> ev.Event:
        sets: dict[str, Any] = {
            "found": ev.ObjectsFound,
            "deleted": ev.ObjectsDeleted,
            "delete-failed": ev.DeleteFailed,
        }
        if name in sets:
            return sets[name](frozenset(plain))  # type: ignore[no-any-return]
        if name in ("expired", "expire-failed"):
            numbers = frozenset(JournalNumber(int(number)) for number in plain)
            return ev.RecordsExpired(numbers) if name == "expired" else ev.ExpireFailed(numbers)
        sink, number = plain[0], JournalNumber(int(plain[1]))
        if name == "publish-failed":
            return ev.PublicationFailed(sink, number, "cannot", io="io" in plain)
        return {"published": ev.Published, "discarded": ev.Discarded, "discard-failed": ev.DiscardFailed}[name](
            sink, number
        )


def names(named: dict[str, str], field: str) -> frozenset[str]:
    return frozenset(name for name in named.get(field, "").split(",") if name)


def parse_groups(text: str) -> list[ev.Group]:
    pairs = (word.split(":") for word in text.split(","))
    return [ev.Group(JournalNumber(int(number)), name) for number, name in pairs]


def show(command: ev.Command) -> str:
    """A command as a line of text."""
    match command:
        case ev.Cut():
            to = "".join(f" {tm}:{incarnation}" for tm, incarnation in command.task_managers.items())
            return f"Cut {command.checkpoint_id} batch={command.batch} run={command.run} to{to or ' nobody'}"
        case ev.StoreAndRecord():
            parts = [f"StoreAndRecord {command.checkpoint_id} batch={command.batch} run={command.run}"]
            parts += [f"manifests={','.join(command.manifests)}"] if command.manifests else []
            parts += [f"older={','.join(command.older_manifests)}"] if command.older_manifests else []
            parts += [f"retains={','.join(map(str, command.retains))}"] if command.retains else []
            for sink, groups in command.carried.items():
                parts.append(f"carried {sink}={','.join(f'{group.number}:{group.object}' for group in groups)}")
            for sink, staged in command.committables.items():
                parts.append(f"new {sink}={b','.join(staged).decode()}")
            return " ".join(parts)
        case StoreAhead():
            new = [f"new {sink}={b','.join(staged).decode()}" for sink, staged in command.committables.items()]
            return " ".join([f"StoreAhead {command.checkpoint_id}", *new])
        case ev.RecordAgain():
            return f"RecordAgain {command.checkpoint_id} number={command.number}"
        case ev.NotifyCompleted():
            return f"NotifyCompleted {command.checkpoint_id} number={command.number} batch={command.batch}"
        case ev.NotifyAborted():
            counted = "counted" if command.counted else "not counted"
            return f"NotifyAborted {command.checkpoint_id} ({counted}): {command.reason}"
        case NotifyRefused():
            counted = "counted" if command.counted else "not counted"
            return f"NotifyRefused {command.checkpoint_id} by {command.trigger} ({counted}): {command.reason}"
        case ev.CheckOwnership():
            return "CheckOwnership"
        case ev.Resolve():
            soft = " (soft)" if command.soft else ""
            return f"Resolve {command.request_id} number={command.number} {command.failure or 'ok'}{soft}"
        case ev.DropStaged():
            return f"DropStaged {command.sink} {b','.join(command.committables).decode()}"
        case ev.AskFailover():
            return f"Failover: {command.reason}"
        case ev.FailQuery():
            return f"FailQuery {command.sink} {command.number}: {command.reason}"
        case ev.RestoreFrom():
            return f"RestoreFrom {command.number}"
        case ev.ExpireRecords():
            return f"ExpireRecords {' '.join(map(str, command.numbers))}"
        case ev.Publish() | ev.Discard():
            return f"{type(command).__name__} {command.sink} {command.number} {command.object}"
        case ev.DeleteObjects():
            return f"DeleteObjects {' '.join(command.names)}"
        case ev.PausePlanning() | ev.ResumePlanning():
            return f"{type(command).__name__} {command.sink}"
