"""The reaction to an error, by its class in the tree of `errors.py`."""

from enum import Enum

from holdfast import errors


class Reaction(Enum):
    """`LOST`: a process has ended, or will be found to have. `ROWS`: try again without combined rows.
    `RETRY`: try again. `LEAVE`: trying again does not help, so the batch is undone and the query ends.
    `END`: nothing will run here again, so the query ends at once."""

    LOST = "lost"
    ROWS = "rows"
    RETRY = "retry"
    LEAVE = "leave"
    END = "end"


LEAVING = (
    errors.BadRecord,
    errors.UserFunctionError,
    errors.StateTooLarge,
    errors.JobRefused,
    errors.PublishFailed,
    errors.CorruptObject,
)
ENDING = (errors.Fenced, errors.SessionStopped)
DEPLOYED_AGAIN = (errors.StorageError, errors.StaleCall)


def to_batch(error: Exception) -> Reaction:
    """The reaction to an error of a batch, of its commit, or of undoing it."""
    if isinstance(error, errors.TaskManagerLost):
        return Reaction.LOST
    if isinstance(error, errors.RowsNeeded):
        return Reaction.ROWS
    if isinstance(error, ENDING):
        return Reaction.END
    return Reaction.LEAVE if isinstance(error, LEAVING) else Reaction.RETRY


def to_deployment(error: Exception, is_first: bool, is_outage: bool) -> Reaction:
    """The reaction to an error of a deployment. An error of the first deployment is raised to the caller of `start()`.

    An outage may pass, whatever class its error has: a full disk raises `OSError`.
    """
    if isinstance(error, errors.TaskManagerLost):
        return Reaction.LOST
    passes = (is_outage or isinstance(error, DEPLOYED_AGAIN)) and not is_first
    return Reaction.RETRY if passes else Reaction.END
