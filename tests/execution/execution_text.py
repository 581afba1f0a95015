"""Scenarios of the execution machine, line by line.

`config` takes `on_loss` and fields of `FailoverConfig` by their names and comes first. Durations are in seconds.
`registered`, `lost` and `unreachable` take processes as `number:incarnation`, senders with an `s` before it.
Errors are the names of classes of `errors.py`.
"""

from typing import Any

from holdfast import errors
from holdfast.execution import events as ev
from holdfast.execution import moves
from holdfast.execution.calls import Step
from holdfast.execution.failover import Cause, Why
from holdfast.execution.machine import Machine
from holdfast.ids import BatchNumber, JournalNumber, ProcessId, Role, RunNumber
from holdfast.settings import FailoverConfig, OnLoss
from scenario_text import Scenario

PARALLELISM = 4
"""Subtasks of each operator at the start, and wherever a line names no other number."""


class ExecutionScenario(Scenario):
    """A machine, driven by lines of text."""

    def __init__(self) -> None:
        super().__init__()
        self.machine: Machine | None = None

    def carry_out(self, name: str, plain: list[str], named: dict[str, str]) -> list[str]:
        if name == "config":
            on_loss = OnLoss(named.pop("on_loss", "rewind"))
            self.machine = Machine(FailoverConfig(**{key: number(value) for key, value in named.items()}), on_loss)
            return []
        if self.machine is None:
            self.machine = Machine(FailoverConfig())
        return [show(command) for command in self.told(self.machine, self.events(name, plain, named))]

    def events(self, name: str, plain: list[str], named: dict[str, str]) -> list[ev.Event]:
        match name:
            case "start":
                base = JournalNumber(int(named["base"])) if "base" in named else None
                wanted = {Role.TASK_MANAGER: int(plain[0]), Role.SENDER: int(named.get("senders", "0"))}
                return [ev.Started(self.now, wanted, base, int(named.get("standby", "0")), PARALLELISM)]
            case "senders-wanted":
                return [ev.SendersStay(frozenset(map(int, plain)))]
            case "tick":
                self.now += float(plain[0])
                return [ev.Tick(self.now)]
            case "registered":
                return [ev.Registered(process(word)) for word in plain]
            case "lost" if "unit" in named:
                return [ev.Lost(process(word), "killed", is_excused=True) for word in plain]
            case "lost" | "unreachable":
                made = {"lost": ev.Lost, "unreachable": ev.Unreachable}[name]
                return [made(process(word), "killed" if name == "lost" else "no answer") for word in plain]
            case "explained":
                return [ev.LossExplained(process(plain[0]), " ".join(plain[1:]))]
            case "call":
                of = process(plain[1]) if len(plain) > 1 else None
                return [ev.CallBegan(int(plain[0]), Step[named["step"].upper()], named["about"], self.now, of)]
            case "answered":
                return [ev.CallEnded(int(plain[0]))]
            case "at-work":
                return [ev.AtWork(tuple(process(word) for word in plain))]
            case "failover":
                return [ev.FailoverAsked(Cause(Why.OUTAGE if "outage" in named else Why.ASKED, " ".join(plain)))]
            case "failed" | "work-failed":
                return [(ev.Failed if name == "failed" else ev.WorkFailed)(error(plain[0]))]
            case "base":
                base = None if plain[0] == "none" else JournalNumber(int(plain[0]))
                return [ev.BaseChosen(base, int(named.get("after", "-1")))]
            case "rescale":
                until_s = self.now + float(named.get("within", "100"))
                parallelism, in_place = int(named.get("parallelism", PARALLELISM)), "in_place" in named
                return [moves.RescaleAsked(int(plain[0]), parallelism, until_s, in_place=in_place)]
            case "leaving":
                return [moves.Leaving(process(word)) for word in plain]
            case "follow":
                return [moves.MovesFollow(tuple(map(int, plain)), int(named.get("parallelism", PARALLELISM)))]
            case "sinks-lag":
                return [ev.SinksLag(frozenset(plain))]
            case _:
                return [self.of_work(name, plain, named)]

    def of_work(self, name: str, plain: list[str], named: dict[str, str]) -> ev.Event:
        single: dict[str, type[Any]] = {
            "end-reached": ev.EndReached,
            "interrupted": ev.Interrupted,
            "finished": ev.Finished,
            "checkpoint": ev.CheckpointCompleted,
            "stop": ev.StopAsked,
        }
        if name in single:
            return single[name]()  # type: ignore[no-any-return]
        if name == "handed-over":
            return moves.HandedOver(BatchNumber(int(named["batch"])))
        if name == "not-handed-over":
            return moves.NotHandedOver(" ".join(plain))
        if name == "planned":
            return ev.BatchPlanned(BatchNumber(int(plain[0])))
        of_run: dict[str, type[Any]] = {
            "deployed": ev.Deployed,
            "deploy-failed": ev.DeployFailed,
            "undone": ev.Undone,
            "undo-failed": ev.UndoFailed,
            "processed": ev.BatchProcessed,
            "batch-failed": ev.BatchFailed,
            "committed": ev.BatchCommitted,
            "commit-failed": ev.CommitFailed,
        }
        arguments: list[Any] = [RunNumber(int(named["run"]))]
        if "batch" in of_run[name].__dataclass_fields__:
            arguments.append(BatchNumber(int(named["batch"])))
        if "broadcast" in named:
            arguments.append(True)
        if name.endswith("failed"):
            arguments.append(error(plain[0]))
        if "pause" in named:
            over = named["pause"] == "over"
            arguments.append(ev.Outage(0.0 if over else float(named["pause"]), over))
        return of_run[name](*arguments)  # type: ignore[no-any-return]


