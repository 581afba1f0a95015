"""A random world around the real execution machine: processes that die, calls that hang, work that fails, a user.

Everything is drawn from a seed. The oracles look at the machine from outside: one work at a time, run numbers and
incarnations that are never used twice, no commit that the machine knows to be lost, batches committed in order from
a base that was chosen, storms that end, and progress as soon as nothing fails any more.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable

from holdfast import errors
from holdfast.execution import events as ev
from holdfast.execution.calls import Step
from holdfast.execution.failover import Cause, Why
from holdfast.execution.machine import Machine
from holdfast.execution.phases import Phase
from holdfast.ids import BatchNumber, JournalNumber, ProcessId, Role, RunNumber
from holdfast.observe.event_log import EventLog, ObservedRules
from holdfast.settings import FailoverConfig, OnLoss

PASSING = [errors.StorageError, errors.StaleCall, errors.RowsNeeded, errors.HoldfastError]
WORK = (ev.Deploy, ev.PlanBatch, ev.RunBatch, ev.Commit, ev.Undo, ev.Finish)
REPEATED = (ev.Registered, ev.Lost, ev.Unreachable, ev.CallEnded, ev.Deployed, ev.DeployFailed, ev.BatchProcessed)
REPEATED += (ev.BatchFailed, ev.BatchCommitted, ev.CommitFailed, ev.Undone, ev.UndoFailed)
"""Events that name what they are about, so that a late repetition must change nothing."""
TICK_S = 0.1
SETTLED_S = 60.0
STORM_S = 200.0
CALM_S = 400.0


Place = tuple[Role, int]


def place(process: ProcessId) -> Place:
    return process.role, process.number


class World:
    """Feeds the machine, executes its commands with delays and faults, and checks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rare = random.Random(f"rare events of {seed}")
        """Draws of events that came later: they leave the other draws of a seed as they are."""
        draw = self.random.choice
        self.config = self.drawn_config()
        self.on_loss = draw([OnLoss.REWIND, OnLoss.DROP])
        self.machine = Machine(self.config, self.on_loss)
        self.rules = ObservedRules("execution", self.machine, EventLog(lambda: self.now_s))
        self.incomplete = self.base_asked = False
        """Somebody is left out: no checkpoint is cut."""
        self.wanted = {Role.TASK_MANAGER: draw([0, 1, 2, 3]), Role.SENDER: draw([0, 0, 2])}
        self.standby = draw([0, 0, 1, 2]) if self.wanted[Role.TASK_MANAGER] else 0
        started = self.wanted | {Role.TASK_MANAGER: self.wanted[Role.TASK_MANAGER] + self.standby}
        self.places = [(role, number) for role, count in started.items() for number in range(count)]
        self.fault_rate = draw([0.0, 0.02, 0.1])
        self.loss_rate = draw([0.0, 0.01, 0.1])
        self.hang_rate = draw([0.0, 0.02])
        self.cut_rate = self.rare.choice([0.0, 0.002])
        self.checkpoints_fail = draw([True, False, False])
        self.is_stormy = True
        self.now_s = 100.0
        self.order = 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.alive: dict[Place, ProcessId] = {}
        self.used: set[int] = set()
        self.told_lost: dict[int, float] = {}
        """Incarnations whose loss was told, and when."""
        self.live: set[int] = set()
        self.holders: tuple[int, ...] = ()
        self.run_number = 0
        self.working: ev.Command | None = None
        self.hung = False
        self.calls = 0
        self.position = 0
        self.planned: dict[int, int] = {}
        self.checkpoints: list[int] = [0]
        self.base: int = 0
        self.commits = 0
        self.restarts = 0
        self.ended: ev.End | None = None
        self.stopped = False
        self.calm_s = float("inf")
        self.broke: Exception | None = None
        """The error that nobody expected, which ended a work."""
        self.torn = False
        """A commit was not answered: some may hold the batch, others not."""
        self.broadcast = self.checkpointed = -1
        """The last batch that changed broadcast state, and the last one in a checkpoint."""
        self.restarts_since = 0
        self.attempts: Counter[int] = Counter()
        self.losses: dict[Place, list[float]] = {each: [] for each in self.places}
        self.streaks: Counter[Place] = Counter()
        self.registered: set[Place] = set()

    def drawn_config(self) -> FailoverConfig:
        draw = self.random.choice
        return FailoverConfig(
            batch_attempts=draw([2, 5]),
            restarts_max=draw([2, 10, 1000]),
            losses_max=draw([2, 10, 1000]),
            losses_window=draw([20, 600]),
            backoff_first=draw([0.5, 1]),
            backoff_max=draw([2, 30]),
            start_timeout=20,
            deploy_timeout=draw([5, 50, None]),
            process_timeout=draw([5, 50]),
            commit_timeout=draw([5, 50]),
            cut_timeout=self.rare.choice([5, 50]),
            drop_ratio_max=draw([0.5, 1.0]),
            drop_timeout=draw([2, 60]),
        )

    def run(self) -> None:
        """A storm, then calm weather in which the job goes on, unless it has ended."""
        self.tell(ev.Started(self.now_s, self.wanted, None, self.standby))
        self.later(0.05, self.tick)
        self.run_for(STORM_S)
        self.is_stormy = self.checkpoints_fail = False
        self.calm_s = self.now_s
        self.run_for(CALM_S)
        before = self.commits
        self.run_for(20)
        assert self.ended or self.commits > before, f"no progress in phase {self.machine.phase}"
        self.stopped = True
        self.tell(ev.StopAsked())
        self.run_for(60)
        assert self.ended, "the query did not end"

    def run_for(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.queue and self.queue[0][0] <= end_s and not self.ended:
            time_s, _, action = heapq.heappop(self.queue)
            self.now_s = max(self.now_s, time_s)
            action()
        self.now_s = end_s

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.now_s + seconds, self.order, action))

    def tell(self, event: ev.Event) -> None:
        """Give a fact; now and then it comes again, late."""
        if isinstance(event, ev.Lost):
            self.note_loss(event)
        commands = self.rules.handle(event)
        self.rules.validate()
        assert not (self.ended and commands), f"after the end: {commands}"
        for command in commands:
            self.execute(command)
        if self.is_stormy and isinstance(event, REPEATED) and self.random.random() < 0.1:
            self.later(self.random.expovariate(0.5), lambda: self.machine.handle(event) and self.fail(event))

    def note_loss(self, event: ev.Lost) -> None:
        self.told_lost.setdefault(event.process.incarnation, self.now_s)
        self.losses[place(event.process)].append(self.now_s)
        self.streaks[place(event.process)] += 1
        self.registered.discard(place(event.process))

    def fail(self, event: ev.Event) -> None:
        raise AssertionError(f"{event} came again, and was answered")

    def tick(self) -> None:
        self.tell(ev.Tick(self.now_s))
        self.later(TICK_S, self.tick)
        if not self.is_stormy:
            return
        if self.random.random() < self.loss_rate / 2:
            self.lose(self.random.choice(self.places or [(Role.SENDER, 0)]), "killed")
        if self.rare.random() < self.cut_rate:
            self.cut()
        if self.random.random() < 0.002:
            self.tell(ev.FailoverAsked(Cause(Why.ASKED, "asked for")))
        if self.random.random() < 0.0001:
            self.tell(ev.Failed(errors.Fenced("another one")))

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, process: ProcessId) -> None:
        assert process.incarnation not in self.used, f"{process} was used before"
        assert place(process) not in self.alive, f"{process} is started although it lives"
        self.check_start(place(process))
        self.used.add(process.incarnation)
        self.alive[place(process)] = process
        self.later(self.random.uniform(0.0, 1.0), lambda: self.register(process))

    def check_start(self, process: Place) -> None:
        """Check that a process waited long enough before its start, and was not lost more often than allowed."""
        losses, streak, config = self.losses[process], self.streaks[process], self.config
        recent = [each for each in losses if each >= losses[-1] - config.losses_window_s] if losses else []
        is_dispensable = self.standby and process[0] is Role.TASK_MANAGER
        assert is_dispensable or len(recent) <= config.losses_max, (
            f"{process} is started again after {len(recent)} losses"
        )
        if streak > 1:
            waited_s = self.now_s - losses[-1]
            wanted_s = min(config.backoff_max_s, config.backoff_first_s * 2 ** (streak - 2))
            assert waited_s >= wanted_s - TICK_S, f"{process} waited {waited_s:.2f} s after {streak} losses"

    def register(self, process: ProcessId) -> None:
        if self.alive.get(place(process)) == process:
            self.registered.add(place(process))
            self.tell(ev.Registered(process))

    def lose(self, of: Place, reason: str) -> None:
        """End a process now; the machine hears of the end a little later."""
        process = self.alive.pop(of, None)
        if process is None:
            return
        self.later(self.random.expovariate(5.0), lambda: self.tell(ev.Lost(process, reason)))
        if process.role is Role.TASK_MANAGER and self.working is not None and self.hung:
            self.hung = False
            self.answer(self.working, errors.TaskManagerLost(f"{process} ended"))

    # --- commands -----------------------------------------------------------------------------------------------------

    def execute(self, command: ev.Command) -> None:
        if isinstance(command, WORK):
            assert self.working is None, f"{command} beside {self.working}"
            self.working = command
        match command:
            case ev.StartProcess():
                self.start(command.process)
            case ev.EndProcess():
                if self.alive.get(place(command.process)) == command.process:
                    self.lose(place(command.process), "ended")
            case ev.Deploy() | ev.Undo():
                assert command.run > self.run_number, f"{command} uses a run number again"
                self.run_number = command.run
                if isinstance(command, ev.Deploy):
                    self.check_places(command)
                    self.check_joining(command)
                    self.live = set(command.live.values())
                self.work(command)
            case ev.RunBatch() | ev.Commit():
                assert command.run == self.run_number, f"{command} under an old run"
                lost = self.live & self.told_lost.keys()
                longest_s = max((self.now_s - self.told_lost[each] for each in lost), default=0.0)
                assert longest_s <= self.config.drop_timeout_s + TICK_S, (
                    f"{command} without {lost} for {longest_s:.1f} s"
                )
                assert not lost or self.incomplete, f"{command} although {lost} are lost"
                assert len(lost) <= len(self.live) * self.config.drop_ratio_max, f"{command} without {lost}"
                assert not self.torn, f"{command} on what a failed commit left"
                self.attempts[command.batch] += isinstance(command, ev.RunBatch)
                assert self.attempts[command.batch] <= self.config.batch_attempts, f"{command} once more"
                self.work(command)
            case ev.PlanBatch():
                self.later(self.random.uniform(0.0, 0.3), lambda: self.plan(command))
            case ev.Interrupt():
                self.later(self.random.uniform(0.0, 0.3), lambda working=self.working: self.interrupt(working))  # type: ignore[misc]
            case ev.AnnounceDeployed():
                self.incomplete = self.base_asked = False
            case ev.LeaveOut():
                assert self.on_loss is OnLoss.DROP, f"{command} in a job that may not"
                self.incomplete = True
            case ev.AskBase():
                if command.failover.goes_on:
                    assert self.incomplete and not self.base_asked, f"{command} although nobody is to join"
                    self.base_asked = True
                else:
                    self.torn = False
                    self.broadcast = -1
                    self.restarts += 1
                    self.restarts_since += 1
                    assert self.restarts_since <= self.config.restarts_max, f"restart {self.restarts_since}"
                self.base = len(self.checkpoints) - 1
                number = JournalNumber(self.base)
                batch = self.checkpointed
                self.later(self.random.uniform(0.0, 2.0), lambda: self.tell(ev.BaseChosen(number, batch)))
            case ev.End():
                self.ended = command
                self.check_end(command)

    def check_places(self, command: ev.Deploy) -> None:
        """Each place has a process of its own that serves, and who still lives keeps its place."""
        assert len(set(command.holders)) == self.wanted[Role.TASK_MANAGER], f"{command.holders} hold the places"
        assert sorted(command.holders) == sorted(command.live), f"{command}: places and processes differ"
        gone = set(command.live.values()) & self.told_lost.keys()
        assert not gone, f"{command} gives a place to what is lost"
        for place_before, number in enumerate(self.holders):
            if (Role.TASK_MANAGER, number) in self.registered:
                assert command.holders[place_before] == number, f"{number} lost its place {place_before}"
        self.holders = command.holders

    def check_joining(self, command: ev.Deploy) -> None:
        """Replacements alone join, between two batches; everybody else holds the same as before."""
        if command.failover is None or command.failover.joining is None:
            return
        assert self.incomplete and not self.torn, f"{command} although nobody is missing"
        assert self.broadcast <= self.checkpointed, f"{command} without broadcast state of batch {self.broadcast}"
        joining = {command.live[each] for each in command.failover.joining}
        assert not joining & self.live, f"{command} deploys {joining & self.live} once more"
        assert set(command.live.values()) - joining == self.live - self.told_lost.keys(), (
            f"{command} changes the others"
        )

    def may_complete(self) -> bool:
        """False while nothing is cut: a replacement joins, or the lost would lack broadcast state."""
        return not self.base_asked and not (self.incomplete and self.broadcast > self.checkpointed)

    def check_end(self, command: ev.End) -> None:
        assert not self.broke or command.error is self.broke or self.stopped, f"{command} hides {self.broke}"
        if isinstance(command.error, errors.RestartsExhausted):
            assert self.restarts or self.config.losses_max < 1000, "nothing was restarted"
        assert self.stopped or self.now_s < self.calm_s + SETTLED_S, f"ended with {command.error} in calm weather"

    def work(self, command: ev.Command) -> None:
        """Do a work, which takes a while, fails now and then, or hangs until the hanging process ends."""
        lost = self.live - {each.incarnation for each in self.alive.values()}
        goes_on = self.on_loss is OnLoss.DROP and isinstance(command, ev.RunBatch | ev.Commit)
        if lost and not goes_on:
            self.answer(command, errors.TaskManagerLost(f"{sorted(lost)} do not answer"))
        elif self.is_stormy and self.random.random() < self.hang_rate and self.live:
            self.hang()
        elif self.is_stormy and self.random.random() < self.fault_rate:
            fatal = self.random.random() < 0.02
            kind = errors.UserFunctionError if fatal else self.random.choice([*PASSING, errors.TaskManagerLost])
            self.later(self.random.uniform(0.0, 1.0), lambda: self.answer(command, kind("injected")))
        else:
            self.later(self.random.uniform(0.01, 0.5), lambda: self.answer(command, None))

    def hang(self) -> None:
        self.hung = True
        self.calls += 1
        process = self.random.choice([each for each in self.alive.values() if each.role is Role.TASK_MANAGER])
        step = {ev.Deploy: Step.DEPLOY, ev.Undo: Step.UNDO, ev.Commit: Step.COMMIT}.get(
            type(self.working), Step.PROCESS
        )  # type: ignore[arg-type]
        self.tell(ev.CallBegan(self.calls, step, "it", self.now_s, process))
        if step is Step.DEPLOY and self.config.deploy_timeout is None:
            self.later(100.0, lambda: self.lose(place(process), "killed by hand"))

    def cut(self) -> None:
        """A call of a checkpoint, which goes beside the work: it is answered, or hangs until its process is ended."""
        serving = [each for at, each in self.alive.items() if at in self.registered and at[0] is Role.TASK_MANAGER]
        if not serving:
            return
        process = self.rare.choice(serving)
        self.calls += 1
        number = self.calls
        self.tell(ev.CallBegan(number, Step.CUT, "checkpoint 1", self.now_s, process))
        if self.rare.random() < 0.5:
            self.later(self.rare.uniform(0.0, 1.0), lambda: self.tell(ev.CallEnded(number)))
        else:
            self.later(self.config.limit_s("cut_timeout") + 2 * TICK_S, lambda: self.check_cut(process))

    def check_cut(self, process: ProcessId) -> None:
        """Work in flight does not keep a process alive that hangs in a cut."""
        assert self.alive.get(place(process)) != process, f"{process} lives, though it hangs in a cut"

    def interrupt(self, working: ev.Command | None) -> None:
        if working is not self.working or self.hung:
            return
        if isinstance(working, ev.PlanBatch | ev.Finish):
            self.working = None
            self.tell(ev.Interrupted())

    def plan(self, command: ev.PlanBatch) -> None:
        if self.working is not command or command.paused_by:
            return
        self.working = None
        if self.is_stormy and self.random.random() < 0.0001:
            self.breaks()
            return
        batch = len(self.planned) + 1
        self.planned[batch] = self.position
        self.tell(ev.BatchPlanned(BatchNumber(batch)))

    def answer(self, command: ev.Command, error: Exception | None) -> None:
        if self.working is not command or self.hung:
            return
        self.working = None
        if self.is_stormy and self.rare.random() < 0.0005:
            self.breaks()
            return
        match command:
            case ev.Deploy():
                self.deployed(command, error)
            case ev.Undo():
                self.tell(ev.UndoFailed(command.run, error) if error else ev.Undone(command.run))
            case ev.RunBatch():
                done = ev.BatchProcessed(command.run, command.batch)
                self.tell(ev.BatchFailed(command.run, command.batch, error) if error else done)
            case ev.Commit():
                self.committed(command, error)

    def breaks(self) -> None:
        """The work ends by an error that nobody expected, of whatever kind of work: so does the query, at once."""
        self.broke = errors.StorageError("nobody expected this")
        self.tell(ev.WorkFailed(self.broke))
        assert self.ended, f"the query goes on in phase {self.machine.phase} after {self.broke}"

    def deployed(self, command: ev.Deploy, error: Exception | None) -> None:
        if error:
            self.tell(ev.DeployFailed(command.run, error))
            return
        base = command.base or 0
        assert base == self.base, f"deployed from {base}, but {self.base} was chosen"
        if command.failover is None or command.failover.joining is None:
            self.position = self.checkpoints[base]
        self.tell(ev.Deployed(RunNumber(command.run)))

    def committed(self, command: ev.Commit, error: Exception | None) -> None:
        if error:
            unsent = self.random.random() < 0.3
            self.torn = not unsent
            self.tell((ev.BatchFailed if unsent else ev.CommitFailed)(command.run, command.batch, error))
            return
        assert self.planned[command.batch] == self.position, "a batch was committed elsewhere than where it begins"
        self.position += 1
        self.commits += 1
        changes_broadcast = self.random.random() < 0.1
        if changes_broadcast:
            self.broadcast = command.batch
        self.tell(ev.BatchCommitted(command.run, command.batch, changes_broadcast))
        choosing = self.machine.phase in (Phase.CHOOSING, Phase.GATHERING, Phase.DEPLOYING, Phase.ENDED)
        if not self.checkpoints_fail and not choosing and self.may_complete() and self.random.random() < 0.3:
            self.checkpoints.append(self.position)
            self.checkpointed = command.batch
            self.restarts_since = 0
            for each in self.registered:
                self.streaks[each] = 0
            self.tell(ev.CheckpointCompleted())
