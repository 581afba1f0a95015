"""The phases of the execution machine, and the work in flight in each; `machine.py` draws how they follow."""

from enum import Enum


class Phase(Enum):
    IDLE = "idle"
    GATHERING = "gathering"
    DEPLOYING = "deploying"
    JOINING = "joining"
    HANDING_OVER = "handing over"
    RESCALING = "rescaling"
    PLANNING = "planning"
    RUNNING = "running"
    COMMITTING = "committing"
    UNDOING = "undoing"
    FINISHING = "finishing"
    WAITING = "waiting"
    DRAINING = "draining"
    CHOOSING = "choosing"
    LEAVING = "leaving"
    ENDING = "ending"
    ENDED = "ended"


class Work(Enum):
    DEPLOY = "deploy"
    PLAN = "plan"
    RUN = "run"
    COMMIT = "commit"
    UNDO = "undo"
    FINISH = "finish"
    HAND_OVER = "hand over"


WORK_OF = {
    Phase.IDLE: None,
    Phase.GATHERING: None,
    Phase.DEPLOYING: Work.DEPLOY,
    Phase.JOINING: Work.DEPLOY,
    Phase.HANDING_OVER: Work.HAND_OVER,
    Phase.RESCALING: Work.DEPLOY,
    Phase.PLANNING: Work.PLAN,
    Phase.RUNNING: Work.RUN,
    Phase.COMMITTING: Work.COMMIT,
    Phase.UNDOING: Work.UNDO,
    Phase.FINISHING: Work.FINISH,
    Phase.WAITING: None,
    Phase.CHOOSING: None,
    Phase.LEAVING: Work.UNDO,
    Phase.ENDED: None,
}
"""The work in flight in each phase. DRAINING and ENDING keep the work that was in flight before."""