def process(word: str) -> ProcessId:
    number, incarnation = word.split(":")
    role = Role.SENDER if number.startswith("s") else Role.TASK_MANAGER
    return ProcessId(role, int(number.removeprefix("s")), int(incarnation))


def error(name: str) -> Exception:
    made = getattr(errors, name)("it failed")
    assert isinstance(made, Exception)
    return made


def number(text: str) -> float | int | None:
    if text == "none":
        return None
    return int(text) if text.isdigit() else float(text)


def show(command: ev.Command) -> str:
    """A command as a line of text."""
    match command:
        case ev.StartProcess():
            return f"StartProcess {command.process}"
        case ev.EndProcess():
            return f"EndProcess {command.process}: {command.reason}"
        case ev.Deploy():
            failover = command.failover
            why = "" if failover is None or failover.goes_on else f" restart: {failover}"
            how = "" if command.rewind else " by restoring"
            in_order = command.holders == tuple(range(len(command.holders)))
            places = "" if in_order else f" places={','.join(map(str, command.holders))}"
            joining = (
                ""
                if failover is None or failover.joining is None
                else f" joining={','.join(map(str, failover.joining))}"
            )
            how += " moves" if command.moves else ""
            how += "" if command.parallelism == PARALLELISM else f" parallelism={command.parallelism}"
            return f"Deploy run={command.run} base={command.base} live={to(command.live)}{places}{joining}{how}{why}"
        case ev.AnnounceDeployed():
            return f"AnnounceDeployed run={command.run} live={to(command.live)}"
        case ev.PlanBatch():
            paused = f" paused by {', '.join(sorted(command.paused_by))}" if command.paused_by else ""
            return f"Plan{paused}"
        case ev.RunBatch():
            return f"RunBatch {command.batch} run={command.run}{'' if command.combine else ' without combining'}"
        case ev.Commit():
            return f"Commit {command.batch} run={command.run}"
        case ev.Undo() | ev.Cancel():
            return f"{type(command).__name__} run={command.run}"
        case ev.Interrupt():
            return "Interrupt"
        case ev.Abandon():
            return f"Abandon {command.batch}"
        case ev.Finish():
            return "Finish"
        case ev.AskBase():
            return f"AskBase{', goes on' if command.failover.goes_on else ''}: {command.failover}"
        case moves.FollowMoves():
            before, after = (",".join(map(str, each.holders)) for each in (command.before, command.after))
            subtasks = command.after.parallelism
            how = "" if subtasks == PARALLELISM else f" parallelism={subtasks}"
            return f"FollowMoves {before} to {after} live={to(command.after.live)}{how}"
        case moves.HandOver():
            return "HandOver"
        case moves.EndMoves():
            return f"EndMoves {len(command.places.holders)}" + ("" if command.error is None else f": {command.error}")
        case ev.LeaveOut():
            return f"LeaveOut {','.join(map(str, sorted(command.missing)))}: {command.reason}"
        case ev.Log():
            return f"Log: {command.message}"
        case ev.End():
            how = "complete" if command.complete else "early"
            return f"End {how}" if command.error is None else f"End {type(command.error).__name__}: {command.error}"


def to(live: Any) -> str:
    return ",".join(f"{index}:{incarnation}" for index, incarnation in sorted(live.items())) or "nobody"
