"""The commands of the execution machine, carried out on the conductor's thread; none of them waits."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from holdfast import failpoints
from holdfast.execution import events as ev
from holdfast.execution import moves
from holdfast.ids import JournalNumber
from holdfast.jobmaster.assembly import MasterParts
from holdfast.jobmaster.checkpoints.promises import RestartCheckpoint
from holdfast.printable import logger

log = logger(__name__)


class Commands:
    """Carries out commands.

    `runs` is kept once everything was deployed for the first time; it fails with the error that prevented that. `end`
    ends this start.
    """

    def __init__(self, parts: MasterParts, runs: "Future[None]", end: Callable[[ev.End], None]) -> None:
        self._parts = parts
        self._runs = runs
        self._end = end
        self.base: JournalNumber | None = parts.taken.base_number
        """The number of the checkpoint that was restored last."""

    def execute(self, command: ev.Command) -> None:
        parts, begin, work = self._parts, self._parts.conductor.begin, self._parts.work
        match command:
            case ev.StartProcess():
                parts.gateway.processes(command.process).start(command.process)
            case ev.EndProcess():
                threading.Thread(target=parts.cluster.end, args=(command.process,), daemon=True).start()
            case ev.Deploy():
                self.base = command.base
                base = RestartCheckpoint(command.base, parts.control.record(command.base))
                begin(lambda: work.deploy(command, base))
            case ev.AnnounceDeployed():
                parts.control.deployed(command.run, command.live, command.moved)
                parts.gateway.look_at_placement()
                if not self._runs.done():
                    self._runs.set_result(None)
            case ev.PlanBatch():
                begin(lambda: work.plan(command))
            case ev.RunBatch():
                begin(lambda: work.run(command))
            case ev.Commit():
                begin(lambda: work.commit(command))
            case ev.Undo():
                begin(lambda: work.undo(command))
            case ev.Finish():
                begin(work.finish)
            case ev.Abandon():
                work.abandon()
            case ev.Interrupt():
                parts.conductor.interruption.ask()
            case ev.Cancel():
                threading.Thread(target=parts.senders.cancel, args=(command.run,), daemon=True).start()
            case moves.FollowMoves():
                parts.rescales.follow(command)
            case moves.HandOver():
                begin(parts.rescales.hand_over)
            case moves.EndMoves():
                parts.rescales.end(command)
            case ev.LeaveOut():
                parts.control.left_out(command.reason, command.missing)
            case ev.AskBase():
                failpoints.hit("jobmaster.failover")
                parts.control.begin_failover(command.failover).add_done_callback(self._base_chosen)
            case ev.Log():
                say = log.warning if command.warning else log.info
                say("%s: %s", parts.name, command.message)
            case ev.End():
                parts.rescales.give_up("the query ended")
                self._end(command)

    def _base_chosen(self, promise: "Future[RestartCheckpoint]") -> None:
        base = promise.result()
        self._parts.facts.tell(ev.BaseChosen(base.number, base.batch_in(self._parts.job.epoch)))
